"""Reads the training data, and decides which samples each rank gets in each step.

The data order is a pure function of (seed, step), whatever the number of ranks. Even a job that shrinks, grows or
restarts sees every sample exactly once, in the same order. A checkpoint needs no data cursor other than its step.

A thread reads batches from the files while the previous step is computed. Each block of data is checked, when it is
read, against the checksum that it had when the job started.
"""

from __future__ import annotations

import bisect
import collections
import functools
import hashlib
import os
import pathlib
import sysconfig
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reference_trainer.options import BadInput

BLOCK_BYTES = 4096  # read and checked as a whole
RETRY_S = 0.2


class BadShard(Exception):
    """Raised if a file of the training data cannot be read, or has changed since the job started."""


@dataclass(frozen=True)
class Shard:
    path: pathlib.Path
    begin: int
    size: int
    sums: tuple[int, ...]

    def read(self, begin: int, end: int) -> bytes:
        """Returns the shard's bytes from `begin` to `end`. Raises `BadShard` if the bytes cannot be read or have
        changed. Opens the shard's file at each call, because a process may hold only few files open."""
        first = begin // BLOCK_BYTES * BLOCK_BYTES
        last = min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, self.size)
        try:
            with open(self.path, "rb", buffering=0) as file:
                blocks = os.pread(file.fileno(), last - first, first)
        except OSError as error:
            raise BadShard(f"shard {self.path}: {error.strerror}") from error
        if len(blocks) < last - first:
            raise BadShard(f"shard {self.path}: shorter than the {self.size} bytes that it had")
        if tuple(_sums(blocks)) != self.sums[first // BLOCK_BYTES : -(-last // BLOCK_BYTES)]:
            raise BadShard(f"shard {self.path}: bytes {first} to {last} are not what they were")
        return blocks[begin - first : end - first]


@dataclass(frozen=True)
class Corpus:
    """The training text, split into files. `digest` is the SHA-256 of the whole text."""

    shards: tuple[Shard, ...]
    digest: str
    source: str

    @property
    def size(self) -> int:
        return self.shards[-1].begin + self.shards[-1].size

    def read(self, begin: int, end: int) -> bytes:
        """Returns the text from `begin` to `end`, which may span several shards. Raises `BadShard` if a shard cannot be
        read or has changed."""
        parts = []
        place = bisect.bisect_right(self.shards, begin, key=lambda shard: shard.begin) - 1
        while begin < end:
            shard = self.shards[place]
            until = min(end, shard.begin + shard.size)
            parts.append(shard.read(begin - shard.begin, until - shard.begin))
            begin, place = until, place + 1
        return b"".join(parts)


def _sums(text: bytes) -> Iterator[int]:
    return (zlib.crc32(text[start : start + BLOCK_BYTES]) for start in range(0, len(text), BLOCK_BYTES))


@functools.cache
def load_corpus(path: str | None) -> Corpus:
    """Returns the text at `path` (a file, or a folder of files), or the source of Python's standard library without a
    path.

    Reads the whole text once, for its checksums. The result is cached, so that forked workers need not read the text
    again. Raises `BadInput` if there is no text to read.
    """
    root = pathlib.Path(path) if path else pathlib.Path(sysconfig.get_path("stdlib"))
    if not root.exists():
        raise BadInput(f"--data {root}: no such file or folder")
    if root.is_file():
        files = [root]
    else:
        files = sorted(file for file in root.glob("**/*" if path else "*.py") if file.is_file())
    digest, shards, begin = hashlib.sha256(), list[Shard](), 0
    for file in files:
        text = file.read_bytes()
        digest.update(text)
        if text:
            shards.append(Shard(file, begin, len(text), tuple(_sums(text))))
        begin += len(text)
    if not shards:
        raise BadInput(f"--data {root}: not a single byte to train on")
    return Corpus(tuple(shards), digest.hexdigest(), str(root))


def share(count: int, rank: int, world_size: int) -> slice:
    """Returns this rank's part of `count` samples. Parts are contiguous, and their sizes differ by at most one sample.

    >>> [share(8, rank, 3) for rank in range(3)]
    [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
    """
    quotient, rest = divmod(count, world_size)
    start = rank * quotient + min(rank, rest)
    return slice(start, start + quotient + (rank < rest))


@dataclass(frozen=True)
class Batch:
    """The global batch of one step.

    `indices` are the sample numbers, with the shape (global_batch,). `first` is the position of the batch's first
    sample in the endless shuffled order. `digest` is a hash of the whole batch, the same on every rank.
    """

    indices: NDArray[np.int64]
    first: int

    @property
    def digest(self) -> str:
        return hashlib.blake2b(self.indices.astype("<i8").tobytes(), digest_size=8).hexdigest()


class Samples:
    """Samples of the text: inputs of `context` bytes each, with the next bytes as targets. `seed` alone decides the
    order of samples."""

    def __init__(self, corpus: Corpus, context: int, global_batch: int, seed: int):
        self._corpus = corpus
        self._context = context
        self._global_batch = global_batch
        self._seed = seed
        self.left_out: list[tuple[int, int]] = []  # places in the order, as (first, count): sorted, and not consumed
        self.count = (corpus.size - 1) // context
        if self.count < 1:
            raise BadInput(f"{corpus.source}: {corpus.size} bytes; one sample alone needs {context + 1}")
        self._shuffled = functools.lru_cache(maxsize=2)(self._shuffle)  # a batch may straddle two epochs

    def _shuffle(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng([self._seed, epoch]).permutation(self.count)

    def batch(self, step: int) -> Batch:
        """Returns the global batch of `step`. The first step is 1."""
        first = (step - 1) * self._global_batch
        for begin, count in self.left_out:
            first += count if first >= begin else 0
        positions = range(first, first + self._global_batch)
        indices = [self._shuffled(position // self.count)[position % self.count] for position in positions]
        return Batch(np.array(indices, dtype=np.int64), first)

    def read(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Returns inputs and targets of these samples, both as int64 of the shape (len(indices), context). Raises
        `BadShard` if a shard cannot be read or has changed."""
        width = self._context + 1
        text = b"".join(self._corpus.read(start, start + width) for start in (indices * self._context).tolist())
        windows = torch.frombuffer(bytearray(text), dtype=torch.uint8).view(len(indices), width).long()
        return windows[:, :-1], windows[:, 1:]


@dataclass(frozen=True)
class Loaded:
    batch: Batch
    indices: NDArray[np.int64]
    inputs: Tensor
    targets: Tensor


class Loader:
    """Loads one rank's part of each batch, in order, from step `first` on. A thread reads `ahead` batches in advance.
    Tries to read an unreadable shard again for `patience_s` seconds, and calls `tell` with a description of the
    problem."""

    def __init__(
        self, samples: Samples, part: slice, first: int, ahead: int, patience_s: float, tell: Callable[[str], None]
    ):
        self._samples, self._part, self._ahead = samples, part, ahead
        self._patience_s, self._tell = patience_s, tell
        self._next = first
        self._coming: collections.deque[Future[Loaded]] = collections.deque()
        self._thread = ThreadPoolExecutor(1, "loader")
        self._closed = threading.Event()
        self.waits_for_shard = False  # a batch that is needed soon cannot be read now

    def take(self) -> Loaded:
        """Waits for the next batch, and returns it. Raises `BadShard` if a shard stays unreadable."""
        while len(self._coming) <= self._ahead:
            self._coming.append(self._thread.submit(self._load, self._next))
            self._next += 1
        return self._coming.popleft().result()

    def close(self) -> None:
        self._closed.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _load(self, step: int) -> Loaded:
        batch = self._samples.batch(step)
        mine = batch.indices[self._part]
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                loaded = Loaded(batch, mine, *self._samples.read(mine))
                self.waits_for_shard = False
                return loaded
            except BadShard as error:
                if time.monotonic() >= deadline or self._closed.is_set():
                    raise BadShard(f"{error}; given up after {self._patience_s:g} s") from error
                if not self.waits_for_shard:
                    self._tell(f"step {step} waits for data: {error}")
                self.waits_for_shard = True
            self._closed.wait(RETRY_S)
