"""Copies all saves of a running job each time the job has finished a save."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import threading
import time
from collections.abc import Iterator

from harness.errors import ChaosError, FaultError
from harness.log import untrusted_files
from harness.plan.run_plan import Plan
from harness.run import drill
from harness.trainers.checkpoints.contract import Listing, list_checkpoints
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder

LOOK_S = 0.03
STILL_S = 0.1  # seconds for which the newest save must stay unchanged if another file keeps changing
NEW = "new"  # name of the copy that is being made


def look(plan: Plan, run_dir: pathlib.Path) -> tuple[CheckpointFolder, Listing]:
    saved = plan.workload.checkpoint
    place = CheckpointFolder.look(run_dir, saved.folder)
    return place, list_checkpoints(place, saved.layout)


def newest(listing: Listing) -> int | None:
    """Returns the step of the newest finished save. Returns `None` if any save is unfinished, or if the pointer file
    does not name the newest finished save."""
    if not listing.finished or not all(each.whole for each in listing.checkpoints):
        return None
    first = listing.finished[0]
    pointed = listing.pointer is None or listing.pointer.target == first.path
    return first.step if pointed else None


class Copies:
    """Copies the saves of a running job. The folder `folder/<step>` holds all saves as they were while the save of step
    `<step>` was the newest."""

    def __init__(self, plan: Plan, run_dir: pathlib.Path, folder: pathlib.Path):
        self._plan, self._run_dir, self._folder = plan, run_dir, folder
        self._over = threading.Event()
        self._before: CheckpointFolder | None = None
        self._saved: object = None  # the newest save
        self._since_s = 0.0  # time of its last change
        self._copied: dict[int, CheckpointFolder | None] = {}  # step → listing, if no file of it was changing
        self.unnamed: dict[int, str] = {}  # newest save → pointer that named another one then
        self._problem = ""

    @property
    def steps(self) -> list[int]:
        return sorted(self._copied)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Copies saves in the background during the `with` block. Raises `ChaosError` at the end of the block if the
        disk was full or a copy took too long."""
        self._folder.mkdir(parents=True)
        thread = threading.Thread(target=self._watch, name="copies of saves", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(drill.COPY_S_MAX)
        if self._problem:
            raise ChaosError(f"the saves cannot be copied: {self._problem}")

    def _watch(self) -> None:
        rest_s = LOOK_S
        while not self._over.wait(rest_s) and not self._problem:
            begin_s = time.monotonic()
            self._look()
            rest_s = max(LOOK_S, time.monotonic() - begin_s)  # at most half a core
        for _ in range(2):  # the last save no longer changes
            self._look()

    def _look(self) -> None:
        """Copies the saves once no file is changing. If only files outside the newest save keep changing, copies the
        saves once the newest save has not changed for `STILL_S` seconds."""
        try:
            place, listing = look(self._plan, self._run_dir)
            if not listing.finished:
                return
            first = listing.finished[0]
            saved = (listing.pointer, [(file, place.sizes.get(file), place.changed_ns(file)) for file in first.files])
            if saved != self._saved:
                self._saved, self._since_s = saved, time.monotonic()
            whole, still = place == self._before, time.monotonic() - self._since_s > STILL_S
            self._before, step = place, newest(listing)
            if (whole or still) and step is None and first.step is not None and listing.pointer is not None:
                self.unnamed[first.step] = listing.pointer.path
            elif step is not None and (
                self._copied.get(step) != place if whole else still and step not in self._copied
            ):
                self._copy(step, place if whole else None)
        except drill.CannotDrill as why:
            self._problem = str(why) if "room" in str(why) else ""
        except subprocess.SubprocessError as error:
            self._problem = str(error)
        except (OSError, FaultError, ValueError):
            return  # a file went away meanwhile: the next look decides

    def _copy(self, step: int, place: CheckpointFolder | None) -> None:
        new, kept = self._folder / NEW, self._folder / str(step)
        if new.exists():
            untrusted_files.remove_tree(self._folder, NEW)
        new.mkdir()
        drill.copy_saved(self._plan.launch(), self._run_dir, new)
        drill.copy_ledgers(self._run_dir, new)  # only they know the step of a save whose name tells none
        if newest(look(self._plan, new)[1]) != step:
            return
        if kept.exists():
            untrusted_files.remove_tree(self._folder, kept.name)
        new.rename(kept)
        self._copied[step] = place
