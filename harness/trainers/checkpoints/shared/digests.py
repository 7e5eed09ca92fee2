"""Computes the digest of all files of a checkpoint, and of each tensor in them, in one pass over the bytes.

Only parts of a very large checkpoint are read: at most twice `BYTES_MAX`. The sizes of the files and tensors alone
decide which parts are read, so that the digests of two checkpoints can be compared.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from harness.trainers.checkpoints.shared import formats
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder
from harness.trainers.checkpoints.shared.formats import Extent

BYTES_MAX = 256 * 2**20  # larger ones are sampled
BLOCK_BYTES = 2**20
SAMPLES, SAMPLE_BYTES_MIN, SHARE_MIN = 64, 4096, 4 * 4096
TENSORS_MAX = 20_000  # of one checkpoint: a file of more takes seconds to understand
COUNTER_BYTES_MAX = 16  # a step count, or the state of a GPU's random generator
GENERATORS = (5056, 5056 + 16)  # bytes of the state of torch's random generator on CPUs; with a GPU's behind it
LISTED_MAX = 512
SHORT = 16  # hexadecimal digits that tell one tensor of a checkpoint from the others


@dataclass(frozen=True)
class TensorContent:
    size: int
    sha256: str
    zero: bool  # from end to end

    @property
    def trained(self) -> bool:
        """Returns True if the tensor's size is not that of a step counter or of a random generator's state."""
        return self.size > COUNTER_BYTES_MAX and all(self.size % each for each in GENERATORS)


@dataclass(frozen=True)
class Content:
    """A checkpoint's digests. `tensors` lists trained tensors, the largest first (`None`: unknown format)."""

    sha256: str
    sampled: bool
    tensors: Sequence[TensorContent] | None

    @property
    def of_tensors(self) -> str | None:
        if self.tensors is None:
            return None
        return hashlib.sha256("\n".join(f"{each.size} {each.sha256}" for each in self.tensors).encode()).hexdigest()

    @property
    def listed(self) -> list[str]:
        return [f"{each.size} {each.sha256[:SHORT]}" for each in (self.tensors or ())[:LISTED_MAX]]


def content(place: CheckpointFolder, files: Sequence[str]) -> Content:
    """Computes a checkpoint's digests. Raises `OSError` or `FaultError` if a file cannot be read."""
    known = _spans(place, sorted(files))
    sampled = sum(place.sizes.get(path, 0) for path in files) > BYTES_MAX
    of_tensors = _share(sum(len(spans or ()) for spans in known.values())) if sampled else None
    of_others = _share(sum(len(spans or ()) + 1 for spans in known.values())) if sampled else None
    whole, found = hashlib.sha256(), list[TensorContent]()
    for path, spans in known.items():
        with place.open(path) as file:
            size = file.seek(0, 2)
            whole.update(f"{path}\0{size}\0".encode())
            at = 0
            for start, end in spans or ():
                _add(whole, _parts(file, (at, start), of_others))
                found.append(_tensor(file, (start, end), of_tensors))
                whole.update(found[-1].sha256.encode())
                at = end
            _add(whole, _parts(file, (at, size), of_others))
    trained = sorted((each for each in found if each.trained), key=lambda each: (-each.size, each.sha256))
    is_known = any(spans is not None for spans in known.values())
    return Content(whole.hexdigest(), sampled, trained if is_known else None)


def _spans(place: CheckpointFolder, files: Sequence[str]) -> dict[str, list[Extent] | None]:
    found, left = dict[str, list[Extent] | None](), TENSORS_MAX
    for path in files:
        with place.open(path) as file:
            found[path] = formats.tensors(file, left)
        left -= len(found[path] or ())
        if left < 0:
            return dict.fromkeys(files)
    return found


def _share(parts: int) -> int:
    return max(BYTES_MAX // max(parts, 1), SHARE_MIN)


def _tensor(file: IO[bytes], span: Extent, share: int | None) -> TensorContent:
    found, zero = hashlib.sha256(), True
    for part in _parts(file, span, share):
        found.update(part)
        zero = zero and not part.strip(b"\0")
    return TensorContent(span[1] - span[0], found.hexdigest(), zero)


def _add(digested: "hashlib._Hash", parts: Iterator[bytes]) -> None:
    for part in parts:
        digested.update(part)


def blocks(file: IO[bytes], span: Extent) -> Iterator[bytes]:
    at, end = span
    file.seek(at)
    while at < end and (block := file.read(min(BLOCK_BYTES, end - at))):
        at += len(block)
        yield block


def _parts(file: IO[bytes], span: Extent, share: int | None) -> Iterator[bytes]:
    start, end = span
    if share is None or end - start <= share:
        yield from blocks(file, span)
        return
    samples = min(SAMPLES, share // SAMPLE_BYTES_MIN)
    each = share // samples
    for number in range(samples):
        file.seek(start + number * (end - start - each) // (samples - 1))
        yield file.read(each)
