"""Parses the indices of the samples that each step consumed, as the trainer logged them, and stores them as columns.

The trainer logs runs (series) of indices: `[first, count]` or `[first, count, stride]` stands for `count` indices from
`first` on, each larger by `stride` (1 if not given).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from harness.log.vocabulary import RUNS_MAX, SAMPLE_MAX, SAMPLES_MAX

Ints = npt.NDArray[Any]
UNTOLD = -1  # in the column of a step that tells no samples
_AT_ONCE = 2**16  # steps that are compared at once: what is looked at is copied
_INT32_MAX = 2**31 - 1
_decoder: msgspec.json.Decoder[list[list[int]] | None] = msgspec.json.Decoder(list[list[int]] | None)


@dataclass(frozen=True)
class Samples:
    """Lists of sample indices, one for each step that logs samples. List `i` is in the rows `offsets[i]` to `offsets[i
    + 1]` (excluded) of `runs`. A row of `runs` is (first, count, stride)."""

    offsets: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    runs: Ints = field(default_factory=lambda: np.zeros((0, 3), np.int32))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def counts(self, numbers: Ints) -> Ints:
        sums = np.concatenate([[0], np.cumsum(self.runs[:, 1], dtype=np.int64)])
        return np.asarray(sums[self.offsets[numbers + 1]] - sums[self.offsets[numbers]])

    def equal(self, mine: Ints, other: Self, theirs: Ints) -> Ints:
        """Returns a boolean array: element `i` tells whether list `mine[i]` equals list `theirs[i]` of `other`."""
        pieces = [slice(at, at + _AT_ONCE) for at in range(0, len(mine), _AT_ONCE)]
        parts = [self._equal(mine[piece], other, theirs[piece]) for piece in pieces]
        return np.concatenate([np.zeros(0, np.bool_), *parts])

    def _equal(self, mine: Ints, other: Self, theirs: Ints) -> Ints:
        length = self.offsets[mine + 1] - self.offsets[mine]
        found = np.asarray(length == other.offsets[theirs + 1] - other.offsets[theirs])
        rows, length = np.flatnonzero(found), length[found]
        left = self.runs[_ranges(self.offsets[mine[rows]], length)]
        right = other.runs[_ranges(other.offsets[theirs[rows]], length)]
        differ = (left != right).any(axis=1)
        found[np.repeat(rows, length)[differ]] = False
        return found

    def expanded(self, numbers: Ints) -> Ints:
        begin, length = self.offsets[numbers], self.offsets[numbers + 1] - self.offsets[numbers]
        first, count, stride = self.runs[_ranges(begin, length)].astype(np.int64).T
        return np.asarray(np.repeat(first, count) + _ranges(np.zeros(len(count), np.int64), count, stride))


def _ranges(begin: Ints, length: Ints, stride: Ints | int = 1) -> Ints:
    """Returns the numbers `begin`, `begin + stride`, … of each range, as one array."""
    place = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    steps = np.repeat(np.broadcast_to(stride, length.shape), length)
    return np.asarray(np.repeat(begin, length) + place * steps)


def read(texts: Sequence[bytes | msgspec.Raw | None]) -> tuple[Ints, Samples]:
    """Parses JSON lists of runs of sample indices. Returns the lists as `Samples`, and for each text the index of its
    list (`UNTOLD` for a text `None`). Raises `ValueError` for a text that is not a list of runs."""
    if not any(texts):
        return np.full(len(texts), UNTOLD, np.int32), Samples()
    numbers, told = list[int](), list[Ints]()
    for text in texts:
        runs = _decoder.decode(text) if text else None
        numbers.append(UNTOLD if runs is None else len(told))
        if runs is not None:
            told.append(checked(runs))
    lengths = [len(runs) for runs in told]
    flat = narrow(np.concatenate([*told, np.zeros((0, 3), np.int64)]))
    return np.array(numbers, np.int32), Samples(np.cumsum([0, *lengths]), flat)


def checked(runs: Sequence[Sequence[int]]) -> Ints:
    """Checks runs of sample indices, and returns a row (first, count, stride) for each run. Raises `ValueError` if a
    run is malformed or too large."""
    if len(runs) > RUNS_MAX:
        raise ValueError(f"{len(runs)} runs; one step has at most {RUNS_MAX}")
    if wrong := set(map(len, runs)) - {2, 3}:
        raise ValueError(f"a run has 2 or 3 integers, not {min(wrong)}")
    try:
        rows = np.array([(*run, 1)[:3] for run in runs], np.int64).reshape(-1, 3)
    except OverflowError:
        raise ValueError("an integer of a run has more than 64 bits") from None
    first, count, stride = rows.T
    if not ((count >= 1) & (count <= SAMPLES_MAX)).all():
        raise ValueError(f"the count of a run must be from 1 to {SAMPLES_MAX}")
    last = first + (count - 1) * stride.astype(np.float64)  # which 64 bits may not hold
    if not ((first >= 0) & (first <= SAMPLE_MAX) & (last >= 0) & (last <= SAMPLE_MAX)).all():
        raise ValueError(f"the indices of a run must be from 0 to {SAMPLE_MAX}")
    if int(count.sum()) > SAMPLES_MAX:
        raise ValueError(f"one step has at most {SAMPLES_MAX} samples of a rank")
    return rows


def narrow(runs: Ints) -> Ints:
    fits = not runs.size or (int(runs.max()) <= _INT32_MAX and int(runs.min()) >= -_INT32_MAX)
    return runs.astype(np.int32) if fits else runs


def joined(parts: Sequence[Samples]) -> Samples:
    """Concatenates the sample lists of several event files. The lists of later files get higher numbers (see
    `renumbered`)."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(part.runs) for part in parts)])
    offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts, strict=False)]
    runs = np.concatenate([np.zeros((0, 3), np.int32), *(part.runs for part in parts)])
    return Samples(np.concatenate([*offsets, starts[-1:]]), runs)


def renumbered(numbers: Ints, base: int) -> Ints:
    """Adds `base`, the number of sample lists in earlier parts of the log, to all list numbers except `UNTOLD`."""
    return np.where(numbers == UNTOLD, UNTOLD, numbers + base).astype(np.int32) if base else numbers
