"""A save beside those before it: what a healthy one may differ in is suspicious, and nothing more."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping

from harness.preflight.file_content import Part
from harness.preflight.verification import Save, State
from harness.timeline.save_events import family

SMALLER = 0.9
ZEROED = 0.5  # of the bytes that were not in holes before
_NUMBER = re.compile(r"-\d+-of-\d+|[-_.]?\d+")


class Series:
    """The saves of a place, the oldest first."""

    def __init__(self) -> None:
        self._before: dict[str, Save] = {}  # by family, the last one that was whole
        self._always: dict[str, dict[str, str]] = {}  # by family: name without numbers → a file that each whole one has
        self._held = defaultdict[tuple[str, str], dict[str, str]](dict)  # by family and file: digest → the save
        self._stepwise = set[tuple[str, str]]()  # files that told the step of their save

    def add(self, save: Save) -> None:
        """Tells the save what is odd in it, and keeps it for the next one."""
        kin = family(save.path)
        files = {_NUMBER.sub("", file): file for file in save.parts}
        before, always = self._before.get(kin), self._always.get(kin, files)
        if save.state not in (State.DAMAGED, State.UNFINISHED):
            for name in sorted(always.keys() - files.keys()):
                save.find(State.SUSPICIOUS, f"has no file like {always[name]}, and each whole save before has one")
            if before:
                _hold(save, before)
            self._ask_files(save, kin)
        if save.state is State.WHOLE:
            self._before[kin] = save
            self._always[kin] = {name: file for name, file in files.items() if name in always}
            if before:
                before.parts = {}

    def _ask_files(self, save: Save, kin: str) -> None:
        """One that is of another step, though it was not in other saves; or that always changes, and now holds what it
        held before."""
        for file, step in save.steps_told.items():
            place = kin, _alike(file, save)
            if step == save.step:
                self._stepwise.add(place)
            elif place in self._stepwise and save.step is not None:
                save.find(State.DAMAGED, f"is of step {step}, and the save of step {save.step}", file)
        for file, parts in save.parts.items():
            tensors = "".join(part.sha256 for part in parts if part.span.name and part.content.trained)
            digest, held = hashlib.sha256(tensors.encode()).hexdigest(), self._held[kin, _alike(file, save)]
            if tensors and digest in held and len(held) > 1:
                save.find(State.SUSPICIOUS, f"holds what it held in {held[digest]}", file)
            held.setdefault(digest, save.path)


def _alike(file: str, save: Save) -> str:
    """The same for the same file of each save: its name without the step."""
    return re.sub(rf"(?<!\d)0*{save.step}(?!\d)", "#", file) if save.step is not None else file


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
    sizes = [sum(part.content.size for _, part in side.values()) for side in (mine, theirs)]
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
