"""Searches for schedules of faults that a job does not survive, and makes each found schedule as small as possible.

The search itself runs no jobs and reads no clocks; the caller passes functions for both."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from harness.campaign.repeats import failure_interval
from harness.fuzz.coverage import Coverage, aims_of
from harness.fuzz.outcome import Outcome
from harness.fuzz.schedules import Entry, Schedule, key_of
from harness.fuzz.search_log import Replay, Run, SearchLog
from harness.fuzz.sequential_test import SequentialTest, at_the_rate_of
from harness.fuzz.shrinking import shrink
from harness.fuzz.strategies import Space, draw
from harness.judge.verdict import Verdict

CANDIDATES = 10  # schedules drawn anew, and as many changed ones, for one run
DRAWS_MAX = 5  # until the search finds nothing that it has not tried
IN_VAIN = 3  # so often a fault did not act, and never did: it is not drawn any more
NOT_STRUCK = 10**6  # more than any number of runs: a fault that did not strike is the last to be tried alone
UNCLEAR_MAX = 3  # repeats of one schedule that are inconclusive or invalid


class Ended(Exception):
    """Raised to end a search: the time is over, no new schedule can be drawn, or the user stopped a run."""


@dataclass
class Found:
    """A failure of the job that a search found, with its smallest schedule of faults. `repeats` is the number of
    repeated runs of the smallest schedule, and `failed` is how many of them failed."""

    number: int
    codes: frozenset[str]
    reason: str
    run: str
    first: Schedule
    smallest: Schedule
    failed: int = 0
    repeats: int = 0
    repeatable: bool = False
    whole: bool = False  # all smaller schedules were tried
    cells: frozenset[tuple[str, str]] = frozenset()  # what struck in which phase when it failed
    again: int = 0  # later runs that failed so

    @property
    def interval(self) -> tuple[float, float]:
        """Returns the 95 % confidence interval of the share of runs (0 to 1) in which this failure occurs again."""
        return failure_interval(self.failed, self.repeats) if self.repeats else (0.0, 1.0)

    def is_in(self, codes: frozenset[str], cells: frozenset[tuple[str, str]]) -> bool:
        """Returns True if a run failed with a code of this failure, and each fault of this failure acted in the run in
        the same phase."""
        return not self.codes.isdisjoint(codes) and self.cells <= cells


@dataclass
class Search:
    """A search for schedules of faults that a job does not survive. The function `run` runs a schedule and may raise
    `Ended`. The function `goes_on` returns True if there is time for one more run. If `guided` is True, the search
    prefers schedules that promise new coverage; otherwise each schedule is drawn independently. The search ends after
    `findings_max` failures."""

    space: Space
    log: SearchLog
    run: Callable[[Schedule], Outcome]
    goes_on: Callable[[], bool]
    tell: Callable[[str], object] = lambda line: None
    findings_max: int = 3
    guided: bool = True
    coverage: Coverage = field(default_factory=Coverage)
    found: list[Found] = field(default_factory=list)
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    searched: int = 0
    acted: Counter[str] = field(default_factory=Counter)
    in_vain: dict[str, int] = field(default_factory=dict)
    useless: dict[str, str] = field(default_factory=dict)  # kind → why it is not drawn any more
    seconds: float = 0.0  # of all runs

    def go(self) -> None:
        self._replay = Replay(self.log)
        self._seen: set[str] = set()
        self._corpus: list[Schedule] = []
        try:
            while self._replay.left or len(self.found) < self.findings_max:
                self._one()
        except Ended:
            pass

    def _one(self) -> None:
        schedule = self._replay.drawn() if self._replay.left else self._next()
        outcome = self._tried("search", schedule)
        self.searched += 1
        self._seen.add(key_of(schedule))
        if self.coverage.add(schedule, outcome.strikes):
            self._corpus.append(schedule)
        if outcome.verdict is Verdict.PASS:
            self.coverage.harmless.update(strike.kind for strike in outcome.strikes)
        if outcome.verdict is Verdict.FAIL:
            self._hear_failure(schedule, outcome)

    def _tried(self, why: Any, schedule: Schedule) -> Outcome:
        if self._replay.left:
            outcome = self._replay.outcome(why, schedule)
        else:
            if not self.goes_on():
                raise Ended
            outcome = self.run(schedule)
            self.log.add(Run(why, [dict(entry) for entry in schedule], outcome))
        self.verdicts[outcome.verdict] += 1
        self.seconds += outcome.seconds
        self._note_unacted(outcome)
        return outcome

    def _note_unacted(self, outcome: Outcome) -> None:
        self.acted.update(strike.kind for strike in outcome.strikes)
        for kind in set(outcome.unacted):
            self.in_vain[kind] = self.in_vain.get(kind, 0) + 1
            if self.in_vain[kind] >= IN_VAIN and not self.acted[kind] and kind not in self.useless:
                self.useless[kind] = f"it did not act as meant in {IN_VAIN} runs, the last one {outcome.run}"
                self.tell(f"{kind} is not drawn any more: {self.useless[kind]}")

    # What to try next

    def _next(self) -> list[dict[str, Any]]:
        kinds = self.space.kinds.keys() - self.useless.keys()
        for attempt in range(DRAWS_MAX if kinds else 0):
            seed = _seed(self.space.base.seed, self.searched, attempt)
            found = draw(self.space.schedules(kinds), CANDIDATES if self.guided else 2 + attempt, seed)
            if not self.guided:
                found = found[1:]  # the first one is always the simplest there is
            elif self._corpus:
                found += self._changed(kinds, seed)
            new = [each for each in found if key_of(each) not in self._seen]
            if new:
                return max(new, key=self.coverage.promise) if self.guided else new[0]
        raise Ended

    def _changed(self, kinds: Collection[str], seed: int) -> list[list[dict[str, Any]]]:
        parent = self._corpus[seed % len(self._corpus)]
        return draw(self.space.neighbours(parent, kinds), CANDIDATES, seed)

    # What was found

    def _hear_failure(self, schedule: Schedule, outcome: Outcome) -> None:
        codes = frozenset(outcome.codes)
        known = next((each for each in self.found if each.is_in(codes, outcome.cells)), None)
        if known is not None:
            known.again += 1
            return
        found = Found(len(self.found) + 1, codes, outcome.reason, outcome.run, schedule, schedule)
        found.cells = outcome.cells
        self.found.append(found)
        self.tell(f"found: {outcome.reason} ({_words(schedule)}); it is repeated")
        try:
            self._examine(found)
        finally:
            self._merge(found)
            self.coverage.known = [frozenset(aims_of(each.smallest)) for each in self.found]

    def _examine(self, found: Found) -> None:
        first = SequentialTest()

        def note(test: SequentialTest) -> None:
            found.failed, found.repeats = test.failed, test.repeats

        self._repeat(found.first, first, found.codes, note)
        found.repeatable = first.answer is True or (first.answer is None and first.failed > 1)
        if not found.repeatable:
            return
        last, known = first, SequentialTest(failed=first.failed, passed=first.passed)

        def fails(candidate: Schedule) -> bool:
            nonlocal last
            last = at_the_rate_of(known)
            cells = self._repeat(candidate, last, found.codes)
            if last.answer is True:
                found.cells = cells
                known.failed, known.passed = known.failed + last.failed, known.passed + last.passed
            return last.answer is True

        def smaller(schedule: Schedule) -> None:
            found.smallest = schedule
            note(last)
            self.tell(f"smaller: {_words(schedule)}")

        struck = {kind for kind, _ in found.cells}

        def harmless(entry: Entry) -> int:
            kind = entry["fault"]
            return self.coverage.harmless[kind] if kind in struck else NOT_STRUCK

        shrink(found.first, self.space, fails, smaller, harmless)
        found.whole = True

    def _repeat(
        self,
        schedule: Schedule,
        test: SequentialTest,
        codes: frozenset[str],
        note: Callable[[SequentialTest], object] = lambda test: None,
    ) -> frozenset[tuple[str, str]]:
        unclear, cells = 0, frozenset[tuple[str, str]]()
        while not test.over and unclear < UNCLEAR_MAX:
            outcome = self._tried("repeat", schedule)
            if outcome.verdict in (Verdict.PASS, Verdict.FAIL):
                test.hear(outcome.is_same_failure(codes))
                cells = outcome.cells if outcome.is_same_failure(codes) else cells
            else:
                unclear += 1
            note(test)
        return cells

    def _merge(self, found: Found) -> None:
        for other in self.found[: found.number - 1]:
            if found.repeatable and other.is_in(found.codes, found.cells):
                other.again += 1
                self.found.remove(found)
                return


def _seed(*parts: int) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big")


def _words(schedule: Schedule) -> str:
    return ", ".join(" ".join(aim) for aim in aims_of(schedule))
