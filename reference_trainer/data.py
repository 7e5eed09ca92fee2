"""The data: which bytes, in which order, and which part of it is whose.

The order is a pure function of (seed, step). It knows nothing of ranks, so a job that shrinks, grows or restarts
sees every sample exactly once, in the same order: the data cursor of a checkpoint is its step, nothing more.
"""

from __future__ import annotations

import functools
import hashlib
import pathlib
import sysconfig
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reference_trainer.options import BadInput


@dataclass(frozen=True)
class Corpus:
    """The training text. `digest` is the SHA-256 of all its bytes, which tells one corpus from another."""

    tokens: NDArray[np.uint8]
    digest: str
    source: str


@functools.cache
def load_corpus(path: str | None) -> Corpus:
    """The text at `path` (a file, or a folder of files), or the source of Python's standard library.

    Cached, so that a launcher that forks its workers reads it once for all of them. Raises `BadInput` when
    there is nothing to read.
    """
    root = pathlib.Path(path) if path else pathlib.Path(sysconfig.get_path("stdlib"))
    if not root.exists():
        raise BadInput(f"--data {root}: no such file or folder")
    if root.is_file():
        files = [root]
    else:
        files = sorted(file for file in root.glob("**/*" if path else "*.py") if file.is_file())
    text = b"".join(file.read_bytes() for file in files)
    if not text:
        raise BadInput(f"--data {root}: not a single byte to train on")
    return Corpus(np.frombuffer(bytearray(text), dtype=np.uint8), hashlib.sha256(text).hexdigest(), str(root))


def share(count: int, rank: int, world_size: int) -> slice:
    """The part of `count` samples that is this rank's: contiguous, and as equal as possible.

    >>> [share(8, rank, 3) for rank in range(3)]
    [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
    """
    quotient, rest = divmod(count, world_size)
    start = rank * quotient + min(rank, rest)
    return slice(start, start + quotient + (rank < rest))


@dataclass(frozen=True)
class Batch:
    """The global batch of one step.

    `indices` are sample numbers, (global_batch,); `first` is the position of the first one in the endless shuffled
    order; `digest` names the whole batch, the same on every rank.
    """

    indices: NDArray[np.int64]
    first: int

    @property
    def digest(self) -> str:
        return hashlib.blake2b(self.indices.astype("<i8").tobytes(), digest_size=8).hexdigest()


class Samples:
    """Windows of `context` bytes and their successors, in an order that only `seed` decides."""

    def __init__(self, corpus: Corpus, context: int, global_batch: int, seed: int):
        self._tokens = torch.from_numpy(corpus.tokens)
        self._context = context
        self._global_batch = global_batch
        self._seed = seed
        self.left_out: list[tuple[int, int]] = []  # places in the order, as (first, count): sorted, and not consumed
        self.count = (len(corpus.tokens) - 1) // context
        if self.count < 1:
            raise BadInput(f"{corpus.source}: {len(corpus.tokens)} bytes; one sample alone needs {context + 1}")
        self._shuffled = functools.lru_cache(maxsize=2)(self._shuffle)  # a batch may straddle two epochs

    def _shuffle(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng([self._seed, epoch]).permutation(self.count)

    def batch(self, step: int) -> Batch:
        """The global batch of `step`; the first step is 1."""
        first = (step - 1) * self._global_batch
        for begin, count in self.left_out:
            first += count if first >= begin else 0
        positions = range(first, first + self._global_batch)
        indices = [self._shuffled(position // self.count)[position % self.count] for position in positions]
        return Batch(np.array(indices, dtype=np.int64), first)

    def read(self, indices: NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples, each (len(indices), context) int64."""
        starts = torch.from_numpy(indices * self._context)
        windows = self._tokens[starts[:, None] + torch.arange(self._context + 1)].long().to(device)
        return windows[:, :-1], windows[:, 1:]
