"""Each step consumes the same samples as without a fault, except samples that the scenario allows to repeat or skip."""

from dataclasses import replace

import numpy as np

from harness.evidence.losses import Curve
from harness.judge.facts.alarms import LeftOut
from harness.judge.facts.analysis import NO_BOUND
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.verdict import Ground, Kind
from harness.units import counted


def breaches(evidence: Analysis) -> Breaches:
    comparison, consumed, bounds = evidence.same_work, evidence.consumed, evidence.continuity
    if bounds is None or bounds.samples == "reported" or comparison is None:
        return
    if consumed is not None:
        steps, first = (0 if bounds.moves_samples else consumed.moved), consumed.first_moved
    else:
        mine, other = comparison.run, moved_on(comparison.fault_free, evidence.left_out)
        differ = (mine.digest != other.digest) & (mine.digest != 0) & (other.digest != 0)
        told = (mine.first >= 0) & (other.first >= 0) & (mine.count >= 0) & (other.count >= 0)
        differ |= told & ((mine.first != other.first) | (mine.count != other.count)) & (not bounds.moves_samples)
        steps, first = int(differ.sum()), next(iter(comparison.step[differ].tolist()), None)
    if steps:
        text = f"{counted(steps, 'step')} consumed other samples than the fault-free run"
        yield breach(f"{text}, first at step {first}", grounds=[Ground(Kind.LOSSES), Ground(Kind.ORDER)])


def moved_on(fault_free: Curve, left_out: LeftOut) -> Curve:
    """Returns the fault-free run's values by step, with its sample positions moved past the samples that the judged run
    was allowed to leave out. Sets a step's sample digest to 0 (unknown) if no batch of the fault-free run begins at the
    step's moved position."""
    if not left_out.accepted or not len(fault_free) or (fault_free.first < 0).any():
        return fault_free
    first, order = left_out.moved(fault_free.first), np.argsort(fault_free.first)
    place = order[np.searchsorted(fault_free.first, first, sorter=order).clip(max=len(order) - 1)]
    known = fault_free.first[place] == first
    return replace(fault_free, first=first, digest=np.where(known, fault_free.digest[place], 0))


def nothing(evidence: Analysis) -> str:
    bounds, why = evidence.continuity, evidence.consumed.why if evidence.consumed else ""
    if bounds is None or bounds.samples == "reported":
        return NO_BOUND
    return why or evidence.changed() * bool(evidence.new_work())


GUARANTEE = Guarantee(breaches, rests_on=("positions",), nothing=nothing)
