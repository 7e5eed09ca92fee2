"""The clocks of the hosts are known more closely than what is measured by them.

Writers that claim the harness's clock agree with it on the wall time.
"""

from __future__ import annotations

from harness.judge.assumption import Assumption, Spoils
from harness.judge.facts.analysis import Analysis
from harness.judge.verdict import Figure, Ground, Kind
from harness.units import format_duration


def _clocks(evidence: Analysis, ground: Ground) -> str:
    figure = ground.of
    if not isinstance(figure, Figure) or not figure.is_over or abs(figure.value - ground.bound) >= figure.margin:
        return ""
    return f"the clocks are only known to within {format_duration(evidence.run.uncertainty_ns)}"


ASSUMPTION = Assumption(
    spoils=(
        Spoils(
            Kind.DURATION,
            _clocks,
            "Let NTP or PTP keep the clocks of the hosts, or allow a larger bound",
            alone=True,
            either_way=True,
        ),
    ),
    order=8,
)
