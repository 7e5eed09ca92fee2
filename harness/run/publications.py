"""Watches where a job saves, and notes the digest of each checkpoint once it is finished, and when its bytes change.

Goes into the harness's own log, which no node can write: what a later restore loaded can be held against it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator

from harness.emitter import Emitter
from harness.errors import FaultError
from harness.faults.contract import CheckpointPlace
from harness.log.journal import Journal
from harness.trainers.checkpoints.contract import FoundCheckpoint, Listing, list_checkpoints
from harness.trainers.checkpoints.shared import digests
from harness.trainers.checkpoints.shared.place import CheckpointFolder

LOOK_S = 0.5
_Stamp = tuple[tuple[str, int, int], ...]


class Publications:
    """Looks twice a second: one that is finished and the same in two looks is noted."""

    def __init__(self, journal: Journal, saved: CheckpointPlace, emit: Emitter):
        self._run_dir, self._saved, self._emit = journal.run_dir, saved, emit
        self._place = CheckpointFolder(self._run_dir, saved.folder)
        self._noted: dict[str, _Stamp] = {}
        self._over = threading.Event()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Looks in a thread of its own while this lasts, and once more at the end."""
        thread = threading.Thread(target=self._watch, name="publications", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """One look. A checkpoint that goes away meanwhile is not noted."""
        with contextlib.suppress(OSError, FaultError, ValueError):
            before, self._place = self._place, CheckpointFolder.look(self._run_dir, self._saved.folder)
            if self._place.sizes and self._place == before and self._unnoted():
                listing = list_checkpoints(self._place, self._saved.layout)
                for found in listing.finished:
                    self._note(found, listing)

    def _unnoted(self) -> bool:
        known = {entry for stamp in self._noted.values() for entry in stamp}
        return any(entry not in known for entry in _stamp(self._place, self._place.files))

    def _note(self, found: FoundCheckpoint, listing: Listing) -> None:
        stamp = _stamp(self._place, found.files)
        if self._noted.get(found.path) == stamp:
            return
        self._noted[found.path] = stamp
        told = {"step": found.step} if found.step is not None else {}
        told |= {"sampled": True} if digests.is_sampled(self._place, found.files) else {}
        size = sum(self._place.sizes[path] for path in found.files)
        sha256 = digests.digest(self._place, found.files)
        self._emit("checkpoint.published", path=found.path, layout=listing.layout, bytes=size, sha256=sha256, **told)


def _stamp(place: CheckpointFolder, files: Iterable[str]) -> _Stamp:
    return tuple((path, place.sizes[path], place.changed_ns(path)) for path in files)
