"""Stores a manifest beside an intact checkpoint: the digests of its contents, so that later changes are found."""

from __future__ import annotations

import hashlib
import os
import pathlib
import urllib.parse
from collections.abc import Mapping

import msgspec

from harness.errors import FaultError
from harness.log import untrusted_files
from harness.preflight.file_content import Part

FOLDER = ".chaos-manifests"
BYTES_MAX = 64 * 2**20
SCHEMA = 1
_NAME_CHARS = 120


class Kept(msgspec.Struct):
    """One file in the manifest of a checkpoint. Each part has a name, a begin and an end in bytes, and a digest."""

    bytes: int
    parts: list[tuple[str, int, int, str]]

    @property
    def covers(self) -> bool:
        ends = [0, *(end for _, _, end, _ in self.parts)]
        joined = all(before == start < end for before, (_, start, end, _) in zip(ends, self.parts, strict=False))
        return joined and ends[-1] == self.bytes


class Manifest(msgspec.Struct):
    schema: int
    kept_at_s: float  # since 1970
    files: dict[str, Kept]  # by path, from where the save lies


def write(root: pathlib.Path, save: str, at_s: float, files: Mapping[str, list[Part]]) -> None:
    """Writes the manifest of a checkpoint. Raises `FaultError` or `OSError` if the manifest cannot be written."""
    kept = {}
    for file, parts in files.items():
        spans = [(part.span.name, part.span.start, part.span.end, part.sha256) for part in parts]
        kept[file] = Kept(spans[-1][2] if spans else 0, spans)
    content, place = msgspec.json.encode(Manifest(SCHEMA, at_s, kept)), _place(save)
    if len(content) > BYTES_MAX:
        raise FaultError("it has too many tensors")
    untrusted_files.make_folder(root, place.rpartition("/")[0])
    untrusted_files.replace(root, place, content)


def read(root: pathlib.Path, save: str) -> Manifest | None:
    """Reads the manifest of a checkpoint, and returns `None` if there is no manifest. Raises `ValueError` for an
    unreadable manifest."""
    try:
        found = msgspec.json.decode(untrusted_files.read(root, _place(save), BYTES_MAX), type=Manifest)
    except FileNotFoundError:
        return None
    except (OSError, FaultError, ValueError, RecursionError) as error:
        raise ValueError(f"its manifest cannot be read: {str(error)[:200]}") from error
    if found.schema != SCHEMA or not all(each.covers for each in found.files.values()):
        raise ValueError("its manifest is of another version, or does not cover its files")
    return found


def names_in(root: pathlib.Path, folder: str) -> list[str]:
    """Returns the names of the checkpoints in `folder` that have a manifest. Raises `OSError` or `FaultError` if
    reading fails."""
    with untrusted_files.opened_folder(root, f"{folder}/{FOLDER}" if folder else FOLDER) as opened:
        return [urllib.parse.unquote(file.rpartition("-")[0]) for file in os.listdir(opened) if file.endswith(".json")]


def _place(save: str) -> str:
    folder, _, name = save.rpartition("/")
    raw = name.encode(errors="surrogateescape")
    file = f"{urllib.parse.quote(raw, safe='=')[:_NAME_CHARS]}-{hashlib.sha256(raw).hexdigest()[:16]}.json"
    return "/".join(part for part in (folder, FOLDER, file) if part)
