"""Scores a diagnoser over many runs: by kind of fault, and separately for faults on the first rank or node."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.diagnosis.answer import Answer, Kind
from harness.diagnosis.grading import FOUND, Grade, GradedFault, RunGrade

Z = 1.959964  # of a normal distribution: intervals of 95 %
SIGNIFICANT = 0.05
NOT_MEASURED = "not measured"


class Share(NamedTuple):
    hits: int
    tries: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """Returns Wilson's 95 % score interval (Wilson, 1927, doi:10.1080/01621459.1927.10502953), or `None` without
        tries."""
        if not self.tries:
            return None
        share, spread = self.hits / self.tries, Z * Z / self.tries
        half = Z * math.sqrt(share * (1 - share) / self.tries + spread / (4 * self.tries))
        low, high = ((share + spread / 2 + sign * half) / (1 + spread) for sign in (-1, 1))
        return max(0.0, low), min(1.0, high)

    def __str__(self) -> str:
        if self.interval is None:
            return "–"
        low, high = self.interval
        return f"{self.hits}/{self.tries} {100 * self.hits / self.tries:.0f} % [{100 * low:.0f}–{100 * high:.0f}]"


def fisher(first: Share, second: Share) -> float:
    """Returns the two-sided p-value of Fisher's exact test of whether two shares are equal."""
    hits, tries = first.hits + second.hits, first.tries + second.tries
    low, high = max(0, hits - second.tries), min(first.tries, hits)
    ways = [math.comb(first.tries, k) * math.comb(second.tries, hits - k) for k in range(low, high + 1)]
    return sum(each for each in ways if each <= ways[first.hits - low]) / math.comb(tries, hits)


@dataclass
class KindScore:
    """A diagnoser's grades for all faults of one kind, and the numbers of true and false answers of this kind."""

    grades: Counter[Grade] = field(default_factory=Counter)
    answers: Counter[bool] = field(default_factory=Counter)  # by whether they are true of a fault
    decisions: Counter[bool] = field(default_factory=Counter)  # by whether they help
    after_ns: list[int] = field(default_factory=list)  # from a fault's begin to the answer that found it

    def add(self, fault: GradedFault) -> None:
        self.grades[fault.grade] += 1
        if fault.decision_right is not None:
            self.decisions[fault.decision_right] += 1
        if fault.grade in FOUND and fault.after_ns is not None:
            self.after_ns.append(fault.after_ns)

    @property
    def recall(self) -> Share:
        """Returns the share of faults with a right answer. Leaves out faults about which the diagnoser was unsure."""
        return Share(self.grades[Grade.RIGHT], self.grades.total() - self.grades[Grade.UNSURE])

    @property
    def found(self) -> Share:
        return Share(sum(self.grades[grade] for grade in FOUND), self.recall.tries)

    @property
    def precision(self) -> Share:
        return Share(self.answers[True], self.answers.total())

    @property
    def decision(self) -> Share:
        return Share(self.decisions[True], self.decisions.total())

    @property
    def median_after_s(self) -> float | None:
        return sorted(self.after_ns)[(len(self.after_ns) - 1) // 2] / 1e9 if self.after_ns else None


@dataclass(frozen=True)
class Scores:
    """A diagnoser's scores over many runs. `controls` is the share of fault-free runs without an accusation, `benign`
    the share of harmless faults without a wrong answer. `first` is the share of faults found on rank 0 or the first
    node, `others` the share found elsewhere."""

    kinds: Mapping[Kind, KindScore]
    total: KindScore
    benign: Share
    controls: Share
    innocents: Sequence[tuple[str, str]]  # run, accused part
    confusion: Mapping[tuple[Kind, Kind], int]  # by true kind and said kind
    first: Share
    others: Share
    not_graded: Sequence[tuple[str, str, str]]  # run, fault, reason
    wasted_gpu_hours: str = NOT_MEASURED  # by wrong decisions: it takes a run with the wrong one and one with the right

    @property
    def index_0_differs(self) -> bool | None:
        """Returns True if the shares `first` and `others` differ significantly. Returns `None` if one of them has no
        faults."""
        return fisher(self.first, self.others) < SIGNIFICANT if self.first.tries and self.others.tries else None

    @property
    def index_0_in_words(self) -> str:
        if self.index_0_differs is None:
            which = "no" if not self.first.tries else "each"
            return f"{which} victim was the first rank or node, so it cannot be told whether that makes a difference"
        words = "differs significantly" if self.index_0_differs else "does not differ significantly"
        p = fisher(self.first, self.others)
        return f"as first rank or node {self.first}, elsewhere {self.others}: {words} (p = {p:.3f})"


def scores_of(runs: Iterable[RunGrade]) -> Scores:
    graded = list(runs)
    faults = [fault for run in graded for fault in run.faults]
    benign = [fault for fault in faults if fault.injected.truth.benign]
    kinds, total = {kind: KindScore() for kind in Kind}, KindScore()
    for fault in faults:
        if not fault.injected.truth.benign:
            kinds[fault.kind].add(fault)
            total.add(fault)
    for answer, true in (each for run in graded for each in run.judged):
        kinds[answer.kind].answers[true] += 1
        total.answers[true] += 1
    controls = [run for run in graded if run.truth.is_control]
    confusion = Counter((fault.kind, _said(fault.answer)) for fault in faults)
    confusion.update((Kind.NONE, _said_in_control(run)) for run in controls)
    return Scores(
        {kind: score for kind, score in kinds.items() if score.grades or score.answers},
        total,
        Share(sum(fault.grade is Grade.RIGHT for fault in benign), len(benign)),
        Share(sum(not run.judged for run in controls), len(controls)),
        [(run.truth.name, part) for run in graded for part in run.innocents],
        confusion,
        _found(faults, True),
        _found(faults, False),
        [(run.truth.name, *each) for run in graded for each in run.truth.not_graded],
    )


def _said(answer: Answer | None) -> Kind:
    return answer.kind if answer else Kind.NONE


def _said_in_control(run: RunGrade) -> Kind:
    unsure = Kind.UNKNOWN if any(answer.kind is Kind.UNKNOWN for answer in run.answers) else Kind.NONE
    return next((answer.kind for answer, _ in run.judged), unsure)


def _found(faults: Sequence[GradedFault], first: bool) -> Share:
    mine = [fault.grade for fault in faults if fault.injected.at_index_0 is first]
    return Share(sum(grade in FOUND for grade in mine), len(mine) - mine.count(Grade.UNSURE))
