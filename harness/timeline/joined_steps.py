"""Renumbers the steps of a process that counts from 1 again after it restored a checkpoint.

A `restored` event may lack the checkpoint's step, but hold the checkpoint's path or a digest of its content. If a
process logged the commit of the restored checkpoint with its step, the steps after the restore are renumbered to follow
this step. If no commit shows the restored step, the steps after the restore keep their numbers and are not judged.
"""

import bisect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness.log.reading import Writer
from harness.timeline.lookups import last_by

SCRATCH, PEER = "scratch", "peer"  # sources of a state that no checkpoint holds
_Commits = dict[tuple[str, object], list[tuple[int, int]]]  # (field, its value) → (when, step), in order of time


def step_of(restored: Mapping[str, Any]) -> int | None:
    """Returns the step of the restored state, 0 for a start from scratch, or `None` if the event does not state the
    step."""
    if "step" in restored:
        return int(restored["step"])
    return 0 if restored.get("source") == SCRATCH else None


def join(writers: Sequence[Writer]) -> None:
    """Renumbers, in place, the steps after each restore of an unknown step, if a logged commit shows this step."""
    commits: _Commits = {}
    for writer in writers:
        base = 0
        for event in writer.events:
            if event.get("event") == "restored":
                base = _joined(writer, event, commits, base)
            elif str(event.get("event", "")).startswith("checkpoint.") and "step" in event:
                event["step"] += base
                if event["event"] == "checkpoint.committed":
                    for name in _names(event, "path"):
                        bisect.insort(commits.setdefault(name, []), (event["at"], event["step"]))


def _joined(writer: Writer, restored: dict[str, Any], commits: _Commits, base: int) -> int:
    """Renumbers the steps after one restore, and returns the number that was added to each step number."""
    rows = slice(int(np.searchsorted(writer.steps["end"], restored["at"], "right")), None)
    mine = writer.steps["step"][rows]
    if step_of(restored) is not None:  # the steps from here on have their right numbers
        mine -= base
        return 0
    names = _names(restored, "source")
    found = next((step for each in names if (step := last_by(commits.get(each, []), restored["at"]))), None)
    if found is None:
        return base
    restored["step"] = found
    mine -= base
    if not len(mine) or mine[0] > found:  # no step, or right numbers already: no shift
        return 0
    mine += found
    return found


def _names(event: Mapping[str, Any], place: str) -> Iterator[tuple[str, object]]:
    for kind, field in (("content", "content"), ("path", place)):
        if event.get(field):
            yield kind, event[field]


def apart(restores: Sequence[Mapping[str, Any]], steps: Mapping[str, Any]) -> bool:
    """Returns True if a process counted its steps from 1 after it had restored a state of an unknown step."""
    for event in restores:
        if step_of(event) is None:
            following = steps["step"][int(np.searchsorted(steps["end"], event["at"], "right")) :]
            if len(following) and following[0] <= 1:
                return True
    return False
