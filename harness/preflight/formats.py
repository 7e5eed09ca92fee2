"""What a file of a save says of itself: which tensors it holds and where, and what of that cannot be true.

Read from headers, directories and pickles alone, each with a bound; nothing is unpickled. What is missing in a file, or
does not fit together, is *wrong*; what is not looked into is *unclear*.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

import msgspec

from harness.preflight import pickles
from harness.preflight.pickles import Made, TooLarge, fields
from harness.trainers.checkpoints.shared.archives import DIRECTORY_BYTES_MAX
from harness.trainers.checkpoints.shared.names import STEP_MAX
from harness.trainers.checkpoints.shared.pickled import KEYS
from harness.trainers.checkpoints.shared.torch_files import SUFFIXES

HEADER_BYTES_MAX = JSON_BYTES_MAX = 16 * 2**20  # the names of 150,000 tensors
METADATA = ".metadata"
OF_TORCH = (".pt", ".pth", ".ckpt")  # of SUFFIXES those that nothing else has
WORDS_MAX = 200
_PK = b"PK\x03\x04"
_LOCAL_HEADER_BYTES = 30
# Bytes of one number, and what numpy calls it where it may be infinite.
_NUMBERS = {
    name: (size, number)
    for size, number, all_names in (
        *((8, "f8", "Double F64"), (4, "f4", "Float F32"), (2, "f2", "Half F16"), (2, "bf16", "BFloat16 BF16")),
        *((8, "", "Long ComplexFloat I64 U64"), (4, "", "Int I32 U32"), (2, "", "Short I16 U16")),
        (1, "", "Char Byte Bool Untyped BOOL U8 I8 F8_E4M3 F8_E5M2"),
    )
    for name in all_names.split()
}


class Span(NamedTuple):
    """A tensor; without a name, what lies between two. `number`: what it is made of, as numpy calls it."""

    name: str
    start: int
    end: int
    crc32: int | None = None
    number: str = ""


@dataclass
class Inside:
    """`wrong`: tensor (or an empty text) and what; `known`: it is of a format that holds tensors."""

    spans: list[Span] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    known: bool = True
    top: Mapping[str, Any] = field(default_factory=dict)  # what its outermost dictionary holds

    @property
    def step(self) -> int | None:
        values = (self.top.get(key) for key in KEYS)
        return next((value for value in values if type(value) is int and 0 <= value <= STEP_MAX), None)

    @property
    def loss(self) -> float | None:
        """Of Hugging Face's Trainer the last one in its history."""
        history = self.top.get("log_history")
        entries = [each for each in (history if isinstance(history, list) else []) if isinstance(each, dict)]
        told = (entry.get("loss") for entry in (*reversed(entries), self.top))
        return next((value for value in told if type(value) is float and math.isfinite(value)), None)


def look(file: IO[bytes], name: str) -> Inside:
    """Raises `OSError`."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(4)
    if not size:
        must = name.endswith((*SUFFIXES, ".safetensors", ".json", ".distcp", METADATA))
        return Inside(wrong=[("", "is empty")] if must else [], known=False)
    if name.endswith(".safetensors"):
        return _safetensors(file, size)
    if name.endswith(".json"):
        return _json(file, size)
    if name.endswith(".distcp"):  # without .metadata nothing tells what lies where
        return Inside()
    if head == _PK:
        return archive(file, 0, size, name.endswith(OF_TORCH))
    if name.endswith(SUFFIXES) and head[:1] == b"\x80":
        return Inside(unclear=["a plain pickle, or torch.save before version 1.6: it has no checksums"])
    if name.endswith(OF_TORCH):
        return Inside(wrong=[("", f"is no file of torch.save: it begins with {head.hex(' ')}")])
    return Inside(unclear=["its format is not known"] if name.endswith(SUFFIXES) else [], known=False)


def _words(error: Exception) -> str:
    return str(error)[:WORDS_MAX]


# safetensors and JSON


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def _safetensors(file: IO[bytes], size: int) -> Inside:
    inside = Inside()
    file.seek(0)
    (header_bytes,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
    if not 2 <= header_bytes <= size - 8:
        inside.wrong.append(("", f"its header should have {header_bytes:,} bytes, and the file has {size:,}"))
        return inside
    if header_bytes > HEADER_BYTES_MAX:
        inside.unclear.append(f"a header of {header_bytes:,} bytes is not looked into")
        return inside
    try:
        told = msgspec.json.decode(file.read(header_bytes), type=dict[str, msgspec.Raw])
        tensors = {name: msgspec.json.decode(raw, type=_Tensor) for name, raw in told.items() if name != "__metadata__"}
    except (ValueError, RecursionError) as error:
        inside.wrong.append(("", f"its header cannot be read: {_words(error)}"))
        return inside
    at = begin = 8 + header_bytes
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        start, end = (begin + offset for offset in tensor.data_offsets)
        each, number = _NUMBERS.get(tensor.dtype, (0, ""))
        if start != at or end < start:
            inside.wrong.append((name, "does not begin where the tensor before it ends"))
        elif end > size:
            inside.wrong.append((name, f"should end at byte {end:,}, and the file has {size:,}"))
        elif each and math.prod(tensor.shape[:64]) * each != end - start:
            inside.wrong.append((name, f"has {end - start:,} bytes, which do not make its shape"))
        else:
            inside.spans.append(Span(name, start, end, None, number))
        at = max(at, end)
    if at < size:
        inside.wrong.append(("", f"its header tells of {at:,} bytes, and the file has {size:,}"))
    return inside


def _json(file: IO[bytes], size: int) -> Inside:
    if size > JSON_BYTES_MAX:
        return Inside(unclear=[f"{size:,} bytes of JSON are not looked into"], known=False)
    file.seek(0)
    try:
        values = json.loads(file.read(JSON_BYTES_MAX))
    except RecursionError:
        return Inside(unclear=["its JSON is nested too deep"], known=False)
    except ValueError as error:
        return Inside(wrong=[("", f"is no JSON: {_words(error)}")], known=False)
    return Inside(top=values if isinstance(values, dict) else {}, known=False)


# torch.save


class _Window:
    """A part of a file, as a file. Refuses what a directory never needs: a damaged one may ask for terabytes."""

    def __init__(self, file: IO[bytes], begin: int, end: int):
        self._file, self._begin, self._end, self._at = file, begin, end, begin

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at - self._begin

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = (self._begin, self._at, self._end)[whence] + offset
        if at < self._begin:
            raise OSError("before its begin")
        self._at = at
        return self.tell()

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._end - self._at)
        size = left if size < 0 else min(size, left)
        if size > DIRECTORY_BYTES_MAX:
            raise TooLarge(f"a directory of {size:,} bytes is not looked into")
        self._file.seek(self._at)
        self._at += size
        return self._file.read(size)


_NO_ARCHIVE = (zipfile.BadZipFile, OSError, ValueError, LookupError, struct.error, NotImplementedError, OverflowError)


def archive(file: IO[bytes], begin: int, end: int, must: bool = True) -> Inside:
    """What `torch.save` wrote into this part of a file. `must`: nothing else may be there."""
    inside = Inside()
    try:
        with zipfile.ZipFile(_Window(file, begin, end)) as opened:
            members = opened.infolist()
        records = {member.filename: _record(file, member, begin, end) for member in members if not member.is_dir()}
        root = next((name for name in records if name.partition("/")[2] == "data.pkl"), "")
        if root:
            _read_records(file, records, root, inside)
        elif must:
            inside.wrong.append(("", "holds no data.pkl"))
        else:
            inside = Inside(unclear=["an archive, and not of torch.save"], known=False)
    except TooLarge as error:
        inside.unclear.append(str(error))
    except _NO_ARCHIVE as error:
        inside.wrong.append(("", f"is cut off or damaged: {_words(error)}"))
    return inside


def _record(file: IO[bytes], member: zipfile.ZipInfo, begin: int, end: int) -> Span:
    """Raises `ValueError` where it is not there. torch never packs one."""
    at = begin + member.header_offset
    file.seek(at)
    head = file.read(_LOCAL_HEADER_BYTES)
    if head[:4] != _PK or len(head) < _LOCAL_HEADER_BYTES or member.compress_type or member.flag_bits & 1:
        raise ValueError(f"{member.filename[:WORDS_MAX]} is not where the directory says, or is packed")
    start = at + _LOCAL_HEADER_BYTES + sum(struct.unpack_from("<HH", head, 26))
    if start + member.file_size > end:
        raise ValueError(f"{member.filename[:WORDS_MAX]} ends behind the end of the file")
    return Span(member.filename[-WORDS_MAX:], start, start + member.file_size, member.CRC)


def _read_records(file: IO[bytes], records: dict[str, Span], root: str, inside: Inside) -> None:
    """Those that are no tensors are checked at once. Raises `TooLarge`, and `ValueError` for a pickle that is none."""
    folder = root.removesuffix("data.pkl") + "data/"
    if not records[root].crc32:  # it was told to write none
        records = {name: record._replace(crc32=None) for name, record in records.items()}
    tensors = {name: record for name, record in records.items() if name.startswith(folder)}
    inside.spans = list(tensors.values())
    for record in (record for name, record in records.items() if name not in tensors):
        if record.end - record.start > pickles.BYTES_MAX:
            raise TooLarge(f"{record.name} is too large to be looked into")
        file.seek(record.start)
        content = file.read(record.end - record.start)
        if record.crc32 not in (None, zlib.crc32(content)):
            inside.wrong.append(("", f"{record.name} in it has another checksum than it was saved with"))
            return
        if record is records[root]:
            tree = pickles.read(content)
    inside.top, named = fields(tree), dict[str, Span]()
    for told in pickles.stored(tree):
        found, (each, number) = tensors.get(folder + told.key), _NUMBERS.get(told.kind, (0, ""))
        if found is None and told.numbers:
            inside.wrong.append((told.path, "is lost: its bytes are missing"))
        elif found is not None and each and found.end - found.start != told.numbers * each:
            inside.wrong.append((told.path, f"has {found.end - found.start:,} bytes, not {told.numbers * each:,}"))
        elif found is not None:  # a second tensor may share the bytes of the first
            named.setdefault(found.name, found._replace(name=told.path or told.key, number=number))
    inside.spans = [named.get(span.name, span) for span in inside.spans]


# Distributed checkpoints

Place = tuple[str, int, int]  # a tensor, its begin, how many bytes


@dataclass
class Shards:
    """What `.metadata` says of the other files of its folder, by file."""

    places: dict[str, list[Place]] = field(default_factory=dict)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)


def shards(metadata: bytes) -> Shards:
    found, pieces = Shards(), Counter[str]()
    try:
        top = fields(pickles.read(metadata))
    except TooLarge as error:
        return Shards(unclear=[str(error)])
    except ValueError as error:
        return Shards(wrong=[("", f"cannot be read: {_words(error)}")])
    tensors, places = top.get("state_dict_metadata"), top.get("storage_data")
    if not isinstance(tensors, Made) or not isinstance(places, Made):
        return Shards(unclear=["it tells no places of tensors"])
    for index, info in places.pairs:
        name, told = _name(fields(index).get("fqn")), fields(info)
        path, offset, length = (told.get(key) for key in ("relative_path", "offset", "length"))
        pieces[name] += 1
        if type(path) is not str or type(offset) is not int or type(length) is not int or min(offset, length) < 0:
            found.wrong.append((name, "its place cannot be read"))
        elif told.get("transform_descriptors"):
            found.unclear.append(f"{name} is packed, and is not looked into")
        else:
            found.places.setdefault(path, []).append((name, offset, length))
    for key, tensor in tensors.pairs:
        chunks, name = fields(tensor).get("chunks"), _name(key)
        needed = len(chunks.items) if isinstance(chunks, Made) else 1
        if pieces[name] < needed:
            found.wrong.append((name, f"has {needed} parts, and the places of {pieces[name]} are told"))
    return found


def _name(told: object) -> str:
    return told[:WORDS_MAX] if isinstance(told, str) else "?"


def shard(file: IO[bytes], places: list[Place]) -> Inside:
    """A file of a distributed checkpoint, part by part: an archive each."""
    size, inside, at = file.seek(0, os.SEEK_END), Inside(), 0
    for name, offset, length in sorted(places, key=lambda place: place[1:]):
        if offset + length > size:
            inside.wrong.append((name, f"should end at byte {offset + length:,}, and the file has {size:,}"))
        elif offset < at:
            inside.wrong.append((name, "lies over another tensor"))
        else:
            at = offset + length
            found = archive(file, offset, at)
            inside.spans += [span._replace(name=name) for span in found.spans]
            inside.wrong += [(name, what) for _, what in found.wrong]
            inside.unclear += found.unclear
    return inside
