"""Keeps earlier contents of small files beside a job's saves, such as a list of saves.

A job may find its saves by a list in a file. To restart from an earlier save, the job needs the earlier list.
"""

import contextlib
import json
from collections.abc import Mapping

from harness.errors import FaultError
from harness.log import untrusted_files
from harness.trainers.checkpoints.contract import Listing
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder

BYTES_MAX = 2**18  # a larger file beside the saves is a log, or data
FILES_MAX = 32
SAVES_MAX = 10_000
READ_MAX = 64  # texts between two looks at the saves
KEPT = 3  # texts of one file; and saves whose names are looked for in it
_Stamp = tuple[int, int]  # size and time


class Indexes:
    """Remembers earlier contents of small files beside a job's saves, by the newest save named in each content."""

    def __init__(self) -> None:
        self.saves = set[str]()
        self._texts: dict[str, dict[int, bytes]] = {}
        self._stamps: dict[str, _Stamp] = {}
        self._read: list[tuple[str, _Stamp, bytes]] = []  # since the last look at the saves

    def note(self, place: CheckpointFolder, listing: Listing) -> None:
        """Reads small files beside the saves if they have changed. A file's content is kept at the next call if it
        names a finished save and is complete: valid JSON, or unchanged since the first read."""
        self.saves |= {each.name for each in listing.checkpoints[: SAVES_MAX - len(self.saves)]}
        newest = [(each.step, each.name.encode()) for each in listing.finished if each.step is not None][:KEPT]
        for path, stamp, text in self._read:
            named = next((step for step, name in newest if name in text), None)
            if named is not None and (stamp == _stamp(place, path) or _is_whole(path, text)):
                texts = self._texts.setdefault(path, {})
                texts[named] = text
                for step in sorted(texts)[:-KEPT]:
                    del texts[step]
        self._read.clear()
        mine = {file for each in listing.checkpoints for file in each.files}
        beside = [path for path in place.files if path not in mine and place.sizes[path] <= BYTES_MAX]
        for path in beside[:FILES_MAX]:
            self._read_if_changed(place, path, _stamp(place, path))

    def look_again(self, place: CheckpointFolder) -> None:
        """Reads the changed files among those that named a save before, which is faster than listing all saves."""
        for path in self._texts:
            with contextlib.suppress(OSError, FaultError):
                status = untrusted_files.status_of(place.root, path)
                if status is not None and status.st_size <= BYTES_MAX and len(self._read) < READ_MAX:
                    self._read_if_changed(place, path, (status.st_size, status.st_mtime_ns))

    def _read_if_changed(self, place: CheckpointFolder, path: str, stamp: _Stamp) -> None:
        if stamp != self._stamps.get(path):
            self._read.append((path, stamp, place.read(path, BYTES_MAX)))
            self._stamps[path] = stamp

    def naming(self, step: int) -> Mapping[str, bytes]:
        return {path: texts[step] for path, texts in self._texts.items() if step in texts}


def _stamp(place: CheckpointFolder, path: str) -> _Stamp:
    return place.sizes.get(path, -1), place.changed_ns(path)


def _is_whole(path: str, text: bytes) -> bool:
    with contextlib.suppress(ValueError, RecursionError):
        return path.endswith(".json") and bool(json.loads(text))
    return False
