"""Selects the saves from which a job is restarted, in an order that tries the causes of known trainer bugs first.

Some bugs of a trainer appear only after a restart from certain saves. The restarts begin, in this order, from saves
around the end of a pass over the data set, a save in the middle of a gradient accumulation, the first save, saves of a
resumed job, and the last save."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from harness.matrix.told_saves import ToldSaves, none_found
from harness.units import counted

PASSES_MAX = 2  # passes whose ends are tried: some samplers go wrong only at the end of the second
CHAIN = 3  # resumes in a row
FITS_MAX = 10_000  # most steps between two saves that are proposed
NOTICE = "a save that a notice of preemption led to"
AMID = "a save in the middle of a gradient accumulation"


@dataclass(frozen=True)
class Moment:
    """A planned restart of a job from a save. `save` is the number in the save's name. If no restart is possible,
    `save` is `None` and `why` holds the reason. `step` is the last whole step that the job did before the save.
    `micro_batches` counts the micro-batches that the job did between the step `step` and the save."""

    words: str
    save: int | None
    step: int = 0
    micro_batches: int = 0
    resume: int = 1  # place in a row: resume 2 begins from a save that a resumed job made
    nodes: int | None = None  # number of nodes, if not as planned
    ranks: int | None = None  # number of ranks a node, if not as planned
    also: tuple[str, ...] = ()  # words at the end of the trainer's command
    notice: bool = False  # from the save that a preemption notice caused, some time after that step
    why: str = ""
    missed: bool = False  # the job had this save, but it was not copied in time

    @property
    def elsewhere(self) -> bool:
        return self.nodes is not None or self.ranks is not None

    @property
    def kind(self) -> str:
        first = self.words.partition(";")[0]
        return re.sub(r"\bresume \d+", "resume", re.sub(r"\bpass \d+", "a pass", first))

    @property
    def told(self) -> str:
        amid = self.micro_batches and AMID not in self.words
        return f"{self.words}, in the middle of a gradient accumulation" if amid else self.words

    @property
    def where(self) -> str:
        """Returns a text that says when the save was made, such as `step 20`, or `step 4 and 1 micro-batch, saved as
        9`. The words `saved as 9` mean that the number in the save's name is 9."""
        amid = f" and {counted(self.micro_batches, 'micro-batch', 'micro-batches')}" if self.micro_batches else ""
        return f"step {self.step}{amid}" + (f", saved as {self.save}" if self.save != self.step else "")

    @property
    def in_words(self) -> str:
        return f"{self.told} ({self.where})"


@dataclass(frozen=True)
class Saves:
    """The saves of a job, each as the number in the save's name, in ascending order. `copied` holds the saves of which
    the harness made a copy."""

    made: Sequence[int]
    copied: Sequence[int]
    told: ToldSaves = field(default_factory=ToldSaves)
    unnamed: Mapping[int, str] = field(default_factory=dict)  # newest save → pointer to another one
    option: str = "--save-every"  # option that sets the interval of saves; empty: the trainer's own arguments

    def moment(self, found: int | None, words: str, rare: str) -> Moment:
        """Returns the planned restart from the save `found`. The returned `Moment` says why no restart is possible if
        `found` is `None` or the harness has no copy of the save."""
        if found is None:
            return Moment(words, None, why=self.none_found or rare)
        moment = self.placed(Moment(words, found))
        if found in self.copied:
            return moment
        why = f"the next save came before that of {moment.where} could be copied: save less often"
        why += f", with {self.option}" if self.option else ""
        if found in self.unnamed:
            why = f"{self.unnamed[found]} did not name the save of {moment.where}"
        return Moment(words, None, why=why, missed=True)

    @property
    def none_found(self) -> str:
        return "" if self.made else none_found(len(self.told.steps))

    def placed(self, moment: Moment) -> Moment:
        if moment.save is None:
            return moment
        return replace(moment, step=self.told.at(moment.save), micro_batches=self.told.within(moment.save))

    def after(self, save: int | None) -> int | None:
        return None if save is None else next((each for each in self.made if each > save), None)

    def every(self, number: int) -> str:
        """Returns the option that makes the job save at each multiple of `number`, such as `--save-every 5`. If no
        option sets the interval of saves, returns advice to the user."""
        return f"{self.option} {number}" if self.option else f"a save every {number}, by the trainer's own arguments"

    @property
    def first(self) -> int | None:
        return next(iter(self.made), None)

    @property
    def often(self) -> int | None:
        """Returns the median difference between the numbers in the names of successive saves."""
        return int(np.median(np.diff([0, *self.made]))) if self.made else None


def moments(saves: Saves, ends: Sequence[int] | None, last: int) -> list[Moment]:
    """Returns the planned restarts of a job in the order in which they are tried. Equal restarts from one save are
    merged into one restart. `ends` holds the final step of each pass over the data set, or is `None` if unknown."""
    found = [*_at_ends(saves, ends, last), _amid(saves), *_in_a_row(saves), *_at_the_end(saves, last)]
    kept: dict[object, Moment] = {}  # restart by save, resume and notice, in the place of its first moment
    for each in map(saves.placed, found):
        key = each.words if each.save is None else (each.save, each.resume, each.notice)
        kept[key] = replace(kept[key], words=f"{kept[key].words}; {each.words}") if key in kept else each
    return list(kept.values())


def _at_ends(saves: Saves, ends: Sequence[int] | None, last: int) -> Iterator[Moment]:
    words, place = "around the end of a pass over the data", saves.told.place
    if ends is None:
        yield Moment(words, None, why="the log does not tell which samples a step consumes")
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
    told, amid = saves.told, [each for each in saves.made if saves.told.within(each)]
    if told.a_step is None:
        return Moment(AMID, None, why="the log does not tell how many batches a step takes")
    if told.a_step == 1:
        return Moment(AMID, None, why="the job takes one batch a step")
    rare = f"the job takes {told.a_step} batches a step, and no save falls between them"
    rare += f": {saves.every((saves.often or 0) + 1)}" if told.by_micro_batch else "; a notice may lead to one"
    return saves.moment(next((each for each in amid if each in saves.copied), next(iter(amid), None)), AMID, rare)


def _in_a_row(saves: Saves) -> Iterator[Moment]:
    save = saves.first
    yield saves.moment(save, "the first save", "the job made no save")
    for number in range(2, CHAIN + 1):
        save = saves.after(save) if save in saves.copied or number > 2 else None
        there = save is not None and saves.after(save) is not None
        why = saves.none_found or f"{len(saves.made)} saves are too few, or the first one was not copied"
        why = "" if there else why
        words = f"resume {number} in a row, from a save that a resumed job made"
        yield Moment(words, save if there else None, resume=number, why=why)


def _at_the_end(saves: Saves, last: int) -> Iterator[Moment]:
    found = next((each for each in reversed(saves.made) if saves.told.at(each) == last), None)
    yield saves.moment(found, "the last save of the finished job", f"the job saved nothing at step {last}")
    first = saves.first if saves.first in saves.copied else None
    yield Moment(NOTICE, first, notice=True, why="there is no copy of the first save")
