"""A job whose configuration was changed on purpose goes on from the same weights, with the new configuration.

The first step after the change uses the restored weights, before any update: its loss, gradient norm and digest of the
weights must equal the fault-free run's. `loss_continuity` sets the allowed difference of the first step. With `mode:
final`, the loss of the first step may differ by 30 %, or by five times its scatter. A difference above the limit fails
the run if only optimizer settings were changed. After any other change, such as of the code, the limit of `mode: final`
applies, and a larger difference is inconclusive. With `shown_by: loss`, loss and gradient norm of the first step are
not judged.

The fault `hot_update` may name a logged value that must show the change (`shown_by`), such as the learning rate. In 90
% of the steps since the change, the named value must differ from that of the fault-free run beyond rounding. If the
value differs in under 10 % of the steps, the run fails: the job kept the old configuration. If the value differs in 10
to 90 %, or is not logged, the run is inconclusive. Steps in which both runs have the last learning rate of a schedule
show nothing; if no other steps are left, the run is inconclusive. A job that refuses the change is not judged here. If
only optimizer settings were changed, losses must stay finite, and another learning rate must change exact losses.
"""

from collections.abc import Mapping

import numpy as np

from harness.evidence import envelope, losses, ranks
from harness.evidence.losses import WORDS
from harness.judge.facts import tellers
from harness.judge.guarantee import RUN, Analysis, Breaches, Guarantee, breach
from harness.judge.thresholds import CALIBRATING_STEPS, CHANGED_SHARE, NEAR_ZERO, SPREAD, STRETCH_STEPS
from harness.judge.verdict import Ground, Kind
from harness.log.reading import is_told
from harness.node.emitter.abnormal import SPIKE_LOSS_EXCESS, SPIKE_LOSS_SPREADS
from harness.timeline.lineage import NEVER
from harness.timeline.timeline import Steps
from harness.units import counted


def breaches(evidence: Analysis) -> Breaches:
    if evidence.fault_free is not None and not nothing_compared(evidence):
        yield from _other_weights(evidence, evidence.fault_free.steps)
        yield from _late_losses(evidence, evidence.fault_free.steps) if _of_updates_alone(evidence) else ()
    for name in _named(evidence):
        (differ, both, untold), words = _shown(evidence, name), WORDS.get(name, "number of samples")
        since = f"since the change after step {evidence.run.changed_after}"
        if untold:
            yield breach(f"nearly no step {since} shows by its {words} whether it was changed", tellers.UNTOLD)
        elif both >= CALIBRATING_STEPS and differ < CHANGED_SHARE * both:
            text = f"in {both - differ} of {counted(both, 'step')} {since} the {words} is"
            sure = differ <= (1 - CHANGED_SHARE) * both
            yield breach(f"{text} that of the configuration from before", tellers.since_change(sure))


def _named(evidence: Analysis) -> list[str]:
    return sorted({fault.shows for fault in evidence.run.faults if fault.shows and fault.injected is not None})


def _shown(evidence: Analysis, name: str) -> tuple[int, int, bool]:
    usual, last = evidence.fault_free_curve, evidence.run.changed_after
    if not usual:
        return 0, 0, False
    after = evidence.curve.at(np.flatnonzero(evidence.curve.step > last))
    compared = losses.compare(after, usual)
    mine, other, told = (getattr(each, name) for each in (compared.run, compared.fault_free, after))
    mine, other, told = (np.where(each < 0, np.nan, each) if name == "count" else each for each in (mine, other, told))
    same = evidence.comparison is not None and evidence.comparison.identical
    rounding = losses.ulps(other) if name == "lr" or same else losses.rounding(other, losses.terms(evidence.run))
    alike, here = np.abs(mine - other) <= rounding, int(np.isfinite(told).sum())
    ended = alike & (other == usual.lr[-1]) & bool(name == "lr" and (usual.lr > usual.lr[-1]).any())
    due = np.isfinite(other) & ~ended
    few = due.sum() < (CALIBRATING_STEPS if ended.any() else 1) or here < CHANGED_SHARE * due.sum()
    both = due & np.isfinite(mine)
    return int((both & ~alike).sum()), int(both.sum()), bool(few and len(after) >= CALIBRATING_STEPS)


def _late_losses(evidence: Analysis, usual: Steps) -> Breaches:
    mine, other = (both := losses.compare(evidence.curve, losses.surviving(usual))).run, both.fault_free
    told = np.isfinite(other.loss) & (both.step > evidence.run.changed_after)
    odd = both.step[told & is_told(mine.loss) & ~np.isfinite(mine.loss) & (mine.applied != 0)]
    if len(odd) > getattr(evidence.continuity, "max_nonfinite_steps", 0):
        yield breach(f"since the change the loss is no number, last at step {odd[-1]}", tellers.since_change(True))
    moved = losses.unlike(mine.lr, other.lr) & told & (np.round(mine.loss, 4) != mine.loss)
    if moved.sum() >= CALIBRATING_STEPS and not (both.differs["loss"] | both.differs["grad_norm"]).any():
        yield breach("the learning rate changed, but all losses are the fault-free run's", tellers.since_change(False))


def _other_weights(evidence: Analysis, usual: Steps) -> Breaches:
    steps, first = evidence.run.steps, evidence.run.changed_after + 1
    same = evidence.comparison is not None and evidence.comparison.first_divergent_step is None
    known = _of_updates_alone(evidence)
    kind, allowed = _allowed(evidence, first, closely=known and same)
    grounds = [Ground(Kind.LOSSES), Ground(kind, steps=(first,))]
    text, why = f"at step {first}, the first since the change,", "the job did not go on with its weights from before"
    ours, theirs = losses.paired(steps, usual)
    here = steps.step[ours] == first
    if evidence.own_losses and kind in (Kind.BAND, Kind.COURSE):  # these are known of the lowest rank
        here &= steps.rank[ours] == usual.rank[is_told(usual.loss)].min()
    rows, others = ours[here], theirs[here]
    for name, most in allowed.items():
        mine, other = getattr(steps, name)[rows], getattr(usual, name)[others]
        for row in np.flatnonzero(is_told(other) & ~is_told(mine))[:1]:
            yield breach(f"{text} rank {steps.rank[rows[row]]} does not tell its {WORDS[name]}", tellers.UNTOLD)
        for row in np.flatnonzero(losses.distance(mine, other) > most)[:1]:
            values = f"{mine[row]:.17g}, and {other[row]:.17g} in the fault-free run"
            whose = f"the {WORDS[name]} of rank {steps.rank[rows[row]]}"
            yield breach(f"{text} {whose} is {values}: {why}", tellers.since_change(known), grounds=grounds)
    rows, alike = ranks.beside(steps, usual, "weights", first)
    for row in rows[~alike & (steps.step[rows] == first)][:1].tolist() if same else ():
        whose = f"rank {steps.rank[row]} computed with other weights than in the fault-free run"
        yield breach(f"{text} {whose}: {why}", tellers.since_change(known), grounds=grounds[:1])


def _allowed(evidence: Analysis, step: int, closely: bool) -> tuple[Kind, Mapping[str, float]]:
    bounds, named = evidence.continuity, _named(evidence)
    usual = evidence.fault_free_curve or evidence.curve
    row, mode = int(np.searchsorted(usual.step, step)), bounds.mode if bounds and closely else "final"
    close = [name for name in ("loss", "grad_norm") if not {"loss", name}.intersection(named)]
    if bounds and mode in ("exact", "ulp"):
        kind, units = (Kind.LOSSES, bounds.max_ulp) if mode == "ulp" else (Kind.BITS, 0.0)
        return kind, {name: units * float(losses.ulps(getattr(usual, name)[row])) for name in close}
    band = evidence.calibrated if mode == "envelope" else ""
    if isinstance(band, envelope.Envelope):
        return Kind.BAND, {name: float(band.single[name][row]) for name in close}
    told = np.isfinite(usual.loss)
    near = usual.loss[told & (np.abs(usual.step - step) < STRETCH_STEPS)]
    scatter = SPREAD * float(np.median(np.abs(near - np.median(near)))) if len(near) else 0.0
    share = max(SPIKE_LOSS_EXCESS, bounds.max_final_gap / 100 if bounds else 0) * abs(float(usual.loss[row]))
    wide = max(share, SPIKE_LOSS_SPREADS * scatter, NEAR_ZERO * float(np.ptp(usual.loss[told])) if told.any() else 0)
    return Kind.COURSE, {name: wide for name in close if name == "loss"}


def _of_updates_alone(evidence: Analysis) -> bool:
    struck = [fault for fault in evidence.run.faults if fault.injected is not None]
    return all(fault.updates_only if fault.changes else not (fault.drifts or fault.diverges) for fault in struck)


def nothing_compared(evidence: Analysis) -> str:
    last, usual = evidence.run.changed_after, evidence.fault_free
    if last == NEVER:
        return "nothing changed the configuration"
    if evidence.incomparable or usual is None:
        return evidence.incomparable
    if (evidence.own_losses or evidence.own_weights) and {e.size for e in evidence.run.epochs} != {usual.largest_world}:
        return "with another number of ranks, each rank has another part of the model or of the batch"
    done = [each for each in evidence.restarts if each.epoch.first == last + 1]
    restored = {step for each in done for _, step in each.states} or {last + 1 - evidence.run.stride}
    common = np.intersect1d(evidence.curve.step, usual.steps.step)
    told = last + 1 in common and restored == {last}
    return "" if told else "not both runs tell the first step that was done since the change"


def nothing(evidence: Analysis) -> str:
    if why := nothing_compared(evidence):
        return why
    few = [name for name in _named(evidence) if _shown(evidence, name)[1] < CALIBRATING_STEPS]
    return f"too few steps tell the figure {few[0]} after the change" if few else ""


GUARANTEE = Guarantee(breaches, holds_for=(RUN,), nothing=nothing)
