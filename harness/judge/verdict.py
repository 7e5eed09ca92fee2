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

    DAY_BUDGET = "day.budget"
    DAY_EMPTY = "day.empty"
    DAY_ENTRY_CUT = "day.entry-cut"
    DAY_JOB = "day.job"
    DAY_JOB_UNKNOWN = "day.job-unknown"
    DAY_NOT_COMPLETED = "day.not-completed"
    DAY_NOT_STEADY = "day.not-steady"
    DAY_NO_END = "day.no-end"
    DAY_REHEARSAL = "day.rehearsal"
    DAY_WATCH = "day.watch"
    DAY_WENT_ON_UNSTEADY = "day.went-on-unsteady"
    DRILL_ANOTHER_TIME = "drill.another-time"
    DRILL_CRASHED = "drill.crashed"
    DRILL_ELSEWHERE = "drill.elsewhere"
    DRILL_ERROR = "drill.error"
    DRILL_FAILED = "drill.failed"
    DRILL_FEW_RANKS = "drill.few-ranks"
    DRILL_FROM_SCRATCH = "drill.from-scratch"
    DRILL_HOLDS_LESS = "drill.holds-less"
    DRILL_NOT_COMMITTED = "drill.not-committed"
    DRILL_NO_END = "drill.no-end"
    DRILL_NO_LOG = "drill.no-log"
    DRILL_OLDER = "drill.older"
    DRILL_TIMEOUT = "drill.timeout"
    DRILL_UNCONFIRMED = "drill.unconfirmed"
    DRILL_UNKNOWN_RANKS = "drill.unknown-ranks"
    EXPECT_UNKNOWN = "expect.unknown"
    EXPECT_UNREADABLE = "expect.unreadable"
    LEDGER_NO_GPU = "ledger.no-gpu"
    LEDGER_UNATTRIBUTED = "ledger.unattributed"
    PACE_MAX_SLOWDOWN = "pace.max_slowdown"
    PACE_SLOW_AGAIN = "pace.slow-again"
    PROBE_FAILED = "probe.failed"
    PROBE_UNANSWERED = "probe.unanswered"
    RESTART_TOLD_SCRATCH = "restart.told-scratch"
    SAVE_LAST_DAMAGED = "save.last-damaged"
    SAVE_LAST_FAILED = "save.last-failed"
    SAVE_LAST_IS_NONE = "save.last-is-none"
    SAVE_LAST_MISSING = "save.last-missing"
    SAVE_LAST_NEVER_ENDED = "save.last-never-ended"
    SCORER_CRASHED = "scorer.crashed"
    SECOND_ANOTHER_TIME = "second.another-time"
    SECOND_ERROR = "second.error"
    SECOND_FAILED = "second.failed"
    SECOND_FROM_SCRATCH = "second.from-scratch"
    SECOND_LONG = "second.long"
    SECOND_NO_END = "second.no-end"
    SECOND_NO_LOG = "second.no-log"
    SECOND_OTHER_LOSS = "second.other-loss"
    SECOND_OTHER_SAMPLES = "second.other-samples"
    SECOND_OTHER_STEP = "second.other-step"
    SECOND_OTHER_TENSORS = "second.other-tensors"
    SECOND_SAVED_LESS = "second.saved-less"
    SECOND_SHORT = "second.short"
    SECOND_TIMEOUT = "second.timeout"
    STRIKES_NOT_COMPLETED = "strikes.not-completed"
    STRIKES_NOT_SEEN = "strikes.not-seen"
    STRIKES_NOT_STEADY = "strikes.not-steady"
    STRIKES_NO_END = "strikes.no-end"
    STRIKE_NODE_ENDED = "strike.node-ended"
    STRIKE_NOT_HEALED = "strike.not-healed"
    STRIKE_NOT_WHOLE = "strike.not-whole"
    STRIKE_NO_EFFECT = "strike.no-effect"
    STRIKE_DONE_OTHERWISE = "strike.done-otherwise"
    STRIKE_NO_PROGRESS = "strike.no-progress"
    STRIKE_UNKNOWN_PROGRESS = "strike.unknown-progress"


class Doubt(enum.StrEnum):
    """Why a claim is not known to be true, so that it makes a run inconclusive."""

    FAULT_FREE_SLOW = "doubt.fault-free-slow"
    NOTHING_COMMITTED = "doubt.nothing-committed"
    NOTHING_STRUCK = "doubt.nothing-struck"
    NOT_COMPARABLE = "doubt.not-comparable"
    RUN_CUT_SHORT = "doubt.run-cut-short"
    UNMEASURED = "doubt.unmeasured"
