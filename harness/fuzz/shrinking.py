"""Makes a failing schedule smaller: fewer faults first, then fewer parameters, simpler triggers, fewer targets.

Hypothesis has a shrinker, but it takes one run as the truth. Here a smaller schedule is taken only if it fails again at
about the same rate (`sequential_test`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

from harness.fuzz.schedules import Entry, Schedule, key_of, parameters_of, without
from harness.fuzz.strategies import Space

Candidate = list[dict[str, Any]]


def shrink(
    schedule: Schedule,
    space: Space,
    fails: Callable[[Schedule], bool],
    tell: Callable[[Schedule], object],
    harmless: Callable[[Entry], int] = lambda entry: 0,
) -> None:
    """Calls `tell` with each smaller schedule of faults that fails as well; the last of them is the smallest. `fails`
    may raise to end it. `harmless`: how often a fault did no harm in other runs; the least harmless one is tried alone
    first."""
    found: Schedule = schedule
    tried = {key_of(found)}
    while True:
        for candidate in smaller(found, space, harmless):
            key = key_of(candidate)
            if key in tried or not space.base.allows(candidate):
                continue
            tried.add(key)
            if fails(candidate):
                found = candidate
                tell(found)
                break
        else:
            return


def smaller(
    schedule: Schedule, space: Space, harmless: Callable[[Entry], int] = lambda entry: 0
) -> Iterator[Candidate]:
    """Yields schedules that are simpler than a given one in one respect, those with the fewest faults first."""
    for count in range(1, len(schedule)):
        chosen = combinations(range(len(schedule)), count)
        for kept in sorted(chosen, key=lambda places: sum(harmless(schedule[place]) for place in places)):
            yield _only(schedule, kept)
    for place, entry in enumerate(schedule):
        simplest = space.kinds[entry["fault"]]
        for values in _fewer(parameters_of(entry), simplest):
            head = {key: entry[key] for key in ("id", "fault", "when", "target")}
            yield _with(schedule, place, {**head, **values})
    for place, entry in enumerate(schedule):
        for when in _simpler(entry["when"]):
            yield _with(schedule, place, {**entry, "when": when})
        (aims_at, selector), *_ = entry["target"].items()
        if selector != 0:
            yield _with(schedule, place, {**entry, "target": {aims_at: 0}})


def _only(schedule: Schedule, kept: tuple[int, ...]) -> Candidate:
    found: Schedule = schedule
    for place in reversed(range(len(schedule))):
        if place not in kept:
            found = without(found, place)
    return [dict(entry) for entry in found]


def _with(schedule: Schedule, place: int, entry: Mapping[str, Any]) -> Candidate:
    return [dict(entry if at == place else each) for at, each in enumerate(schedule)]


def _fewer(values: Mapping[str, Any], simplest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields simpler parameters of a fault: the simplest ones, and the given ones without each that those lack."""
    if values == simplest:
        return
    yield dict(simplest)
    for name in values:
        if name not in simplest:
            yield {key: value for key, value in values.items() if key != name}
        elif json.dumps(values[name]) != json.dumps(simplest[name]):
            yield {**values, name: simplest[name]}


def _simpler(when: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields simpler triggers of a fault: without its step in a phase, or without its delay after another fault."""
    for name, other in {"step": "phase", "after": "following", "event": "following"}.items():
        if name in when and other in when:
            yield {key: value for key, value in when.items() if key != name}
