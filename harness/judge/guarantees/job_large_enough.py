"""The job does no step with fewer ranks than it needs.

A process group that does steps is never smaller than the scenario's `min_nodes` allows.
"""

import numpy as np

from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.units import counted


def breaches(evidence: Analysis) -> Breaches:
    run, least = evidence.run, evidence.run.planned_size.min_world_size or 0
    stepped = np.bincount(run.progress.epoch, minlength=len(run.epochs)) > 0
    for epoch, steps in zip(run.epochs, stepped, strict=True):
        if epoch.size < least and steps:
            yield breach(f"the job went on with {counted(epoch.size, 'rank')}; it needs at least {least}")


GUARANTEE = Guarantee(breaches, needs_steps=False)
