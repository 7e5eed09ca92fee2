"""Splits a rank's share of the batch into pieces, each with its own backward pass.

If a piece does not fit into the GPU's memory, all later shares are split into more pieces.
"""

from __future__ import annotations

import sys

from torch import Tensor

from harness.events import Emitter


class Pieces:
    def __init__(self, emit: Emitter, rank: int, number: int):
        self._emit, self._rank, self.number = emit, rank, number

    def of(self, inputs: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Splits inputs and targets (n, …) into `number` pieces along the sequences. The last piece can be smaller."""
        return list(zip(inputs.chunk(self.number), targets.chunk(self.number), strict=True))

    def did_not_fit(self, step: int, sequences: int, may_try_again: bool) -> bool:
        """Splits the batch into pieces of half the size from now on, after a piece did not fit into memory.

        `sequences` is the size of this rank's share of the batch. Returns False if the step cannot be tried again, or
        if pieces cannot be smaller.
        """
        size = -(-sequences // self.number)
        smaller = -(-size // 2)
        number = -(-sequences // smaller)
        text = f"at step {step} on rank {self._rank}: {_pieces(1, size)} did not fit into memory; "
        if size == 1:
            text += "no piece can be smaller"
        elif may_try_again:
            text += f"from now on {_pieces(number, smaller)}; this would fit: --accumulate {number}"
            self.number = number
        else:
            text += f"gradients were being summed already, so this rank ends; try --accumulate {number}"
        goes_on = may_try_again and size > 1
        self._emit("anomaly", kind="out_of_memory", detail=text, at_step=step)
        decision = "ignore" if goes_on else "restart-in-place"
        self._emit("diagnosis", kind="gpu", who=[{"rank": self._rank}], decision=decision, why=text)
        print(text, file=sys.stderr, flush=True)
        return goes_on


def _pieces(number: int, size: int) -> str:
    most = "" if number == 1 else "at most "
    return f"{number} piece{'s' * (number > 1)} of {most}{size} sequence{'s' * (size > 1)}"
