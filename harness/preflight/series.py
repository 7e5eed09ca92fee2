"""Compares a checkpoint with earlier checkpoints of the same folder that have similar names. A difference that may also
occur between intact checkpoints is reported as suspicious, not as damage."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from harness.preflight.file_content import Part
from harness.preflight.missing_files import kind, with_step
from harness.preflight.verification import Save, State
from harness.timeline.save_events import family

SMALLER = 0.9
ZEROED = 0.5  # of the bytes that were not in holes before
_OPTIMIZER = re.compile(r"optim|exp_avg|momentum_buffer", re.IGNORECASE)  # in the name of a file, or of a tensor in it


class _Held(NamedTuple):
    path: str
    step: int | None


class Series:
    def __init__(self) -> None:
        self._before: dict[str, Save] = {}  # by family, the last one that was whole
        self._always: dict[str, dict[str, str]] = {}  # by family: name without numbers → a file that each whole one has
        self._held = defaultdict[tuple[str, str], dict[str, _Held]](dict)  # by family and file: digest → the first save
        self._stepwise = set[tuple[str, str]]()  # files that told the step of their save

    def add(self, save: Save) -> None:
        """Adds findings on differences between `save` and earlier checkpoints, and keeps `save` for later
        comparisons."""
        kin = family(save.path)
        files = {kind(file): file for file in save.parts}
        before, always = self._before.get(kin), self._always.get(kin, files)
        if save.state not in (State.DAMAGED, State.UNFINISHED):
            missed = {kind(each.file) for each in save.findings}
            for name in sorted(always.keys() - files.keys() - missed):
                save.find(State.SUSPICIOUS, f"has no file like {always[name]}, and each whole save before has one")
            if before:
                full = {kind(file) for file, parts in before.parts.items() if parts}
                for file in (file for file, parts in save.parts.items() if not parts and kind(file) in full - missed):
                    save.find(State.SUSPICIOUS, f"is empty, and that in {before.path} is not", file)
                _hold(save, before)
            self._ask_files(save, kin)
        if save.state is State.WHOLE:
            self._before[kin] = save
            self._always[kin] = {name: file for name, file in files.items() if name in always}
            if before:
                before.parts = {}

    def _ask_files(self, save: Save, kin: str) -> None:
        for file, step in save.steps_told.items():
            place = kin, _alike(file, save)
            if step == save.step:
                self._stepwise.add(place)
            elif place in self._stepwise and save.step is not None:
                save.find(State.DAMAGED, f"is of step {step}, and the save of step {save.step}", file)
        held = {file: self._held_before(file, save, kin) for file in save.parts if _trained(save, file)}
        optimizer = {file for file in held if _is_of_optimizer(save, file)}
        for group in (optimizer, held.keys() - optimizer):
            changed = {file for file in group if len(self._held[kin, _alike(file, save)]) > 1}
            # What never changed may be frozen. But training changes some weights, and some of the optimizer.
            stale = group if optimizer and not changed and all(held[file] for file in group) else changed
            for file in sorted(stale):
                if held[file]:
                    save.find(State.SUSPICIOUS, f"holds what it held in {held[file]}", file)

    def _held_before(self, file: str, save: Save, kin: str) -> str:
        held = self._held[kin, _alike(file, save)]
        mine = _Held(save.path, save.step)
        first = held.setdefault(hashlib.sha256(_trained(save, file).encode()).hexdigest(), mine)
        return "" if first is mine or (save.step is not None and first.step == save.step) else first.path


def _trained(save: Save, file: str) -> str:
    return "".join(part.sha256 for part in save.parts[file] if part.span.name and part.content.trained)


def _is_of_optimizer(save: Save, file: str) -> bool:
    names = [part.span.name for part in save.parts[file]]
    return any(map(_OPTIMIZER.search, [file.rpartition("/")[2], *names]))


def _alike(file: str, save: Save) -> str:
    name = save.path.rpartition("/")[2]
    if save.step is None and file == name:
        return family(file)
    return with_step(file.removeprefix(f"{name}/"), save.step)


def _tensors(save: Save) -> Mapping[tuple[str, str], tuple[str, Part]]:
    read = ((file, part) for file, parts in save.parts.items() for part in parts if part.span.name)
    return {(_alike(file, save), part.span.name): (file, part) for file, part in read}


def _hold(save: Save, before: Save) -> None:
    mine, theirs = _tensors(save), _tensors(before)
    if not mine or not theirs:
        return
    lost = sorted({name for _, name in theirs} - {name for _, name in mine})
    for name in lost:
        save.find(State.SUSPICIOUS, f"is not there, and was in {before.path}", tensor=name)
    sizes = [sum(part.content.size for _, part in side.values() if part.content.trained) for side in (mine, theirs)]
    if not lost and sizes[0] < SMALLER * sizes[1]:
        save.find(State.SUSPICIOUS, f"its tensors have {sizes[0]:,} bytes; in {before.path} {sizes[1]:,}")
    for place in sorted(mine.keys() & theirs.keys()):
        (file, part), (_, old) = mine[place], theirs[place]
        if old.content.size != part.content.size or not part.content.trained:
            continue  # the job goes on with other ranks; or a loader begins anew
        # With a checksum it was saved so: moments of what is no longer trained become zero by and by.
        least = 0.0 if part.span.crc32 is None else ZEROED * (old.content.size - old.zeros)
        if part.zeros - old.zeros > least:
            save.find(State.SUSPICIOUS, f"has {part.zeros:,} zero bytes in holes; before {old.zeros:,}", file, place[1])
        if part.infinite > old.infinite:
            save.find(State.SUSPICIOUS, f"has {part.infinite:,} numbers that are infinite or none", file, place[1])
