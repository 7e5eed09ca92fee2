"""Whoever starts the job again knows of each save.

A worker of torchrun looks for saves by itself. A controller that starts workers, as Ray's, keeps a list of saves, and
asks its workers for new ones once a second: it does not know of a save that came a moment before the fault.
"""

from harness.judge.assumption import Analysis, Assumption, Ground, Kind, Spoils
from harness.judge.thresholds import LISTED_NS
from harness.units import format_duration


def _not_listed(evidence: Analysis, ground: Ground) -> str:
    """Explains a save that was passed over, by a strike soon after it. Torchrun leaves logs of launchers."""
    since = ground.since or 0
    strikes = [at for fault in evidence.run.faults if fault.kills for at in (fault.injected, *fault.strikes) if at]
    after = min((at - since for at in strikes if at >= since), default=LISTED_NS)
    if after >= LISTED_NS or evidence.run.launchers:
        return ""
    return f"the fault struck {format_duration(after)} after that, and whoever restarts it may not have known the save"


SETTLES = f"Strike more than {LISTED_NS // 10**9} s after a save; where saves come more often, save less often"
ASSUMPTION = Assumption(spoils=(Spoils(Kind.LISTED, _not_listed, SETTLES),))
