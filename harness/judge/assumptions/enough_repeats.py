"""There are enough fault-free runs to show how much rounding errors change the results."""

from harness.judge.assumption import AGAIN, FRESH, Analysis, Assumption, Ground, Kind, Spoils
from harness.judge.thresholds import ENOUGH
from harness.units import counted


def _few_repeats(evidence: Analysis, ground: Ground) -> str:
    band = evidence.envelope
    if isinstance(band, str) or band.runs >= ENOUGH:
        return ""
    shows = "shows" if band.runs == 1 else "show"
    return f"{counted(band.runs, 'fault-free run')} {shows} how far rounding takes a run, and {ENOUGH} are needed"


def _no_band(evidence: Analysis, ground: Ground) -> str:
    return evidence.envelope if isinstance(evidence.envelope, str) else ""


NO_BAND = Spoils(Kind.BAND, _no_band, FRESH, alone=True, either_way=True)
ASSUMPTION = Assumption(spoils=(NO_BAND, Spoils(Kind.BAND, _few_repeats, f"{AGAIN}: {{run}}")), order=2)
