"""Damages one file of a checkpoint of any layout: makes a damaged copy, renames it into place, and reads it back."""

from __future__ import annotations

import hashlib
import os
import pathlib
import random
import re
import stat
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Literal, get_args

import numpy as np

from harness.errors import FaultError
from harness.log import untrusted_files
from harness.trainers.checkpoints.contract import FoundCheckpoint, Listing
from harness.trainers.checkpoints.shared import formats
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder
from harness.trainers.checkpoints.shared.formats import Extent

PAGE_BYTES = 4096
CHUNK_BYTES = 1 << 20
CHECKSUMS_BYTES_MAX = 16 * 2**20

Part = Literal["tensor", "header", "metadata", "pointer", "any"]
PARTS: dict[str, str] = {
    "tensor": "bytes of tensors",
    "header": "what a file with tensors holds besides them",
    "metadata": "a file without tensors",
    "pointer": "the file or link that names the newest checkpoint",
    "any": "any file of the checkpoint",
}
OfAnyFile = Literal["bit_flip", "zero_page", "truncate", "empty", "missing"]
OfPointers = Literal["stale_latest", "dangling_latest"]
Kind = Literal[OfAnyFile, "mixed_steps", "wrong_manifest", OfPointers, "nan", "exploded"]
OF_POINTERS = get_args(OfPointers)
POISON: Mapping[str, bytes] = {"nan": b"\xff", "exploded": b"\x5b"}  # 0x5b5b5b5b is 6e16; NaN in each format
LARGE = 0.5  # of the largest tensor


@dataclass(frozen=True)
class Damage:
    """The damage to one file of a checkpoint: the file `damaged` replaces `path`, or `path` is deleted if `damaged` is
    missing.

    `path` is relative to the run's folder, and nodes can write it. Only the harness can write `kept` (a copy of the
    original) and `damaged`. `tensor_bytes` is the number of changed bytes that belong to tensors.
    """

    run_dir: pathlib.Path
    path: str
    kept: pathlib.Path
    damaged: pathlib.Path
    expected: int
    part: str = "pointer"
    tensor_bytes: int = 0
    checkpoint: FoundCheckpoint | None = None
    sealed: tuple[Damage, ...] = ()  # files with digests of this file, made right

    def apply(self) -> None:
        if os.path.lexists(self.damaged):
            untrusted_files.move_inside(self.run_dir, str(self.damaged.relative_to(self.run_dir)), self.path)
        else:
            untrusted_files.remove(self.run_dir, self.path)

    def measure(self) -> tuple[int, str]:
        status = untrusted_files.status_of(self.run_dir, self.path)
        if status is None:
            return 1, "files gone"
        if self.kept.is_symlink() or stat.S_ISLNK(status.st_mode):
            changed = fingerprint(self.run_dir, self.path) != fingerprint_of_ours(self.kept)
            return int(changed), "links changed"
        with self.kept.open("rb") as kept, untrusted_files.open_reader(self.run_dir, self.path) as now:
            return _bytes_apart(kept, now), "bytes changed"


@dataclass(frozen=True)
class Order:
    """What to damage: the kind of damage, the part of a checkpoint, and the file (`largest`, `any`, or a pattern)."""

    kind: Kind
    part: Part = "any"
    file: str = "largest"
    dice: random.Random = field(default_factory=lambda: random.Random(0))


def prepare(place: CheckpointFolder, listing: Listing, order: Order, aside: pathlib.Path) -> Damage:
    """Makes a damaged copy of a checkpoint's file in `aside`, a folder of the harness.

    Raises `FaultError` if the checkpoint has no file that can be damaged as `order` says.
    """
    newest = listing.finished[0]
    if order.kind in OF_POINTERS or order.part == "pointer":
        return _of_pointer(place, listing, order, aside)
    if order.kind in POISON:
        order = replace(order, part="tensor")
    path = choose(place, newest, order)
    spans = formats.spans(place, path)
    kept, damaged = aside / "original", aside / "damaged"
    untrusted_files.copy_out(place.root, path, kept)
    if order.kind != "missing":
        source = _older(place, listing, path) if order.kind == "mixed_steps" else path
        untrusted_files.copy_out(place.root, source, damaged)
        _change(damaged, order, _allowed(order.part, spans, kept.stat().st_size))
    expected = bytes_changed(kept, damaged) if damaged.exists() else 1
    if expected == 0:
        raise FaultError(f"{path}: {order.kind} changes nothing there")
    lost = _bytes_changed_in(kept, damaged, spans)
    sealed = _sealed(place, newest, kept, damaged) if order.kind in POISON else ()
    return Damage(place.root, path, kept, damaged, expected, part_of(order.part, spans, lost), lost, newest, sealed)


def part_of(part: Part, spans: Sequence[Extent], tensor_bytes: int) -> str:
    if part != "any":
        return part
    return "tensor" if tensor_bytes else "header" if spans else "metadata"


def choose(place: CheckpointFolder, checkpoint: FoundCheckpoint, order: Order) -> str:
    """Chooses the file of a checkpoint to damage. Raises `FaultError` if no file of the checkpoint fits `order`."""
    files = [path for path in checkpoint.files if place.sizes.get(path) and _holds(place, path, order)]
    if order.file not in ("largest", "any"):
        files = [path for path in files if pathlib.PurePath(path).match(order.file)]
    if not files:
        wanted = f"{order.file!r} with anything in it"
        what = "" if order.part == "any" else f" that holds {PARTS[order.part]}"
        raise FaultError(f"{checkpoint.path}: it has no file {wanted}{what}")
    if order.file == "largest":
        return max(files, key=lambda path: place.sizes[path])
    return order.dice.choice(files)


def _holds(place: CheckpointFolder, path: str, order: Order) -> bool:
    if order.kind == "wrong_manifest":
        return holds_checksum(place.read(path, CHECKSUMS_BYTES_MAX)) and not formats.spans(place, path)
    return order.part == "any" or (order.part == "metadata") != bool(formats.spans(place, path))


def _allowed(part: Part, spans: Sequence[Extent], size: int) -> list[Extent]:
    if part == "tensor":
        return list(spans)
    if part != "header":
        return [(0, size)]
    edges = [0, *(edge for span in spans for edge in span), size]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]


def _older(place: CheckpointFolder, listing: Listing, path: str) -> str:
    newest, *others = listing.finished
    inside, number = path.removeprefix(newest.path), newest.files.index(path)
    for other in others:
        if inside and other.path + inside in place.sizes:
            return other.path + inside
        if len(other.files) == len(newest.files):
            return other.files[number]
    raise FaultError(f"{path}: no older checkpoint has it; mixed_steps needs two checkpoints")


# Pointers


def _of_pointer(place: CheckpointFolder, listing: Listing, order: Order, aside: pathlib.Path) -> Damage:
    if listing.pointer is None:
        raise FaultError("there is no pointer to the newest checkpoint beside the checkpoints")
    path, kept, damaged = listing.pointer.path, aside / "original", aside / "damaged"
    elsewhere = order.kind in OF_POINTERS
    if order.kind == "stale_latest" and len(listing.finished) < 2:
        raise FaultError("stale_latest needs two checkpoints; there is one")
    if path in place.links:
        if not elsewhere and order.kind != "missing":
            raise FaultError(f"{path}: it is a link; of kinds, only missing, stale_latest and dangling_latest fit")
        kept.symlink_to(place.links[path])
        if elsewhere:
            damaged.symlink_to(pathlib.Path(place.links[path]).with_name(_another(listing, order)))
        return Damage(place.root, path, kept, damaged, 1)
    untrusted_files.copy_out(place.root, path, kept)
    if order.kind == "missing":
        return Damage(place.root, path, kept, damaged, 1)
    if elsewhere:
        text = kept.read_text()
        damaged.write_text(text.replace(text.strip().rpartition("/")[2], _another(listing, order, text.strip())))
    else:
        untrusted_files.copy_out(place.root, path, damaged)
        _change(damaged, order, [(0, kept.stat().st_size)])
    return Damage(place.root, path, kept, damaged, bytes_changed(kept, damaged))


def _another(listing: Listing, order: Order, text: str = "") -> str:
    newest, *others = listing.finished
    if order.kind == "stale_latest":
        return str(others[0].step) if text.isdigit() else others[0].name
    return str(10 * int(text) + 1) if text.isdigit() else f"{newest.name}-gone"


# What is done to bytes


def _change(path: pathlib.Path, order: Order, allowed: Sequence[Extent]) -> None:
    match order.kind:
        case "bit_flip":
            _flip(path, order.dice, allowed)
        case "zero_page":
            _zero_page(path, order.dice, allowed)
        case "truncate":
            os.truncate(path, _position(order.dice, allowed))
        case "empty":
            os.truncate(path, 0)
        case "wrong_manifest":
            _wrong_checksum(path, order.dice)
        case "nan" | "exploded":
            _poison(path, POISON[order.kind])


def _position(dice: random.Random, allowed: Sequence[Extent]) -> int:
    place = dice.randrange(sum(end - start for start, end in allowed))
    for start, end in allowed:
        if place < end - start:
            return start + place
        place -= end - start
    raise AssertionError("unreachable")


def _flip(path: pathlib.Path, dice: random.Random, allowed: Sequence[Extent]) -> None:
    with path.open("r+b") as file:
        position = _position(dice, allowed)
        file.seek(position)
        (value,) = file.read(1)
        file.seek(position)
        file.write(bytes([value ^ 1 << dice.randrange(8)]))


def _zero_page(path: pathlib.Path, dice: random.Random, allowed: Sequence[Extent]) -> None:
    pages = [
        (max(start, page * PAGE_BYTES), min(end, (page + 1) * PAGE_BYTES))
        for start, end in allowed
        for page in _some_pages(dice, start // PAGE_BYTES, -(-end // PAGE_BYTES))
    ]
    dice.shuffle(pages)
    with path.open("r+b") as file:
        for start, end in pages:
            file.seek(start)
            if any(file.read(end - start)):
                file.seek(start)
                file.write(bytes(end - start))
                return


def _some_pages(dice: random.Random, first: int, end: int, most: int = 4096) -> Sequence[int]:
    begin = first if end - first <= most else dice.randrange(first, end - most)
    return range(begin, min(end, begin + most))


_CHECKSUM = re.compile(rb"[0-9a-f]{32,}")


def holds_checksum(content: bytes) -> bool:
    return bool(_CHECKSUM.search(content))


def _wrong_checksum(path: pathlib.Path, dice: random.Random) -> None:
    text = path.read_bytes()
    position = dice.choice(list(_CHECKSUM.finditer(text))).start() + dice.randrange(32)
    digit = b"1" if text[position : position + 1] != b"1" else b"2"
    path.write_bytes(text[:position] + digit + text[position + 1 :])


def _poison(path: pathlib.Path, byte: bytes) -> None:
    """Overwrites a file's large tensors with one byte value, and corrects the file's own CRC-32 sums to match."""
    with path.open("r+b") as file:
        tensors = formats.tensors(file) or []
        large = max((end - start for start, end in tensors), default=0) * LARGE
        sums = dict[bytes, bytes]()
        for start, end in ((start, end) for start, end in tensors if end - start >= large):
            file.seek(start)
            before = zlib.crc32(file.read(end - start))
            file.seek(start)
            file.write(byte * (end - start))
            sums[struct.pack("<I", before)] = struct.pack("<I", zlib.crc32(byte * (end - start)))
        for start, end in _allowed("header", tensors, path.stat().st_size):
            file.seek(start)
            header = file.read(end - start)
            for old, new in sums.items():
                header = header.replace(old, new)
            file.seek(start)
            file.write(header)


def _sealed(
    place: CheckpointFolder, newest: FoundCheckpoint, kept: pathlib.Path, damaged: pathlib.Path
) -> tuple[Damage, ...]:
    """Returns changes to other files of the checkpoint that hold the SHA-256 of the damaged file. With these changes,
    no checksum reveals the damage."""
    found = list[Damage]()
    old, new = (str(fingerprint_of_ours(file)).encode() for file in (kept, damaged))
    for path in newest.files:
        if place.sizes.get(path, 0) > CHECKSUMS_BYTES_MAX or formats.spans(place, path):
            continue
        text = place.read(path, CHECKSUMS_BYTES_MAX)
        if old in text:
            original, made = (file.with_name(f"{file.name}-{len(found)}") for file in (kept, damaged))
            untrusted_files.copy_out(place.root, path, original)
            made.write_bytes(text.replace(old, new))
            found.append(Damage(place.root, path, original, made, bytes_changed(original, made), "metadata"))
    return tuple(found)


# Comparing


def fingerprint(run_dir: pathlib.Path, path: str) -> str | None:
    """Returns the SHA-256 of a file's content, the target of a link, or `None` if nothing exists at `path`."""
    status = untrusted_files.status_of(run_dir, path)
    if status is None:
        return None
    if stat.S_ISLNK(status.st_mode):
        return f"link {untrusted_files.link_of(run_dir, path)}"
    with untrusted_files.open_reader(run_dir, path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def fingerprint_of_ours(path: pathlib.Path) -> str | None:
    return fingerprint(path.parent, path.name)


def bytes_changed(one: pathlib.Path, other: pathlib.Path) -> int:
    with one.open("rb") as left, other.open("rb") as right:
        return _bytes_apart(left, right)


def _bytes_apart(left: IO[bytes], right: IO[bytes], span: Extent = (0, sys.maxsize)) -> int:
    count, (at, end) = 0, span
    left.seek(at), right.seek(at)
    while at < end:
        size = min(CHUNK_BYTES, end - at)
        a, b = left.read(size), right.read(size)
        if not a and not b:
            break
        if a != b:
            least = min(len(a), len(b))
            differs = np.frombuffer(a, np.uint8, least) != np.frombuffer(b, np.uint8, least)
            count += abs(len(a) - len(b)) + int(np.count_nonzero(differs))
        at += size
    return count


def _bytes_changed_in(kept: pathlib.Path, damaged: pathlib.Path, spans: Sequence[Extent]) -> int:
    if not damaged.exists():
        return sum(end - start for start, end in spans)
    with kept.open("rb") as left, damaged.open("rb") as right:
        return sum(_bytes_apart(left, right, span) for span in spans)
