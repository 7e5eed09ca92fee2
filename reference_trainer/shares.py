"""Checks that every rank computes with exactly its part of the batch, without missing or repeated samples.

A sampler that gives a rank the wrong samples changes the training without an error. Each rank sends, with its loss, a
summary of the samples that it has read. All ranks compare the summaries with the batch before the update, so that wrong
samples never change the weights. If samples are wrong, all ranks go back to the newest checkpoint and repeat the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.events import Emitter
from reference_trainer.data import Batch, share
from reference_trainer.replicas import Setback


def tally(indices: NDArray[np.int64]) -> tuple[float, float]:
    """Returns the number of different samples, and the sum of their indices, both exact up to 2^53."""
    return float(len(np.unique(indices))), float(indices.sum())


def compare(step: int, batch: Batch, tallies: Sequence[tuple[float, float]], emit: Emitter, rank: int) -> None:
    """Raises `Setback` if a rank's samples differ from its part of the batch. Rank 0 logs which ranks differ. `tallies`
    holds the result of `tally` on each rank."""
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
