"""The program that restarts the job knows of every save.

A worker of torchrun looks for saves by itself. A controller that starts workers, such as Ray's, keeps a list of saves
and asks its workers for new saves once a second. A controller's list may lack a save made less than 2 s before a fault.
A store may not show every save if a fault disturbs the store while a restart looks for saves.
"""

from harness.evidence.by_time import touches
from harness.judge.assumption import Analysis, Assumption, Ground, Kind, Spoils
from harness.judge.thresholds import LISTED_NS
from harness.units import format_duration


def _not_listed(evidence: Analysis, ground: Ground) -> str:
    if isinstance(ground.of, tuple) and touches(evidence.saves.outages, ground.of[0], ground.of[1]):
        return "a fault disturbed the store while the restart looked for checkpoints"
    since = ground.since or 0
    strikes = [at for fault in evidence.run.faults if fault.kills for at in (fault.injected, *fault.strikes) if at]
    after = min((at - since for at in strikes if at >= since), default=LISTED_NS)
    if after >= LISTED_NS or evidence.run.launchers:
        return ""
    return f"the fault struck {format_duration(after)} after that, and whoever restarts it may not have known the save"


SETTLES = f"Strike more than {LISTED_NS // 10**9} s after a save, or save less often; report saves that cannot be read"
ASSUMPTION = Assumption(spoils=(Spoils(Kind.LISTED, _not_listed, SETTLES),))
