"""A job whose configuration was changed on purpose goes on with the new configuration.

A fault such as `hot_update` may name a figure of each step that shows the change. The run fails if each step since then
has exactly the fault-free run's figure: the job went on with the configuration from before, and did not say so. A job
that refuses the new configuration does no more steps, and is not judged here.
"""

import numpy as np

from harness.evidence import losses
from harness.evidence.losses import WORDS, bits
from harness.judge.guarantee import RUN, Analysis, Breaches, Guarantee, breach
from harness.judge.thresholds import CALIBRATING_STEPS
from harness.units import counted


def breaches(evidence: Analysis) -> Breaches:
    for name in sorted({fault.shows for fault in evidence.run.faults if fault.shows and fault.injected is not None}):
        alike, steps = _alike(evidence, name)
        if steps >= CALIBRATING_STEPS and alike == steps:
            what = WORDS.get(name, "number of samples")
            text = f"in all {counted(steps, 'step')} since the change after step {evidence.run.changed_after}"
            yield breach(f"{text} the {what} is that of the configuration from before")


def _alike(evidence: Analysis, name: str) -> tuple[int, int]:
    """Returns how many steps after the change have the fault-free run's figure, and how many log the figure."""
    usual, last = evidence.before_change, evidence.run.changed_after
    if usual is None or last is None:
        return 0, 0
    after = evidence.curve.at(np.flatnonzero(evidence.curve.step > last))
    compared = losses.compare(after, losses.surviving(usual.steps))
    mine, other = (getattr(each, name) for each in (compared.run, compared.fault_free))
    told = (mine >= 0) & (other >= 0) if name == "count" else np.isfinite(mine) & np.isfinite(other)
    same = mine == other if name == "count" else bits(mine) == bits(other)
    return int((same & told).sum()), int(told.sum())


def nothing(evidence: Analysis) -> str:
    if evidence.run.changed_after is None:
        return "nothing changed the configuration"
    names = [fault.shows for fault in evidence.run.faults if fault.shows]
    if not names:
        return "the scenario names no figure that shows the change"
    few = [name for name in names if _alike(evidence, name)[1] < CALIBRATING_STEPS]
    return f"too few steps tell the figure {few[0]} after the change" if few else ""


GUARANTEE = Guarantee(breaches, holds_for=(RUN,), nothing=nothing)
