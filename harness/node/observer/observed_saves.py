"""Observes saves of checkpoints: logs when a save begins, and when the checkpoint is complete.

A file with trained state belongs to the checkpoint of the current step. Files in one folder belong to one checkpoint,
unless they hold the same part of the state. A checkpoint counts as complete when a framework says so, or else when
training continues and all files of the checkpoint have their final names.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from harness.node.emitter import STORE_ENV
from harness.node.observer import identity
from harness.node.observer.checkpoint_ledger import Committed, Ledger, Saved
from harness.node.observer.live_state import Live
from harness.node.observer.next_step import Next
from harness.node.observer.watch import Watch

ERROR_CHARS_MAX = 1000
WAITING_MAX = 4  # saves that are looked for in the store at once
IN_VAIN_MAX = 20  # saves that never came there, until none is looked for any more
MEMORY = "memory"  # in place of a path: a buffer
PATHS_MAX = 1000  # told of one checkpoint
_TEMPORARY = re.compile(  # a file's name
    r"^(\.|tmp|temp([._-]|\d|$))|[._-](te?mp|part|partial|incomplete|writing|saving)([._-]|\d|$)|~$", re.IGNORECASE
)


@dataclass(eq=False)
class Save:
    step: int | None
    begun_ns: int
    accumulated: dict[str, int]  # micro-batches of the next step when it was begun
    files: list[str] = field(default_factory=list)
    held: set[int] = field(default_factory=set)  # storages of live state in its files
    holds: set[str] = field(default_factory=set)  # the owners of these storages; none may be left when it is whole
    unwritten: set[str] = field(default_factory=set)  # files that another thread may still be writing
    write_ns: int = 0  # from its begin until its last file was there; 0: that is not known
    begun_s: float = field(default_factory=time.time)  # by the clock of the file systems
    lineages: dict[str, str] = field(default_factory=dict)  # by file, as it was when written
    looks: int = 0  # at the store

    @property
    def may_be_whole(self) -> bool:
        return self.is_there and not any(_TEMPORARY.search(os.path.basename(file)) for file in self.files)

    @property
    def is_there(self) -> bool:
        return not self.unwritten and any(map(os.path.isfile, self.files))


class Saves:
    def __init__(self, watch: Watch, ledger: Ledger, live: Live):
        self.watch, self.ledger, self.live = watch, ledger, live
        self.open: list[Save] = []
        self._beside: list[str] = []  # files without live state, saved since the last step
        self._lock = threading.RLock()
        self._at_exit = False
        self._in_vain = 0
        self._told_of: set[str] = set()  # paths of earlier saves
        self._next = Next(watch, watch.guard("checkpoints")(self.flush))
        watch.after_step(lambda _: self._beside.clear())

    def begin(self, path: str, held: set[int]) -> Save:
        folder = os.path.dirname(path)
        with self._lock:
            for save in self.open:
                if os.path.dirname(save.files[0]) == folder and held and not held & save.held:
                    save.files.append(path)
                    save.unwritten.add(path)
                    save.held |= held
                    save.holds.update(self.live.parts(held))
                    return save
            save = self._begun(path)
            save.held, save.holds, save.unwritten = set(held), set(self.live.parts(held)), {path}
            self.open.append(save)
        self._told("checkpoint.started", save, path=path)
        self._next.expect()
        if not self._at_exit:  # registered late, so that it comes before the last word of the log
            self._at_exit = True
            atexit.register(self.watch.guard("checkpoints")(self.flush))
        return save

    def begin_known(self, path: str) -> Save:
        """Records the start of a save whose framework reports when the checkpoint is complete."""
        save = self._begun(path)
        self._told("checkpoint.started", save, path=path)
        return save

    def _begun(self, path: str) -> Save:
        own = threading.current_thread() is threading.main_thread()  # in another one training goes on meanwhile
        return Save(self.watch.step, time.monotonic_ns(), (own and self.watch.accumulated()) or {}, [path])

    def whole(self, save: Save, path: str) -> None:
        self.written(save, path)
        self._committed(save, path, identity.files_below(path))

    def written(self, save: Save, path: str) -> None:
        """Records that a file of a checkpoint is written. The file's step can later be found by the file's contents."""
        if path in save.unwritten:
            save.unwritten.discard(path)
            save.write_ns = time.monotonic_ns() - save.begun_ns
        lineage = identity.lineage(path)
        save.lineages |= {path: lineage} if lineage else {}
        self.wrote(lineage, save.step, path)
        if save in self.open:
            self._next.expect()

    def buffered(self, lineage: str, held: set[int]) -> None:
        """Records that trained state was saved to a memory buffer, whose contents may become a checkpoint file."""
        self.wrote(lineage, self.watch.step)
        if held and self._store():
            save = self._begun(MEMORY)
            save.held, save.holds, save.lineages = held, set(self.live.parts(held)), {MEMORY: lineage}
            with self._lock:
                self.open.append(save)
            self._next.expect()

    def wrote(self, lineage: str | None, step: int | None, path: str = "") -> None:
        if lineage is not None:
            self.ledger.add(Saved(path, step, lineage, self.watch.each_alone))

    def failed(self, save: Save, error: BaseException) -> None:
        with self._lock:
            if save in self.open:
                self.open.remove(save)
        self._told("checkpoint.failed", save, error=f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX])

    def beside(self, path: str) -> None:
        """Records a file without trained state, which belongs to the checkpoint (if any) in the same folder."""
        self._beside.append(path)

    def renamed(self, old: str, new: str) -> None:
        """Records that a file or folder was renamed. A renamed checkpoint that has all trained state is logged as
        complete."""
        with self._lock:
            moved = [save for save in self.open if any(_below(file, old) for file in save.files)]
            self._beside = [_moved(file, old, new) for file in self._beside]
        for save in moved:
            save.files = [_moved(file, old, new) for file in save.files]
            save.unwritten = {_moved(file, old, new) for file in save.unwritten}
            for file in save.files:
                self.written(save, file)
        whole = [save for save in moved if save.may_be_whole and self.live.storages() <= save.held]
        self._flush(whole)

    def flush(self) -> None:
        for save in [save for save in self.open if not save.unwritten]:
            self._find(save)
        self._flush([save for save in self.open if save.may_be_whole])
        with self._lock:
            waiting = [save for save in self.open if save.lineages and not save.is_there]
            late = waiting[: max(len(waiting) - WAITING_MAX, 0)]
            self.open = [save for save in self.open if save not in late]
        self._in_vain += len(late)
        if waiting:
            self._next.expect()

    def _find(self, save: Save) -> None:
        """Searches the job's checkpoint folder for files of a save that were written in another place and then moved
        there. To save time, only the calls 1, 2, 4, 8 and so on search."""
        store, save.looks = self._store(), save.looks + 1
        inside = all(_below(file, store) and os.path.isfile(file) for file in save.files)
        plain = inside and save.may_be_whole
        if not store or not save.lineages or plain or save.looks & (save.looks - 1):
            return
        wanted, found = set(save.lineages.values()), {}
        for file in sorted(identity.files_below(store), key=lambda file: file in self._told_of, reverse=True):
            with contextlib.suppress(OSError):
                temporary = any(map(_TEMPORARY.search, os.path.relpath(file, store).split(os.sep)))
                if not temporary and not os.path.islink(file) and os.stat(file).st_ctime >= save.begun_s - 1:
                    found[identity.lineage(file) or ""] = file
        if not wanted <= found.keys():
            return
        moved = {file: found[lineage] for file, lineage in save.lineages.items()}
        folders = {os.path.dirname(old): os.path.dirname(new) for old, new in moved.items()}
        with self._lock:
            save.files = [moved.get(file, file) for file in save.files]
            for old, new in folders.items():
                self._beside = [_moved(file, old, new) if old else file for file in self._beside]

    def _store(self) -> str:
        named, folder = os.environ.get(STORE_ENV), self.ledger.folder
        if not named or folder is None or self._in_vain > IN_VAIN_MAX:
            return ""
        store = os.path.realpath(folder.parent.parent / named)
        return store if os.path.isdir(store) else ""

    def _flush(self, saves: list[Save]) -> None:
        with self._lock:
            self.open = [save for save in self.open if save not in saves]
        for save in saves:
            folders = {os.path.dirname(file) for file in save.files}
            several = len(save.files) > 1
            companions = [file for file in self._beside if several and os.path.dirname(file) in folders]
            path = os.path.commonpath(save.files) if several else save.files[0]
            self._committed(save, path, sorted({*save.files, *companions}))

    def commit(self, path: str, step: int | None = None) -> None:
        """Logs the checkpoint in a folder as complete. Called when a framework says that this process's part is
        complete.

        Only the files that this process wrote are logged, because other ranks may still write into the folder. The
        framework's `step` is used only if the observer does not know the step.
        """
        mine = [save for save in self.open if any(_below(file, path) for file in save.files)]
        if not mine:
            return
        first = mine[0]
        first.step = step if first.step is None else first.step
        files = [file for save in mine for file in save.files]
        for file in files:
            self.written(first, file)
        with self._lock:
            self.open = [save for save in self.open if save not in mine]
        self._committed(first, path, sorted({*files, *(file for file in self._beside if _below(file, path))}))

    def _committed(self, save: Save, path: str, files: list[str]) -> None:
        files = [file for file in files if os.path.isfile(file)]
        found = identity.of(files)
        if found is None:
            return  # taken away again before it was whole
        root = path if os.path.isdir(path) else os.path.dirname(path)
        names = tuple(os.path.relpath(file, root) for file in files)
        lineages = tuple(identity.lineage(file) or "" for file in files)
        self._told_of.update(files)
        self.ledger.add(Committed(path, root, save.step, found.digest, names, lineages))
        told: dict[str, Any] = {"path": path, "content": found.digest, "bytes": found.size}
        told |= {"files": list(names)[:PATHS_MAX], **save.accumulated}
        if save.write_ns:
            told["write_ns"] = save.write_ns
        if save.held:
            told["holds"] = sorted(save.holds)
        if save.held and (tensors := identity.tensors(save.files)):
            told["tensors"] = tensors
        self._told("checkpoint.committed", save, duration_ns=time.monotonic_ns() - save.begun_ns, **told)

    def _told(self, event: str, save: Save, **fields: Any) -> None:
        if save.step is not None:  # the log has no place for a checkpoint of an unknown step
            self.watch.emit(event, step=save.step, **fields)


def _below(file: str, path: str) -> bool:
    return file == path or file.startswith(path.rstrip("/") + "/")


def _moved(file: str, old: str, new: str) -> str:
    return new + file[len(old) :] if _below(file, old) else file
