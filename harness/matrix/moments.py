"""Which saves of a job it is started again from, and in which order: first where public stacks went wrong.

Whether a resume is right depends on which save it takes. The end of a pass over the data comes first, then the middle
of a gradient accumulation, the first save, the second and the third resume in a row, and the last save.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from harness.matrix.told_saves import ToldSaves
from harness.units import counted

PASSES_MAX = 2  # at the ends of so many: some samplers go wrong at the end of the second one only
CHAIN = 3  # resumes in a row
FITS_MAX = 10_000  # steps between two saves that may be proposed
NOTICE = "a save that a notice of preemption led to"
AMID = "a save in the middle of a gradient accumulation"


@dataclass(frozen=True)
class Moment:
    """A restart. `save`: the one it begins from, by the number in its name; `None`: the job never had this moment, and
    `why` says why. `step`: how many steps it holds; `micro_batches`: how many of the next one were done."""

    words: str
    save: int | None
    step: int = 0
    micro_batches: int = 0
    resume: int = 1  # in a row: the second one begins from a save that a resumed job made
    nodes: int | None = None  # another number of nodes than planned
    ranks: int | None = None  # another number of ranks a node
    also: tuple[str, ...] = ()  # words at the end of the trainer's command
    notice: bool = False  # from what the job saves over a notice, a moment after that step
    why: str = ""
    missed: bool = False  # the job had it: it was not copied in time

    @property
    def elsewhere(self) -> bool:
        """On another number of ranks."""
        return self.nodes is not None or self.ranks is not None

    @property
    def kind(self) -> str:
        """One restart of each kind is followed to the end of the job: others of it would show the same there."""
        first = self.words.partition(";")[0]
        return re.sub(r"\bresume \d+", "resume", re.sub(r"\bpass \d+", "a pass", first))

    @property
    def told(self) -> str:
        """In words, with where it turned out to be."""
        amid = self.micro_batches and AMID not in self.words
        return f"{self.words}, in the middle of a gradient accumulation" if amid else self.words

    @property
    def where(self) -> str:
        """As `step 20`, `step 4 and 1 micro-batch, saved as 9`."""
        amid = f" and {counted(self.micro_batches, 'micro-batch', 'micro-batches')}" if self.micro_batches else ""
        return f"step {self.step}{amid}" + (f", saved as {self.save}" if self.save != self.step else "")

    @property
    def in_words(self) -> str:
        return f"{self.told} ({self.where})"


@dataclass(frozen=True)
class Saves:
    """By the numbers in their names, ascending. `copied`: those from which a restart may begin."""

    made: Sequence[int]
    copied: Sequence[int]
    told: ToldSaves = field(default_factory=ToldSaves)
    unnamed: Mapping[int, str] = field(default_factory=dict)  # what named another save when this one was the newest
    option: str = "--save-every"  # what changes how often the job saves; empty: arguments of its own

    def moment(self, found: int | None, words: str, rare: str) -> Moment:
        """From this save, if there is one and it was copied; or why there is none."""
        if found is None:
            return Moment(words, None, why=rare)
        moment = self.placed(Moment(words, found))
        if found in self.copied:
            return moment
        why = f"the next save came before that of {moment.where} could be copied: save less often"
        why += f", with {self.option}" if self.option else ""
        if found in self.unnamed:
            why = f"{self.unnamed[found]} did not name the save of {moment.where}"
        return Moment(words, None, why=why, missed=True)

    def placed(self, moment: Moment) -> Moment:
        """With what is told of its save."""
        if moment.save is None:
            return moment
        return replace(moment, step=self.told.at(moment.save), micro_batches=self.told.within(moment.save))

    def after(self, save: int | None) -> int | None:
        return None if save is None else next((each for each in self.made if each > save), None)

    def every(self, number: int) -> str:
        """How the job comes to save so often."""
        return f"{self.option} {number}" if self.option else f"a save every {number}, by the trainer's own arguments"

    @property
    def first(self) -> int | None:
        return next(iter(self.made), None)

    @property
    def often(self) -> int | None:
        """How far two of them are apart, as their names count."""
        return int(np.median(np.diff([0, *self.made]))) if self.made else None


def moments(saves: Saves, ends: Sequence[int] | None, last: int) -> list[Moment]:
    """In the order in which they are tried. `ends`: of passes; `last`: the last step of the job. Moments with the same
    save are one restart."""
    found = [*_at_ends(saves, ends, last), _amid(saves), *_in_a_row(saves), *_at_the_end(saves, last)]
    kept: dict[object, Moment] = {}  # by the save, the number of resumes and of nodes, where the first of them stood
    for each in map(saves.placed, found):
        key = each.words if each.save is None else (each.save, each.resume, each.notice)
        kept[key] = replace(kept[key], words=f"{kept[key].words}; {each.words}") if key in kept else each
    return list(kept.values())


def _at_ends(saves: Saves, ends: Sequence[int] | None, last: int) -> Iterator[Moment]:
    words, place = "around the end of a pass over the data", saves.told.place
    if ends is None:
        yield Moment(words, None, why="nobody tells which samples a step consumes")
    elif not ends:
        yield Moment(words, None, why=f"the job did less than one pass in {last} steps: more of them with --steps")
    often = saves.often or last
    rare = f"there is none: save more often, with {saves.every(max(often // 2, 1))}"
    for number, end in enumerate((ends or ())[:PASSES_MAX], 1):
        begin, until = ([0, *(ends or ())][number - 1], [*(ends or ()), last][number])
        due = end * (saves.told.a_step or 1) if saves.told.by_micro_batch else end
        fits = next(each for each in range(min(often, FITS_MAX), 0, -1) if due % each == 0)
        no_save = f"no save is of step {end}, where it ends: {saves.every(fits)}"
        before = max((each for each in saves.made if begin < place(each) < end), default=None)
        there = next((each for each in saves.made if place(each) == end), None)
        after = min((each for each in saves.made if end < place(each) < until), default=None)
        yield saves.moment(before, f"the last save before the end of pass {number}", rare)
        yield saves.moment(there, f"a save at the end of pass {number}", no_save)
        yield saves.moment(after, f"the first save after the end of pass {number}", rare)


def _amid(saves: Saves) -> Moment:
    """From the first save between two micro-batches of a step, of which a restart knows both or neither."""
    told, amid = saves.told, [each for each in saves.made if saves.told.within(each)]
    if told.a_step is None:
        return Moment(AMID, None, why="nobody tells how many batches a step takes")
    if told.a_step == 1:
        return Moment(AMID, None, why="the job takes one batch a step")
    rare = f"the job takes {told.a_step} batches a step, and no save falls between them"
    rare += f": {saves.every((saves.often or 0) + 1)}" if told.by_micro_batch else "; a notice may lead to one"
    return saves.moment(next((each for each in amid if each in saves.copied), next(iter(amid), None)), AMID, rare)


def _in_a_row(saves: Saves) -> Iterator[Moment]:
    """Each from what the one before it saved."""
    save = saves.first
    yield saves.moment(save, "the first save", "the job made no save")
    for number in range(2, CHAIN + 1):
        save = saves.after(save) if save in saves.copied or number > 2 else None
        there = save is not None and saves.after(save) is not None
        why = "" if there else f"{len(saves.made)} saves are too few, or the first one was not copied"
        words = f"resume {number} in a row, from a save that a resumed job made"
        yield Moment(words, save if there else None, resume=number, why=why)


def _at_the_end(saves: Saves, last: int) -> Iterator[Moment]:
    found = next((each for each in reversed(saves.made) if saves.told.at(each) == last), None)
    yield saves.moment(found, "the last save of the finished job", f"the job saved nothing at step {last}")
    first = saves.first if saves.first in saves.copied else None
    yield Moment(NOTICE, first, notice=True, why="there is no copy of the first save")
