"""Verifies the checkpoints under a path one by one: all existing checkpoints, or each new one as soon as it no longer
changes."""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.errors import FaultError
from harness.judge.verdict import Verdict, merge
from harness.log import untrusted_files
from harness.preflight import framework, manifest, pointers
from harness.preflight.series import Series
from harness.preflight.stored_saves import StoredSaves
from harness.preflight.verification import MANIFEST, Place, Save, State, begun, verify
from harness.run.stop import StopRequest
from harness.timeline.save_events import family
from harness.trainers.checkpoints.contract import FoundCheckpoint, Listing
from harness.trainers.checkpoints.shared import names
from harness.trainers.checkpoints.shared.checkpoint_folder import ENTRIES_MAX, CheckpointFolder
from harness.units import counted

LOOK_S, REST_FACTOR, LOOK_S_MAX = 1.0, 10, 30.0
PATIENCE_S = 60.0  # so long a save may lie there, still, without the mark of its end
VERDICTS = {State.WHOLE: Verdict.PASS, State.DAMAGED: Verdict.FAIL}  # of all others: it is not known


@dataclass
class Verifier:
    """`python` is an interpreter with the frameworks that wrote the checkpoints; `notes` lists what was not checked or
    not stored."""

    place: Place
    keep: bool = False
    python: str = ""
    against: StoredSaves | None = None
    notes: list[str] = field(default_factory=list)
    _series: dict[str, Series] = field(default_factory=lambda: defaultdict(Series))  # by layout

    def all(self) -> Iterator[Save]:
        """Verifies and yields all checkpoints, for each checkpoint layout from old to new. After the checkpoints,
        yields each pointer that fails to name the newest checkpoint."""
        there, listings = self.place.look()
        self._note(there)
        saves = dict[str, Save]()
        for listing in listings:
            saves |= {each.path: self._take(there, listing, each) for each in reversed(listing.checkpoints)}
        wrong = list(pointers.asked(there, listings, saves)) if self.place.is_folder else []
        yield from [*saves.values(), *self._without_files(there, saves), *wrong]

    def _without_files(self, there: CheckpointFolder, saves: Mapping[str, Save]) -> Iterator[Save]:
        """Yields each checkpoint without files whose step is later than the steps of all checkpoints with files. Older
        empty checkpoints are ignored, because the job may have removed their files."""
        newest = dict[tuple[str, str], int]()  # by folder and kind of name
        for path, save in saves.items():
            series = path.rpartition("/")[0], family(path)
            newest[series] = max(newest.get(series, -1), -1 if save.step is None else save.step)
        inside = {folder for folder, _ in newest if f"{folder}/".startswith(f"{there.folder}/") or there.folder == "."}
        for folder in inside if self.place.is_folder else ():
            for name, what, age_s in _left_in(self.place.root, folder):
                path, step = "/".join(part for part in (folder, name) if part), names.step_in(name)
                if step is None or step <= newest.get((folder, family(name)), step) or there.below(path):
                    continue
                save = Save(path, step)
                save.find(State.SUSPICIOUS if age_s > PATIENCE_S else State.UNFINISHED, what)
                if path not in saves and path not in there.unreadable:
                    yield save

    def new(self, stop: StopRequest, until_s: float) -> Iterator[Save]:
        """Verifies and yields each new checkpoint once its files no longer change. If the mark of a finished checkpoint
        is missing, waits until the files have not changed for a minute."""
        before, since_s, done = dict[str, object](), dict[str, float](), dict[str, object]()
        ended = False
        while not ended:
            begin_s = time.monotonic()
            there, listings = self.place.look()
            saves = [(listing, each) for listing in listings for each in reversed(listing.checkpoints)]
            for listing, each in saves:
                stamp = [(file, there.sizes[file], there.changed_ns(file)) for file in each.files]
                if before.get(each.path) != stamp:
                    age_s = 0.0 if each.path in before else time.time() - begun(there, each).changed_ns / 1e9
                    before[each.path], since_s[each.path] = stamp, begin_s - max(age_s, 0.0)
                elif done.get(each.path) != stamp and (each.whole or begin_s - since_s[each.path] >= PATIENCE_S):
                    done[each.path] = stamp
                    yield self._take(there, listing, each)
            rest_until_s = time.monotonic() + min(max(LOOK_S, REST_FACTOR * (time.monotonic() - begin_s)), LOOK_S_MAX)
            while not (ended := stop.asked or time.monotonic() >= until_s) and time.monotonic() < rest_until_s:
                time.sleep(0.1)
        self._note(there)
        for _, each in saves:
            if done.get(each.path) != before[each.path]:
                left = begun(there, each)
                left.find(State.UNFINISHED, "was not whole, or not still for long enough, until the watch ended")
                yield left

    def _take(self, there: CheckpointFolder, listing: Listing, found: FoundCheckpoint) -> Save:
        save = verify(there, listing.layout, found)
        if save.state is State.UNFINISHED:
            return save
        if self.against:
            self.against.hold(save, there, found)
        if self.python:
            framework.load(save, self.place.root, found.files, self.python)
        self._series[listing.layout].add(save)
        again = save.saved_again and len(save.findings) == 1
        # One that was held against a manifest just now keeps it: its date tells since when the save is known.
        if self.keep and (again or (save.state is State.WHOLE and save.verified_by != MANIFEST)):
            try:
                manifest.write(self.place.root, save.path, time.time(), save.parts)
            except (OSError, FaultError) as error:
                self.notes.append(f"no manifest of {save.path} can be kept: {error}")
        if save.state is not State.WHOLE:
            save.parts = {}
        return save

    def _note(self, there: CheckpointFolder) -> None:
        if there.is_full:
            self.notes.append(f"only the first {ENTRIES_MAX:,} files were looked at")
        if there.unreadable_folders:
            self.notes.append(f"cannot be read: {', '.join(there.unreadable_folders[:3])}")
        if there.odd and self.place.is_folder:
            self.notes.append(f"neither a file nor a folder: {', '.join(there.odd[:3])}")
        if self.place.is_folder and (links := there.links_away):
            self.notes.append(
                f"{counted(len(links), 'link')} not followed, {', '.join(links[:3])}: give where they lead"
            )


def _left_in(root: pathlib.Path, folder: str) -> Iterator[tuple[str, str, float]]:
    with contextlib.suppress(OSError, FaultError), untrusted_files.opened_folder(root, folder) as opened:
        for entry in os.scandir(opened):
            if entry.is_dir(follow_symlinks=False):
                yield entry.name, "holds no file", time.time() - entry.stat(follow_symlinks=False).st_mtime
    with contextlib.suppress(OSError, FaultError):
        for name in manifest.names_in(root, folder):
            yield name, "is gone, and its manifest is there", math.inf


def verdict(saves: Sequence[Save], notes: Sequence[str]) -> Verdict:
    """Returns the worst verdict on the checkpoints in `saves`. Anything that was not examined prevents a pass.
    Unfinished checkpoints are ignored."""
    asked = [VERDICTS.get(save.state, Verdict.INCONCLUSIVE) for save in saves if save.state is not State.UNFINISHED]
    return merge([*asked, *(Verdict.INCONCLUSIVE for _ in notes)])
