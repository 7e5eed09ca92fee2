"""Watches the checkpoint folder, and logs finished checkpoints, their digests and removals, and the files at the end.

The observations go into the harness's own log, which no node can write, so that the trainer's log can be checked. The
folder is read again and again. A checkpoint is missed if it is removed or changed before a second read.
"""

import contextlib
import pathlib
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from harness.backends.contract import Backend, Verb
from harness.errors import FaultError
from harness.faults.contract import CheckpointPlace
from harness.log import untrusted_files
from harness.log.journal import Journal
from harness.log.vocabulary import NAME_CHARS_MAX
from harness.node.emitter import Emitter
from harness.plan.run_plan import Plan
from harness.run.beside_saves import beside_the_saves, holding_tensors
from harness.run.indexes import Indexes
from harness.trainers.checkpoints.contract import AUTO, FoundCheckpoint, Listing, list_checkpoints
from harness.trainers.checkpoints.shared import digests
from harness.trainers.checkpoints.shared.checkpoint_folder import ENTRIES_MAX, CheckpointFolder

LOOK_S, LOOK_S_MAX = 0.1, 5.0
REST_FACTOR = 10  # times as long as a look at the folder took, it is left alone
END_S, DIGESTS_END_S = 30.0, 20.0  # after the last node: for the last looks, and for digests in them
PUBLISHED_MAX = 10_000  # events of one job
LISTED_MAX = 500_000  # tensors that are told one by one, of one job
LEFT_MAX = 100
BESIDE_MAX = 1000
_Stamp = tuple[tuple[str, int, int], ...]


def hidden(plan: Plan, backend: Backend) -> str | None:
    """Returns why the checkpoint store of this job cannot be seen at all, or `None` if it can."""
    if plan.workload.checkpoint.store != "directory":
        return f"checkpoints go to a store of their own ({plan.workload.checkpoint.store}), which ends with the job"
    lacks = [ways.get(Verb.FILES) for ways in backend.lacks().values()]
    if lacks and all(lacks):
        return f"the nodes of {backend.name} do not save into the run's folder: {lacks[0]}"
    return None


class Publications:
    """Watches the checkpoint folder. Logs each checkpoint that is finished and has not changed between two reads."""

    def __init__(
        self,
        journal: Journal,
        saved: CheckpointPlace,
        emit: Emitter,
        run_id: str,
        why_hidden: str | None = None,
        folders: Sequence[str] = (),
    ):
        """`folders` holds all folders of the run that nodes may write."""
        self._run_dir, self._saved, self._emit, self._why_hidden = journal.run_dir, saved, emit, why_hidden
        self._run_id, self._folders = run_id, folders
        self._place = CheckpointFolder(self._run_dir, saved.folder)
        self._listing = Listing(AUTO, ())
        self.indexes = Indexes()
        self._noted: dict[str, tuple[_Stamp, FoundCheckpoint]] = {}
        self._first: dict[str, tuple[_Stamp, float]] = {}  # finished, with the begin of the last look before
        self._looked_s = time.monotonic()  # begin of the look before
        self._settled = False  # all that the last look showed is noted
        self._published = self._listed = 0
        self._unseen = set[str]()
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._digests_until_s = self._until_s = float("inf")

    def begin(self) -> None:
        """Starts a thread that reads the folder. If the harness cannot see the folder, logs the reason instead."""
        if self._why_hidden:
            self._cannot_see(self._why_hidden)
            return
        self._thread = threading.Thread(target=self._watch, name="publications", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Logs the folder's final state, after all nodes have ended. Takes at most `END_S` seconds."""
        if self._thread is None:
            return
        now_s = time.monotonic()
        self._digests_until_s, self._until_s = now_s + DIGESTS_END_S, now_s + END_S
        self._over.set()
        self._thread.join(END_S)
        if self._thread.is_alive():
            self._cannot_see(f"the last look at {self._saved.folder}/ was not done after {END_S:g} s")

    def _watch(self) -> None:
        try:
            rest_s = 0.0
            while not self._is_over_after(rest_s):
                rest_s = self.look()
            for _ in range(2):
                self.look()
            self.tell_what_is_left()
        except Exception as error:  # whatever a node wrote there: the job goes on
            self._cannot_see(f"looking at {self._saved.folder}/ failed: {type(error).__name__}: {error}")

    def _is_over_after(self, rest_s: float) -> bool:
        until_s = time.monotonic() + rest_s
        while (left_s := until_s - time.monotonic()) > 0:
            if self._over.wait(min(left_s, LOOK_S)):
                return True
            self.indexes.look_again(self._place)
        return self._over.is_set()

    def look(self) -> float:
        """Reads the folder once, and logs changes. Returns how many seconds to wait before the next read."""
        begin_s = looked_s = time.monotonic()
        with contextlib.suppress(OSError, FaultError, ValueError):
            before, self._place = self._place, CheckpointFolder.look(self._run_dir, self._saved.folder)
            if self._place != before or not self._settled:
                self._settled = False
                self._listing = list_checkpoints(self._place, self._saved.layout)
                looked_s = time.monotonic()
                self.indexes.note(self._place, self._listing)
                self._note_all(before)
            self._looked_s = begin_s
        return min(max(LOOK_S, REST_FACTOR * (looked_s - begin_s)), LOOK_S_MAX)

    def tell_what_is_left(self) -> None:
        found = self._listing.checkpoints
        if self._place.files and not found and not self._published:
            self._cannot_see(f"{self._saved.folder}/ holds files, and none looks like a checkpoint that is known")
        left = [
            {"path": each.path, "whole": self._is_whole(each), "bytes": self._size(each)} | _step(each)
            for each in found[:LEFT_MAX]
        ]
        self._tell("checkpoint.left", checkpoints=left, count=len(found), layout=self._listing.layout)
        with contextlib.suppress(OSError, FaultError):  # then nothing is known of the files beside them
            beside = beside_the_saves(self._run_dir, self._folders, self._listing, self._run_id)
            held = list(holding_tensors(self._run_dir, beside, self._run_id, self._digests_until_s))
            told = {"holding_tensors": [each | {"file": _shown(each["file"])} for each in held]} if held else {}
            self._tell("files.left", files=list(map(_shown, sorted(beside)[:BESIDE_MAX])), count=len(beside), **told)

    def _note_all(self, before: CheckpointFolder) -> None:
        first, self._first = self._first, {}
        for found in reversed(self._listing.finished):
            stamp = _stamp(self._place, found.files)
            same = first.get(found.path, ((), 0))[0] == stamp
            self._first[found.path] = first[found.path] if same else (stamp, self._looked_s)
            noted = self._noted[found.path][0] if found.path in self._noted else ()
            if stamp == _stamp(before, found.files) and not set(stamp) <= set(noted):  # fewer: it is being removed
                with contextlib.suppress(OSError, FaultError):
                    self._note(found, stamp)
        for path, (stamp, found) in list(self._noted.items()):
            if not any(file in place.sizes for file, _, _ in stamp for place in (before, self._place)):
                del self._noted[path]
                self._tell("checkpoint.removed", path=path, **_step(found))
        for path in sorted(set(self._place.unreadable) & set(before.unreadable)):
            self._cannot_see("the harness may not read it", path)
        if self._place.is_full:
            self._cannot_see(f"{self._saved.folder}/ holds {ENTRIES_MAX} files or more")
        self._settled = self._place == before

    def _note(self, found: FoundCheckpoint, stamp: _Stamp) -> None:
        held = self._content(found) if time.monotonic() < self._digests_until_s else {}
        if any(_changed(self._run_dir, entry) for entry in stamp):
            return
        self._noted[found.path] = stamp, found
        self._published += 1
        if self._published > PUBLISHED_MAX:
            self._cannot_see(f"after {PUBLISHED_MAX} checkpoints, further ones are not noted")
            return
        told = {"path": found.path, "layout": self._listing.layout, "bytes": self._size(found)}
        looked_ns = round(self._first[found.path][1] * 1e9)
        self._tell("checkpoint.published", **told, looked_ns=looked_ns, **_step(found), **held)

    def _content(self, found: FoundCheckpoint) -> dict[str, Any]:
        content = digests.content(self._place, found.files)
        told: dict[str, Any] = {"sha256": content.sha256} | ({"sampled": True} if content.sampled else {})
        if content.tensors is None:
            return told
        told |= {"tensors": content.of_tensors, "tensor_count": len(content.tensors)}
        told["tensor_bytes"] = sum(each.size for each in content.tensors)
        told["zero_bytes"] = sum(each.size for each in content.tensors if each.zero)
        self._listed += len(content.listed)
        return told | ({"tensor_digests": content.listed} if self._listed <= LISTED_MAX else {})

    def _is_whole(self, found: FoundCheckpoint) -> bool:
        noted = self._noted[found.path][0] if found.path in self._noted else ()
        return found.whole and all(path in self._place.sizes for path, _, _ in noted)

    def _size(self, found: FoundCheckpoint) -> int:
        return sum(self._place.sizes.get(path, 0) for path in found.files)

    def _cannot_see(self, why: str, path: str | None = None) -> None:
        if why not in self._unseen:
            self._unseen.add(why)
            self._emit("checkpoint.unseen", why=why, **({"path": path} if path else {}))

    def _tell(self, event: str, **fields: Any) -> None:
        if time.monotonic() < self._until_s:
            self._emit(event, **fields)


def _shown(name: str) -> str:
    return name.encode(errors="backslashreplace").decode()[:NAME_CHARS_MAX]


def _step(found: FoundCheckpoint) -> dict[str, int]:
    return {} if found.step is None else {"step": found.step}


def _stamp(place: CheckpointFolder, files: Iterable[str]) -> _Stamp:
    return tuple((path, place.sizes.get(path, -1), place.changed_ns(path)) for path in files)


def _changed(run_dir: pathlib.Path, entry: tuple[str, int, int]) -> bool:
    path, size, changed_ns = entry
    status = untrusted_files.status_of(run_dir, path)
    return status is None or (status.st_size, status.st_mtime_ns) != (size, changed_ns)
