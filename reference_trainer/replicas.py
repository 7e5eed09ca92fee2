"""Checks that all ranks hold the same weights. Loss and gradient norm cannot show a difference between ranks, because
they are sums over all ranks.

Each rank takes a digest of its weights at the first step after a start, and at every N-th step from step 1 on, so that
runs can be compared. Ranks exchange the digests with the losses, while the gradients are summed. Every rank sees all
digests, so all ranks decide alike. A checkpoint is saved only if all weights agree, so that the newest checkpoint never
holds weights that differ.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from harness.events import Emitter

WORD = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of an element
MODULUS = 2**52  # a digest below it is exact as a 64-bit float, which is what the ranks exchange


class Setback(Exception):
    """Raised by all ranks at once if the training's state is no longer trustworthy."""

    before: int | None = None  # checkpoints of later steps must not be used; `None`: the newest one is good


def digest(model: nn.Module) -> Tensor:
    """Returns the sum over all weight tensors of k times tensor k's bits (as integers), modulo 2^52: a scalar int64.
    One flipped bit always changes the digest, as k times a power of two is no multiple of 2^52 for k below 2^20."""
    with torch.no_grad():
        sums = [each.view(WORD[each.element_size()]).sum(dtype=torch.int64) for each in model.parameters()]
        weights = torch.arange(1, len(sums) + 1, device=sums[0].device)
        return (torch.stack(sums) * weights).sum().remainder(MODULUS)


class Replicas:
    def __init__(self, model: nn.Module, emit: Emitter, rank: int, every: int):
        self._model, self._emit, self._rank, self._every = model, emit, rank, every
        self._first = 0
        self._digest: Tensor | None = None
        self.spent_ns = 0

    def starts_at(self, step: int) -> None:
        self._first = step

    def take(self, step: int) -> None:
        self._digest, self.spent_ns = None, 0
        if self._every and (step == self._first or (step - 1) % self._every == 0):
            begin_ns = time.monotonic_ns()
            self._digest = digest(self._model)
            self.spent_ns = time.monotonic_ns() - begin_ns

    @property
    def mine(self) -> int:
        return 0 if self._digest is None else int(self._digest.item())

    def told(self) -> dict[str, str | int]:
        return {} if self._digest is None else {"weights": f"{self.mine:013x}", "weights_ns": self.spent_ns}

    def compare(self, step: int, digests: Sequence[float]) -> None:
        """Raises `Setback`, which names the wrong ranks, if the `digests` of all ranks' weights differ."""
        drifted = outvoted(digests)
        if drifted is None:
            return
        others = [rank for rank in range(len(digests)) if rank not in drifted]
        detail = f"at step {step} {named(drifted or others)} {'hold' if len(drifted or others) > 1 else 'holds'} "
        undecided = "different weights; no majority says whose are right"
        detail += "other weights than the majority" if drifted else undecided
        if self._rank == others[0]:
            suspects: list[int | None] = [*drifted] or [None]
            for suspect in suspects:
                self._emit("anomaly", kind="replica", detail=detail, at_step=step, suspect=suspect)
            who = [{"rank": rank} for rank in drifted]
            self._emit("diagnosis", kind="corruption", who=who, decision="roll-back", why=detail)
        raise Setback(detail)


def outvoted(digests: Sequence[float]) -> list[int] | None:
    """Returns the ranks whose digest differs from the majority's digest. Returns `[]` if there is no majority, and
    `None` if all digests agree.

    >>> outvoted([7, 7, 7]), outvoted([7, 7, 9]), outvoted([7, 9])
    (None, [2], [])
    """
    if len(set(digests)) == 1:
        return None
    usual, votes = collections.Counter(digests).most_common(1)[0]
    return [rank for rank, each in enumerate(digests) if each != usual] if votes > len(digests) / 2 else []


def named(ranks: Sequence[int]) -> str:
    """Formats ranks as `rank 1`, `ranks 0 and 1`, or `ranks 0, 1 and 2`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
