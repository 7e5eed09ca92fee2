"""Finds when a checkpoint is complete if several ranks each commit a part of it.

A checkpoint of several ranks is complete once the last rank that began to save has committed its part. All commit
events of a checkpoint but the last are renamed to `checkpoint.part`, so that no incomplete checkpoint counts as
restorable. The checkpoints of a run together show how many ranks commit each checkpoint. If one rank commits for all
ranks, the commit of this rank completes the checkpoint.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

STARTED, COMMITTED, FAILED = "checkpoint.started", "checkpoint.committed", "checkpoint.failed"
PUBLISHED = "checkpoint.published"  # the harness saw it
REMOVED, LEFT = "checkpoint.removed", "checkpoint.left"  # the harness saw it go away; the store at the end
UNSEEN = "checkpoint.unseen"  # reason for which the harness saw no store
PART = "checkpoint.part"  # committed by one rank, while others had still to commit theirs

Event = Mapping[str, Any]
Committers = Mapping[int, int]  # ranks of a world → how many processes commit one of its checkpoints at the most


class SaveWorld(NamedTuple):
    """The process group of the rank that logged a checkpoint event: its index (`world`) and its number of ranks."""

    world: int
    ranks: int


@dataclass
class _Save:
    ranks: int
    began: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    commits: list[int] = field(default_factory=list)


def family(path: object) -> str:
    """Returns a checkpoint's file name with `#` for each number, so that all checkpoints of a series have one name."""
    return re.sub(r"\d+", "#", str(path or "").rstrip("/").rpartition("/")[2])


def committers(events: Sequence[Event], places: Sequence[SaveWorld]) -> dict[int, int]:
    """Returns for each group size (in ranks) the largest number of processes that committed one checkpoint. `places`
    holds the process group of each event."""
    found: dict[int, int] = {}
    for save in _saves(events, places):
        found[save.ranks] = max(found.get(save.ranks, 0), len(save.done))
    return found


def together(one: Committers, other: Committers) -> dict[int, int]:
    return {ranks: max(one.get(ranks, 0), other.get(ranks, 0)) for ranks in one.keys() | other.keys()}


def labelled(events: Sequence[Event], places: Sequence[SaveWorld], usual: Committers) -> list[dict[str, Any]]:
    """Returns copies of checkpoint events, in which each commit that does not yet complete its checkpoint is renamed
    `PART`."""
    result = [dict(event) | ({"event": COMMITTED} if event["event"] == PART else {}) for event in events]
    everyone = any(most == ranks > 1 for ranks, most in usual.items())
    for save in _saves(events, places):
        most = max(save.ranks if everyone else usual.get(save.ranks, 1), 1)
        needed = min(len(save.began) or most, most)
        seen: set[int] = set()
        for row in save.commits:
            seen.add(events[row]["process"])
            if len(seen) < needed:
                result[row]["event"] = PART
    return result


def _saves(events: Sequence[Event], places: Sequence[SaveWorld]) -> Iterator[_Save]:
    """Yields the checkpoints that the events describe. If a process logs a checkpoint of the same step again, a new
    checkpoint begins."""
    current: dict[tuple[object, int], _Save] = {}
    last: dict[tuple[int, str, object], int] = {}  # time at which each process told the same before
    for row, (event, place) in enumerate(zip(events, places, strict=True)):
        what = COMMITTED if event["event"] == PART else str(event["event"])
        key, process = (event.get("step"), place.world), event["process"]
        if what not in (STARTED, COMMITTED):
            continue
        save, twice = current.get(key), last.get((process, what, key[0])) == event["at"]
        last[process, what, key[0]] = event["at"]
        told = save is not None and process in (save.began if what == STARTED else save.done)
        if save is None or (told and not twice):
            if save is not None:
                yield save
            save = current[key] = _Save(place.ranks)
        if what == STARTED:
            save.began.add(process)
        else:
            save.done.add(process)
            save.commits.append(row)
    yield from current.values()
