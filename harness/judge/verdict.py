"""Verdicts, and what a question says of a run: claims, each with the evidence that it rests on."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.judge.facts.slowdown import Degraded, Pace
from harness.timeline.timeline import Episode


class Verdict(enum.StrEnum):
    PASS = "pass"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"
    FAIL = "fail"


PRIORITY = [Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.INVALID, Verdict.FAIL]
EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 3, Verdict.INVALID: 3}


def merge(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst one: fail > invalid > inconclusive > pass. Nothing at all is inconclusive."""
    return max(verdicts, key=PRIORITY.index, default=Verdict.INCONCLUSIVE)


class Kind(enum.StrEnum):
    """The kinds of evidence. A doubt spoils one of them (`harness.judge.doubts`)."""

    ABSENCE = "absence"  # something is not in the log
    DURATION = "duration"  # something took so long
    STEPS = "steps"  # how far the job came
    LOSSES = "losses"  # what was computed, beside the fault-free run
    BITS = "bits"  # the very same was computed there
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
    steps: tuple[int, ...] = ()  # that are absent
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
    of_a_fault: bool = False  # that did not act as planned: then the run proves nothing
    idle: bool = False  # about steps that were rolled back: not told where they were lost with their process
    doubt: str = ""  # the code of why it cannot be told


def failed(code: str, words: str, *rests_on: Ground, idle: bool = False) -> Claim:
    return Claim(code, words, False, rests_on, idle=idle)


def unknown(code: str, words: str, doubt: str = "") -> Claim:
    return Claim(code, words, None, doubt=doubt)


def not_as_planned(code: str, words: str) -> Claim:
    """Of a fault."""
    return Claim(code, words, False, of_a_fault=True)


class Finding(NamedTuple):
    """A claim that was weighed: a verdict and why, in words and by the codes of the claim and of the doubt."""

    verdict: Verdict
    text: str
    code: str  # a `Code`, or the name of an expectation
    doubt: str = ""  # a `Doubt`


def worst_first(findings: Sequence[Finding]) -> list[str]:
    """The worst first; among equals in the order in which they were found."""
    ordered = sorted(findings, key=lambda finding: -PRIORITY.index(finding.verdict))
    return list(dict.fromkeys(finding.text for finding in ordered))
