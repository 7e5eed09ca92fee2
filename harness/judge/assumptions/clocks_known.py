"""Each measured duration is further from its bound than the uncertainty of the hosts' clocks.

If a log claims to use the harness's clock, the wall times in the log must match the harness's wall times.
"""

from harness.judge.assumption import Analysis, Assumption, Ground, Kind, Spoils
from harness.judge.verdict import Figure
from harness.units import format_duration


def _clocks(evidence: Analysis, ground: Ground) -> str:
    figure = ground.of
    if not isinstance(figure, Figure) or not figure.is_over or abs(figure.value - ground.bound) >= figure.margin:
        return ""
    return f"the clocks are only known to within {format_duration(evidence.run.uncertainty_ns)}"


SETTLES = "Let NTP or PTP keep the clocks of the hosts, or allow a larger bound"
ASSUMPTION = Assumption(spoils=(Spoils(Kind.DURATION, _clocks, SETTLES, alone=True, either_way=True),), order=8)
