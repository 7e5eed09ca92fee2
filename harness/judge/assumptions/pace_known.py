"""The fault-free runs show the usual speed of the job, and no reported step is impossibly fast.

The run is inconclusive if the logged steps after the recovery take less than a quarter of their usual time. Steps that
take less than 2/3 of their usual time also make the run inconclusive if the job exits much later than usual. An exit is
much later than usual if the delay exceeds half of the time that the fast steps saved.
"""

from harness.evidence.usual import Degraded, Pace, Slow, exit_ns
from harness.judge.assumption import FRESH, Analysis, Assumption, Ground, Kind, Reasons, Spoils
from harness.judge.thresholds import FAST_BEFORE, HIDDEN_SHARE, TOO_FAST
from harness.judge.verdict import UNTRUE
from harness.units import format_duration


def _broken(evidence: Analysis) -> Reasons:
    pace = evidence.pace
    if isinstance(pace, str) or not pace.known or pace.usual_taken:  # other programs slowed a fault-free run
        return
    usual = min(1.0, pace.before)
    factor, saved = max(pace.slowdown, pace.median), pace.usual * usual - pace.taken
    taken, without = exit_ns(evidence.run), evidence.usual.longest(exit_ns)
    hidden = 0 if taken is None or without is None else max(0, taken - without)
    if factor < TOO_FAST * usual or (factor < FAST_BEFORE * usual and hidden > HIDDEN_SHARE * saved):
        text = f"{pace.told}; the job ended {format_duration(hidden)} later than usual after the last"
        yield f"{text}: {UNTRUE}, or the host was busier in the fault-free run"


def _another_pace(evidence: Analysis, ground: Ground) -> str:
    slow = ground.of
    if isinstance(slow, Degraded) and slow.before is not None:
        text = f"a step took {slow.before:.2f} × the time of the fault-free runs already before {slow.fault} struck"
        return f"{text}: its usual speed is not known (the host may have been busy)"
    if isinstance(slow, Pace) and slow.slow(ground.bound) is Slow.BESIDE_BEFORE:
        return "the fault-free run was much slower than this run before its first fault"
    return ""


def _another_size(evidence: Analysis, ground: Ground) -> str:
    pace = ground.of
    slow = isinstance(pace, Pace) and pace.slow(ground.bound) is Slow.ON_THE_WHOLE and not pace.known
    return "no fault-free run had as many ranks" if slow else ""


ASSUMPTION = Assumption(
    _broken,
    spoils=(
        Spoils(Kind.DURATION, _another_pace, FRESH, alone=True),
        Spoils(Kind.DURATION, _another_size, "Where fewer ranks may go on more slowly, write pace: off"),
    ),
    order=3,
    family="again",
    settles=FRESH,
)
