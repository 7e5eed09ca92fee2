"""Does every rank compute with its part of the batch: no sample fewer, none twice?

A sampler that gives a rank the wrong samples changes what is learned, and no error says so. Each rank tells what it has
really read along with its loss. All ranks compare that with the batch before the update, so a wrong batch never reaches
the weights: all go back to the newest checkpoint and do those steps again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.events import Emitter
from reference_trainer.data import Batch, share
from reference_trainer.replicas import Setback


def tally(indices: NDArray[np.int64]) -> tuple[float, float]:
    """How many different samples these are, and the sum of their numbers: both exact up to 2^53."""
    return float(len(np.unique(indices))), float(indices.sum())


def compare(step: int, batch: Batch, tallies: Sequence[tuple[float, float]], emit: Emitter, rank: int) -> None:
    """`tallies`: one a rank. Raises `Setback` where a rank did not read its part of the batch; rank 0 says which."""
    wrong = list(_wrong(batch, tallies))
    if not wrong:
        return
    why = f"at step {step} {'; '.join(detail for _, detail in wrong)}"
    for suspect, detail in wrong if rank == 0 else ():
        emit("anomaly", kind="data_skew", detail=f"at step {step} {detail}", at_step=step, suspect=suspect)
    if rank == 0:
        emit("diagnosis", kind="bad-data", who=[{"rank": each} for each, _ in wrong], decision="roll-back", why=why)
    raise Setback(why)


def _wrong(batch: Batch, tallies: Sequence[tuple[float, float]]) -> Iterator[tuple[int, str]]:
    for rank, told in enumerate(tallies):
        asked = batch.indices[share(len(batch.indices), rank, len(tallies))]
        if told != tally(asked):
            other = " other" if told[0] == len(asked) else ""
            part = f"its part of the batch has {len(asked)}"
            yield rank, f"rank {rank} read {told[0]:.0f}{other} different samples; {part}"
