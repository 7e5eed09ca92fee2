"""Lines that the log of a worker or a launcher lacks, by the numbers of its lines, and what took them.

A process that lived to its last word, or ended well, wrote all of its lines. What its log lacks was lost on the way
here, or removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from harness.judge.facts import deaths
from harness.judge.facts.known import By
from harness.log.line_numbers import LineGap
from harness.timeline.lineage import CLEAN_CODES
from harness.timeline.sorted_events import Launcher, key_of
from harness.timeline.timeline import Timeline
from harness.units import counted, format_duration


@dataclass(frozen=True)
class Lost:
    """What one log lacks, in words, but for what a full disk took. `killed`: its process was."""

    words: str
    killed: bool
    by: By = By.SEEN


def lost_lines(run: Timeline, taken: Sequence[int]) -> Iterator[Lost]:
    """`taken`: when a fault took each process; -1: none did."""
    killed = set(_killed(run, taken))
    for row, each in enumerate(run.processes):
        if gaps := _lost(each.gaps or ()):
            yield Lost(f"the log of rank {each.rank} on {each.node} lacks {_counted(gaps, run.begin)}", row in killed)
    for launcher in run.launchers:
        if gaps := _lost(launcher.gaps):
            text = f"the log of the launcher on {launcher.key[0]} lacks {_counted(gaps, run.begin)}"
            yield Lost(text, _is_killed(run, launcher))


def _lost(gaps: Sequence[LineGap]) -> list[LineGap]:
    return [gap for gap in gaps if not gap.full_disk]


def _counted(gaps: Sequence[LineGap], begin: int) -> str:
    lines, first = counted(sum(gap.lines for gap in gaps), "line"), _place(gaps[0], begin)
    return f"{lines} {first}" if len(gaps) == 1 else f"{lines} in {counted(len(gaps), 'place')}, the first {first}"


def _place(gap: LineGap, begin: int) -> str:
    if gap.after is not None and gap.before is not None:
        return f"between steps {gap.after} and {gap.before}"
    if gap.after is not None or gap.before is not None:
        return f"before step {gap.before}" if gap.after is None else f"after step {gap.after}"
    return f"between {format_duration(gap.since - begin)} and {format_duration(gap.until - begin)}"


def _killed(run: Timeline, taken: Sequence[int]) -> Iterator[int]:
    """The workers that were killed, or died without a word of it."""
    died = {row for end in deaths.ends_of(run) if end.code not in CLEAN_CODES for row in end.processes}
    gone = _gone(run)
    for row, each in enumerate(run.processes):
        lived = each.left is not None or each.exit_code in CLEAN_CODES
        if not lived and (taken[row] >= 0 or row in died or (each.node, each.incarnation) in gone):
            yield row


def _is_killed(run: Timeline, launcher: Launcher) -> bool:
    targets = (target for fault in run.faults if fault.kills and fault.strikes for target in fault.targets)
    struck = {key_of(target) for target in targets if target.get("rank") is None}
    ended = (key_of(each) for each in run.exits if each["rank"] is None and each["code"] not in CLEAN_CODES)
    return not launcher.left and launcher.key in {*struck, *_gone(run), *ended}


def _gone(run: Timeline) -> Set[tuple[str, int]]:
    """The nodes that were taken from the job."""
    return {(slot.node, slot.incarnation) for slot in run.slots if not slot.kept}
