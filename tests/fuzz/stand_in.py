"""A job that is no job: it says at once which faults struck in which phase, and fails by the bugs planted in it."""

import pathlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.backends.contract import Capability, Verb
from harness.fuzz.outcome import Outcome, Strike
from harness.fuzz.schedules import Base, Schedule
from harness.fuzz.search import Search
from harness.fuzz.search_log import SearchLog
from harness.fuzz.strategies import Space, space_of
from harness.judge.verdict import Verdict
from harness.spec.scenario import parse_scenario
from harness.units import Duration

EVERYTHING = Capability(True, "", frozenset(Verb))
TEXT = """\
version: 1
name: standin
title: No job
workload: {trainer: reference, nodes: 2, steps: 200}
"""
# The phases of a recovery after a fault, with the seconds from the fault until each one ends.
RECOVERY = (("detect", 0.3), ("teardown", 0.8), ("reschedule", 1.5), ("rendezvous", 3.0), ("restore", 5.0))
PHASES = {"checkpoint.snapshot", "checkpoint.write", "checkpoint.shard_written", "checkpoint.before_publish"}


def base(seed: int = 7) -> Base:
    return Base(parse_scenario(TEXT, "standin.yaml"), seed, "local")


def space(seed: int = 7, faults_max: int = 3) -> Space:
    return space_of(base(seed), EVERYTHING, faults_max)


@dataclass(frozen=True)
class Bug:
    """Fails with this probability if a fault of this kind strikes in this phase, or beside another kind."""

    kind: str
    phase: str = ""
    beside: str = ""
    rate: float = 1.0

    def shows(self, strikes: Sequence[Strike]) -> bool:
        kinds = {each.kind for each in strikes}
        there = any(each.kind == self.kind and self.phase in ("", each.phase) for each in strikes)
        return there and (not self.beside or self.beside in kinds)


@dataclass
class StandIn:
    bugs: Sequence[Bug] = ()
    noise: float = 0.0  # the share of runs that are inconclusive
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    runs: list[Schedule] = field(default_factory=list)
    shown: set[Bug] = field(default_factory=set)

    def __call__(self, schedule: Schedule) -> Outcome:
        self.runs.append(schedule)
        strikes = struck(schedule)
        if self.dice.random() < self.noise:
            return Outcome(verdict=Verdict.INCONCLUSIVE, reason="the host was busy", strikes=tuple(strikes))
        shown = [bug for bug in self.bugs if bug.shows(strikes) and self.dice.random() < bug.rate]
        self.shown.update(shown)
        codes = tuple(f"bug{self.bugs.index(bug)}" for bug in shown)
        verdict = Verdict.FAIL if shown else Verdict.PASS
        return Outcome(verdict=verdict, codes=codes, reason=" ".join(codes), strikes=tuple(strikes), seconds=1.0)


def struck(schedule: Schedule) -> list[Strike]:
    found: dict[str, Strike] = {}
    for entry in schedule:
        phase = _phase(entry["when"], found)
        if phase is not None:
            found[entry["id"]] = Strike(entry["id"], entry["fault"], phase)
    return list(found.values())


def _phase(when: dict[str, Any], earlier: dict[str, Strike]) -> str | None:
    if "following" in when and when["following"] not in earlier:
        return None
    if "phase" in when:
        return "saving" if when["phase"] in PHASES else str(when["phase"])
    if when.get("event") in ("recovered", "healed") or "following" not in when:
        return "running"
    after = Duration(when.get("after", "0s")).s
    return next((phase for phase, end in RECOVERY if after < end), "running")


def search(
    folder: pathlib.Path,
    run: Callable[[Schedule], Outcome],
    where: Space,
    runs: int,
    guided: bool = True,
    findings_max: int = 100,
) -> Search:
    """Searches with so many new runs."""
    left = iter(range(runs))
    log = SearchLog(folder, where.base)
    try:
        found = Search(where, log, run, lambda: next(left, None) is not None, findings_max=findings_max, guided=guided)
        found.go()
    finally:
        log.close()
    return found
