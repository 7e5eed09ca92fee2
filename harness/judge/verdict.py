"""Verdicts, and what a question says of a run: claims, each with the evidence that it rests on.

Reasons have names, too: what is claimed, and what makes a claim doubtful. They stay when the words change.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from harness.judge.facts.usual import Degraded, Pace
    from harness.timeline.timeline import Episode


class Verdict(enum.StrEnum):
    PASS = "pass"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"
    FAIL = "fail"


UNTRUE = "the times that are told are not true"
PRIORITY = [Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.INVALID, Verdict.FAIL]
EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 3, Verdict.INVALID: 3}


def merge(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst one: fail > invalid > inconclusive > pass. Nothing at all is inconclusive."""
    return max(verdicts, key=PRIORITY.index, default=Verdict.INCONCLUSIVE)


class Kind(enum.StrEnum):
    """The kinds of evidence. An assumption that is broken spoils one of them."""

    ABSENCE = "absence"  # something is not in the log
    DURATION = "duration"  # something took so long
    STEPS = "steps"  # what was done in each step
    FAULTS = "faults"  # whether faults acted as planned
    REACHED = "reached"  # how far the job came
    LOSSES = "losses"  # what was computed, beside the fault-free run
    CURVES = "curves"  # each step's figures, beside the fault-free run's
    BITS = "bits"  # the very same was computed there
    BAND = "band"  # how far fault-free runs are apart
    GAP = "gap"  # how far the last losses are off, in percent
    ORDER = "order"  # which samples each step consumed, beside the fault-free run


@dataclass(frozen=True)
class Figure:
    """What was measured, in the unit of its bound."""

    value: float
    margin: float = 0  # so far off it may be, as clocks are only known so well
    is_over: bool = True  # else it would have become larger


@dataclass(frozen=True)
class Ground:
    """Where the evidence of a claim lies. What is left out is not narrowed down."""

    kind: Kind
    processes: tuple[int, ...] = ()  # rows in Timeline.processes: those that would have told; none: anybody
    steps: tuple[int, ...] = ()  # that are absent; of many in a row the first and the last one
    lines: int = 1  # so many lines of each process are absent
    since: int | None = None  # ns: from then on
    of: Figure | Pace | Degraded | Episode | None = None  # what took so long
    bound: float = 0  # that it was held against


@dataclass(frozen=True)
class Claim:
    """Something that a question found. `good`: `None` where the evidence itself cannot tell."""

    code: str
    words: str
    good: bool | None = False
    rests_on: tuple[Ground, ...] = ()
    doubt: str = ""  # the code of why it cannot be told


def failed(code: str, words: str, *rests_on: Ground) -> Claim:
    return Claim(code, words, False, rests_on)


def unknown(code: str, words: str, doubt: str = "") -> Claim:
    return Claim(code, words, None, doubt=doubt)


class Finding(NamedTuple):
    """A claim that was weighed: a verdict and why, in words and by the codes of the claim and of the doubt."""

    verdict: Verdict
    text: str
    code: str  # a guarantee's or an expectation's name, or a `Code`
    doubt: str = ""  # the assumption that is broken, how weakly a breach is known, or a `Doubt`
    settles: str = ""  # what would tell, as one line for people


def worst_first(findings: Sequence[Finding], explained_by: Callable[[str], Sequence[str]]) -> list[str]:
    """The worst first; among equals in the order in which they were found. A cause counts as bad as what it explains,
    and stands before it. `explained_by`: the codes of what would explain a finding of this code."""
    explains: dict[str, int] = {}
    for each in findings:
        for cause in explained_by(each.code):
            explains[cause] = max(explains.get(cause, 0), PRIORITY.index(each.verdict))

    def badness(each: Finding) -> tuple[int, bool]:
        return max(PRIORITY.index(each.verdict), explains.get(each.code, 0)), each.code in explains

    return list(dict.fromkeys(each.text for each in sorted(findings, key=badness, reverse=True)))


class Code(enum.StrEnum):
    """What is claimed. An expectation claims its name, as `recovery_time.max`, unless it may mean several things."""

    EXPECT_UNKNOWN = "expect.unknown"
    EXPECT_UNREADABLE = "expect.unreadable"
    LEDGER_NO_GPU = "ledger.no-gpu"
    LEDGER_UNATTRIBUTED = "ledger.unattributed"
    PACE_SLOW_AGAIN = "pace.slow-again"
    SCORER_CRASHED = "scorer.crashed"


class Doubt(enum.StrEnum):
    """Why a claim is not known to be true, so that it makes a run inconclusive."""

    FAULT_FREE_SLOW = "doubt.fault-free-slow"
    NOTHING_STRUCK = "doubt.nothing-struck"
    NOT_COMPARABLE = "doubt.not-comparable"
    RUN_CUT_SHORT = "doubt.run-cut-short"
    UNMEASURED = "doubt.unmeasured"
