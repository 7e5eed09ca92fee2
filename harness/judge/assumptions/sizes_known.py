"""Each number and layout of ranks in this run also occurs in a fault-free run, and a resize alone changes no result.

If a job resumes with more or fewer tensor- or pipeline-parallel ranks than before, no value is bit-identical to the
fault-free run's. If a resume gives ranks other samples than before, only the last losses can be judged (`mode: final`).
"""

from harness.judge.assumption import FRESH, Analysis, Assumption, Ground, Kind, Spoils
from harness.timeline.lineage import NEVER
from harness.units import counted


def _sizes_unknown(evidence: Analysis, ground: Ground) -> str:
    sizes = {int(epoch.size) for epoch in evidence.run.epochs if epoch.kept >= epoch.first}
    unknown = set() if isinstance(evidence.envelope, str) else sizes - evidence.envelope.sizes
    return f"no fault-free run had {min(unknown)} ranks" if unknown else ""


def _layout_unknown(evidence: Analysis, ground: Ground) -> str:
    layout = evidence.other_layout
    return f"no fault-free run had its ranks laid out as here: {layout}" if layout else ""


def _resized(evidence: Analysis, ground: Ground) -> str:
    usual, last = evidence.fault_free, max(ground.steps, default=NEVER)
    sizes = {int(epoch.size) for epoch in evidence.run.epochs if epoch.first <= last}
    sizes -= {usual.largest_world} if usual else set()
    return f"{counted(min(sizes), 'rank')} did some of the steps up to there, unlike without a fault" if sizes else ""


SEE = "See what depends on the number of ranks: the global batch, the mean of losses and gradients"
FINAL = "Expect loss_continuity: {mode: final}, which a change of the layout does not spoil"
ASSUMPTION = Assumption(
    spoils=(
        Spoils(Kind.BAND, lambda evidence, _: evidence.resume_alone[1], SEE, alone=True, either_way=True),
        Spoils(Kind.BAND, _sizes_unknown, FRESH),
        *(Spoils(kind, _layout_unknown, FINAL) for kind in (Kind.BAND, Kind.BITS, Kind.COURSE)),
        Spoils(Kind.COURSE, _resized, SEE),
    ),
    order=1,
)
