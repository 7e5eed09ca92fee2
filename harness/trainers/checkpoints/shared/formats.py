"""Reads which tensors and which step a checkpoint's file holds, where the tensors are, and what is damaged.

Only headers, archive directories and pickles are read, up to a size limit; no pickle is executed. Missing or
contradictory parts of a file are called *wrong*, and parts that are not examined *unclear*.
"""

import itertools
import json
import math
import os
import re
import struct
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Annotated, Any, NamedTuple

import msgspec

from harness.errors import FaultError
from harness.trainers.checkpoints.shared import archives, pickles
from harness.trainers.checkpoints.shared.archives import BEGIN, Member, TooLarge
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder
from harness.trainers.checkpoints.shared.names import STEP_MAX
from harness.trainers.checkpoints.shared.pickles import Made, fields

HEADER_BYTES_MAX = JSON_BYTES_MAX = 16 * 2**20  # the names of 150,000 tensors
METADATA = ".metadata"
SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar", ".pkl", ".state", ".checkpoint")  # of files of torch.save
OF_TORCH = (".pt", ".pth", ".ckpt")  # of SUFFIXES those that nothing else has
KEYS = ("global_step", "step", "iteration", "iter_num", "iter", "steps", "global_steps")
WORDS_MAX = 200
TENSORS_MAX = 100_000  # of one file
ENTRIES_A_TENSOR = 16  # an archive of DCP has seven files for one tensor
ALLOWED_BYTES_MAX = 100 * 2**20  # of a header, by safetensors itself
ARCHIVE, SAFETENSORS = "archive", "safetensors"
Extent = tuple[int, int]  # from the first byte up to, not with, the second
Place = tuple[str, int, int]  # a tensor, its begin, how many bytes
STEP_BYTES_MAX, STEP_OPERATIONS_MAX = 4 * 2**20, 10**6  # of what is asked for the step alone, while a job runs
_OLD = b"\x80\x02"  # how a pickle of torch.save before version 1.6 begins
_TENSOR = re.compile(r"(?:^|/)data/[^/]+$")
# Bytes of one number, what numpy calls it where it may be infinite, and what torch and safetensors call it.
_ALL_NUMBERS: tuple[tuple[float, str, str, str], ...] = (
    *((8, "f8", "Double", "F64"), (4, "f4", "Float", "F32"), (2, "f2", "Half", "F16"), (2, "bf16", "BFloat16", "BF16")),
    *((8, "", "Long ComplexFloat", "I64 U64 C64"), (4, "", "Int", "I32 U32"), (2, "", "Short", "I16 U16")),
    *((1, "", "Char Byte Bool Untyped", "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0"), (0.75, "", "", "F6_E2M3 F6_E3M2")),
    (0.5, "", "", "F4"),
)
_OF_TORCH = {name: (size, number) for size, number, names, _ in _ALL_NUMBERS for name in names.split()}
_OF_SAFETENSORS = {name: (size, number) for size, number, _, names in _ALL_NUMBERS for name in names.split()}


class Span(NamedTuple):
    """A tensor's bytes or, without a `name`, the bytes between two tensors. `number` is a numpy type such as `f4`."""

    name: str
    start: int
    end: int
    crc32: int | None = None
    number: str = ""


@dataclass
class Inside:
    """The parsed content of a checkpoint's file. `wrong` holds pairs (tensor or "", problem). `unclear` lists parts
    that were not examined. `known` is True if the file's format can hold tensors."""

    spans: list[Span] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    known: bool = True
    top: Mapping[str, Any] = field(default_factory=dict)  # its outermost dictionary
    places: dict[str, list[Place]] = field(default_factory=dict)  # from `.metadata`: by file of its folder

    @property
    def step(self) -> int | None:
        values = (self.top.get(key) for key in KEYS)
        return next((value for value in values if type(value) is int and 0 <= value <= STEP_MAX), None)

    @property
    def loss(self) -> float | None:
        history = self.top.get("log_history")
        entries = [each for each in (history if isinstance(history, list) else []) if isinstance(each, dict)]
        told = (entry.get("loss") for entry in (*reversed(entries), self.top))
        return next((value for value in told if type(value) is float and math.isfinite(value)), None)


def look(file: IO[bytes], name: str) -> Inside:
    """Parses a checkpoint's file by its format. Raises `OSError` if the file cannot be read."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(4)
    if not size:
        must = name.endswith((*SUFFIXES, ".safetensors", ".json", ".distcp", METADATA))
        return Inside(wrong=[("", "is empty")] if must else [], known=False)
    if name.endswith(".safetensors"):
        return _safetensors(file)
    if name.endswith(".json"):
        return _json(file)
    if name.endswith(f"/{METADATA}"):
        return _metadata(file)
    if name.endswith(".distcp"):  # without .metadata nothing tells what lies where
        return Inside()
    if head == BEGIN:
        return archive(file, 0, size, name.endswith(OF_TORCH))
    if name.endswith(SUFFIXES) and head[:1] == b"\x80":
        return Inside(unclear=["a plain pickle, or torch.save before version 1.6: it has no checksums"])
    if name.endswith(OF_TORCH):
        return Inside(wrong=[("", f"is no file of torch.save: it begins with {head.hex(' ')}")])
    return Inside(unclear=["its format is not known"] if name.endswith(SUFFIXES) else [], known=False)


def step_in(place: CheckpointFolder, path: str) -> int | None:
    """Returns the step in a JSON or `torch.save` file, or `None` if the file is large, damaged or has no step."""
    try:
        with place.open(path) as file:
            if path.endswith(".json"):
                return _json(file).step if place.sizes.get(path, 0) <= STEP_BYTES_MAX else None
            if file.read(4) == BEGIN:
                root = next(each for each in archives.entries(file) if each.name.endswith("data.pkl"))
                file.seek(root.start)
                pickle = file.read(min(root.end - root.start, STEP_BYTES_MAX))
                return Inside(top=fields(pickles.read(pickle, STEP_OPERATIONS_MAX))).step
    except (OSError, FaultError, ValueError, StopIteration):
        pass
    return None


def is_complete(place: CheckpointFolder, path: str) -> bool:
    """Returns True if a file of a known format is complete. Files of other formats count as complete."""
    try:
        with place.open(path) as file:
            kind = _kind(file)
            return archives.is_complete(file) if kind == ARCHIVE else kind is None or not _safetensors(file).wrong
    except (OSError, FaultError):
        return False


def is_of_torch(place: CheckpointFolder, path: str) -> bool:
    return path.endswith(SUFFIXES) or place.read(path, 4).startswith((BEGIN, _OLD))


def tensors(file: IO[bytes], most: int = TENSORS_MAX) -> list[Extent] | None:
    """Returns the byte ranges of a file's tensors (of their storages in files of `torch.save`): sorted and disjoint.

    Returns `None` if the format holds no tensors, or if the file is damaged or has far more than `most` tensors.
    """
    kind = _kind(file)
    if kind is None:
        return None
    if kind == ARCHIVE:
        limit = ENTRIES_A_TENSOR * (most + 1)
        members = list(itertools.islice(archives.entries(file), limit))
        if len(members) == limit or not any(each.name.endswith("data.pkl") for each in members):
            return None  # or it is no archive of torch
        found = sorted((each.start, each.end) for each in members if _TENSOR.search(each.name))
    else:
        inside = _safetensors(file)
        if not inside.spans and (inside.wrong or inside.unclear):
            return None
        found = [(span.start, span.end) for span in inside.spans if span.start != span.end]
    edges = [0, *itertools.chain.from_iterable(found), file.seek(0, os.SEEK_END)]
    return found if edges == sorted(edges) else None  # two that overlap would be read twice


def spans(place: CheckpointFolder, path: str) -> list[Extent]:
    """Returns the byte ranges of a file's tensors, with adjacent ranges joined, or an empty list without tensors."""
    found = list[Extent]()
    try:
        with place.open(path) as file:
            for start, end in tensors(file) or ():
                joined = found.pop()[0] if found and found[-1][1] == start else start
                found.append((joined, end))
    except (OSError, FaultError):
        return []
    return found


def _kind(file: IO[bytes]) -> str | None:
    file.seek(0)
    head = file.read(9)
    if head[:4] == BEGIN:
        return ARCHIVE
    if len(head) == 9 and head[8:] == b"{" and 2 <= struct.unpack("<Q", head[:8])[0] <= ALLOWED_BYTES_MAX:
        return SAFETENSORS
    return ARCHIVE if head[:1] == b"\x80" and archives.is_complete(file) else None  # DCP: a value that is no tensor


def _words(error: Exception) -> str:
    return str(error)[:WORDS_MAX]


# safetensors and JSON


class Index(msgspec.Struct):
    """An index file of Hugging Face, which maps each tensor to the name of the file that holds the tensor."""

    weight_map: Annotated[dict[str, str], msgspec.Meta(min_length=1)]


class File(msgspec.Struct):
    bytes: int
    sha256: str


class Files(msgspec.Struct):
    files: Annotated[dict[str, File], msgspec.Meta(min_length=1)]


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def _safetensors(file: IO[bytes]) -> Inside:
    inside, size = Inside(), file.seek(0, os.SEEK_END)
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
    at, begin, misplaced = 8 + header_bytes, 8 + header_bytes, list[tuple[str, str]]()
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        start, end = (begin + offset for offset in tensor.data_offsets)
        each, number = _OF_SAFETENSORS.get(tensor.dtype, (0, ""))
        inside.spans.append(Span(name, start, end, None, number))
        if start != at or end < start:
            misplaced.append((name, "does not begin where the tensor before it ends"))
        elif end > size:
            misplaced.append((name, f"should end at byte {end:,}, and the file has {size:,}"))
        elif not each:
            inside.unclear.append(f"{name[:WORDS_MAX]} is of a type that is not known, {tensor.dtype[:WORDS_MAX]}")
        elif min(tensor.shape, default=0) < 0 or math.prod(tensor.shape[:64]) != (end - start) / each:
            inside.wrong.append((name, f"has {end - start:,} bytes, which do not make its shape"))
        at = max(at, end)
    if misplaced:
        inside.spans, inside.wrong = [], misplaced + inside.wrong
    if at < size:
        inside.wrong.append(("", f"its header tells of {at:,} bytes, and the file has {size:,}"))
    return inside


def _json(file: IO[bytes]) -> Inside:
    if (size := file.seek(0, os.SEEK_END)) > JSON_BYTES_MAX:
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


def archive(file: IO[bytes], begin: int, end: int, must: bool = True) -> Inside:
    """Reads an archive of `torch.save` in a part of a file. With `must`, an archive without `data.pkl` is an error."""
    inside = Inside()
    try:
        members, behind = archives.members(file, begin, end)
        records = {each.name: each for each in members}
        if behind:
            inside.unclear.append(f"{behind:,} bytes lie behind its end")
        root = next((name for name in records if name.partition("/")[2] == "data.pkl"), "")
        if root:
            _read_records(file, records, root, inside)
        elif must:
            inside.wrong.append(("", "holds no data.pkl"))
        else:
            inside = Inside(unclear=["an archive, and not of torch.save"], known=False)
    except TooLarge as error:
        inside.unclear.append(str(error))
    except ValueError as error:
        inside.wrong.append(("", f"is cut off or damaged: {_words(error)}"))
    return inside


def _read_records(file: IO[bytes], records: Mapping[str, Member], root: str, inside: Inside) -> None:
    folder, tensors = root.removesuffix("data.pkl") + "data/", dict[str, Span]()
    summed = records[root].crc32 != 0  # else it was told to write none
    for name, record in records.items():
        if record.packed:
            raise ValueError(f"{name[:WORDS_MAX]} is packed")
        if name.startswith(folder):
            tensors[name] = Span(name, record.start, record.end, record.crc32 if summed else None)
            continue
        if record.end - record.start > pickles.BYTES_MAX:
            raise TooLarge(f"{name[:WORDS_MAX]} is too large to be looked into")
        file.seek(record.start)
        content = file.read(record.end - record.start)
        if summed and record.crc32 != zlib.crc32(content):
            inside.wrong.append(("", f"{name[:WORDS_MAX]} in it has another checksum than it was saved with"))
            return
        if name == root:
            tree = pickles.read(content)
    inside.top, named = fields(tree), dict[str, Span]()
    for told in pickles.stored(tree):
        found, (each, number) = tensors.get(folder + told.key), _OF_TORCH.get(told.kind, (0, ""))
        if found is None and told.numbers:
            inside.wrong.append((told.path, "is lost: its bytes are missing"))
        elif found is not None and each and found.end - found.start != told.numbers * each:
            inside.wrong.append((told.path, f"has {found.end - found.start:,} bytes, not {told.numbers * each:,}"))
        elif found is not None:  # a second tensor may share the bytes of the first
            named.setdefault(found.name, found._replace(name=told.path or told.key, number=number))
    inside.spans = [named.get(name, span._replace(name=name[-WORDS_MAX:])) for name, span in tensors.items()]


# Distributed checkpoints


def _metadata(file: IO[bytes]) -> Inside:
    found, pieces = Inside(known=False), Counter[str]()
    file.seek(0)
    try:
        top = fields(pickles.read(file.read(pickles.BYTES_MAX + 1)))
    except TooLarge as error:
        return Inside(unclear=[str(error)], known=False)
    except ValueError as error:
        return Inside(wrong=[("", f"cannot be read: {_words(error)}")], known=False)
    tensors, places = top.get("state_dict_metadata"), top.get("storage_data")
    if not isinstance(tensors, Made) or not isinstance(places, Made):
        return Inside(unclear=["it tells no places of tensors"], known=False)
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
