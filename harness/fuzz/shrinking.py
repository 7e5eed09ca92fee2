"""Makes a failing schedule smaller: fewer faults first, then fewer parameters, simpler triggers, fewer targets.

The shrinker of the library Hypothesis trusts the result of a single run. This module accepts a smaller schedule of
faults only if it fails again at about the same rate (see `sequential_test`).
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
    """Calls `tell` with each smaller schedule of faults that still fails, the smallest one last. The function `fails`
    may raise an exception to end the search. The function `harmless` returns how many runs passed although a fault of
    the given kind acted. Of schedules with the same number of faults, those with the lowest sum of `harmless` are tried
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
    """Yields simpler schedules: with fewer faults, or with a simpler parameter, trigger or target of one fault.
    Schedules with the fewest faults come first."""
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
    if values == simplest:
        return
    yield dict(simplest)
    for name in values:
        if name not in simplest:
            yield {key: value for key, value in values.items() if key != name}
        elif json.dumps(values[name]) != json.dumps(simplest[name]):
            yield {**values, name: simplest[name]}


def _simpler(when: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, other in {"step": "phase", "after": "following", "event": "following"}.items():
        if name in when and other in when:
            yield {key: value for key, value in when.items() if key != name}
