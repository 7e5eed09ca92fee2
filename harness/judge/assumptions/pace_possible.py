"""The job cannot be much faster than it ever was: steps that are told so are not told when they were done."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.assumption import FRESH, Assumption
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.usual import FAST_BEFORE, OTHERS_MOST, exit_ns, others_share
from harness.judge.thresholds import HIDDEN_SHARE, TOO_FAST
from harness.judge.verdict import UNTRUE
from harness.units import format_duration


def _broken(evidence: Analysis) -> Iterator[str]:
    """After the recovery; or faster than before, and the time that this saves comes after the last step, where the
    harness sees the end."""
    pace = evidence.pace
    if isinstance(pace, str) or not pace.known:
        return
    if any(others_share(other, other.begin, other.end) > OTHERS_MOST for other in evidence.usual.runs):
        return  # of the host; a fault-free run may then have been as slow as it likes
    usual = min(1.0, pace.before)
    factor, saved = max(pace.slowdown, pace.median), pace.usual * usual - pace.taken
    taken, without = exit_ns(evidence.run), evidence.usual.longest(exit_ns)
    hidden = 0 if taken is None or without is None else max(0, taken - without)
    if factor < TOO_FAST * usual or (factor < FAST_BEFORE * usual and hidden > HIDDEN_SHARE * saved):
        text = f"{pace.told}; the job ended {format_duration(hidden)} later than usual after the last"
        yield f"{text}: {UNTRUE}, or the host was busier in the fault-free run"


ASSUMPTION = Assumption(_broken, family="again", settles=FRESH)
