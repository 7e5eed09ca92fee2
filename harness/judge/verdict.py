"""Defines verdicts, findings, and the evidence for findings. If the text of a finding changes, its code stays."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from harness.evidence.usual import Degraded, Pace
    from harness.evidence.work import Waited
    from harness.judge.facts.excursions import Excursion
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
    """Returns the worst of these verdicts (fail, invalid, inconclusive, pass), or inconclusive if there are none."""
    return max(verdicts, key=PRIORITY.index, default=Verdict.INCONCLUSIVE)


class Kind(enum.StrEnum):
    """The kinds of evidence, such as durations. A broken assumption makes evidence of one or more kinds doubtful."""

    ABSENCE = "absence"  # an event is not in the log
    DURATION = "duration"  # a duration
    STEPS = "steps"  # the work of each step
    FAULTS = "faults"  # the actions of faults
    REACHED = "reached"  # the last step of the job
    NODES = "nodes"  # the nodes that the job had
    DUE = "due"  # a save is due, as the fault-free run makes one
    LISTED = "listed"  # the program that restarts the job knows of a save
    LOSSES = "losses"  # computed values, compared with the fault-free run
    CURVES = "curves"  # figures per step, compared with the fault-free run's
    BITS = "bits"  # bit-identical values in the fault-free run
    BAND = "band"  # the distance between fault-free runs
    GAP = "gap"  # the gap between the last losses and the fault-free run's, in percent
    COURSE = "course"  # steps in a row whose figures are far off the fault-free run's
    ORDER = "order"  # the samples of each step, compared with the fault-free run


@dataclass(frozen=True)
class Figure:
    """A measured value, in the unit of the limit with which it is compared."""

    value: float
    margin: float = 0  # possible error, from the uncertainty of clocks
    is_over: bool = True  # False: the log ends before the measured interval does


@dataclass(frozen=True)
class Ground:
    """Evidence for a breach or for the result of an expectation. Each field that is set narrows down the evidence. If
    `of` is a time window (begin, end) in ns, assumptions check only this window."""

    kind: Kind
    processes: tuple[int, ...] = ()  # rows in Timeline.processes that should have reported; empty: any process
    steps: tuple[int, ...] = ()  # absent steps, or steps that are off; the first and the last of a long stretch
    lines: int = 1  # absent lines of each process
    since: int | None = None  # ns; lines are absent from this time on
    of: Figure | Pace | Degraded | Episode | Excursion | Waited | tuple[int, int] | None = None
    bound: float = 0  # the bound that `of` was compared with


class Finding(NamedTuple):
    """A verdict and a text with its reason. `code` names the subject of the finding, such as a guarantee."""

    verdict: Verdict
    text: str
    code: str  # a guarantee's or an expectation's name, or a `Code`
    doubt: str = ""  # broken assumption, strength of a weak breach, or a `Doubt`
    settles: str = ""  # how to settle the doubt, in one line for people


def unknown(code: str, text: str) -> Finding:
    return Finding(Verdict.INCONCLUSIVE, text, code)


def worst_first(findings: Sequence[Finding], explained_by: Callable[[str], Sequence[str]]) -> list[str]:
    """Returns the texts of the findings, the most severe first. Equally severe findings keep their order. A finding
    that explains other findings comes before them, and ranks as at least as severe. `explained_by` maps a finding's
    code to the codes of its possible causes."""
    explains: dict[str, int] = {}
    for each in findings:
        for cause in explained_by(each.code):
            explains[cause] = max(explains.get(cause, 0), PRIORITY.index(each.verdict))

    def badness(each: Finding) -> tuple[int, bool]:
        return max(PRIORITY.index(each.verdict), explains.get(each.code, 0)), each.code in explains

    return list(dict.fromkeys(each.text for each in sorted(findings, key=badness, reverse=True)))


class Code(enum.StrEnum):
    """Codes of those findings that are not named after a guarantee, an assumption or an expectation."""

    EXPECT_UNKNOWN = "expect.unknown"
    EXPECT_UNREADABLE = "expect.unreadable"
    LEDGER_NO_GPU = "ledger.no-gpu"
    LEDGER_UNATTRIBUTED = "ledger.unattributed"
    PACE_SLOW_AGAIN = "pace.slow-again"
    SCORER_CRASHED = "scorer.crashed"


class Doubt(enum.StrEnum):
    """Codes of reasons why a finding is inconclusive, apart from broken assumptions and uncertain facts."""

    FAULT_FREE_SLOW = "doubt.fault-free-slow"
    NOTHING_STRUCK = "doubt.nothing-struck"
    NOT_COMPARABLE = "doubt.not-comparable"
    RUN_CUT_SHORT = "doubt.run-cut-short"
    UNMEASURED = "doubt.unmeasured"
