"""Which saves of a job it is started again from, and in which order: first where public stacks went wrong.

Whether a resume is right depends on which save it takes. The end of a pass over the data comes first, then the second
and the third resume in a row, then the first save and the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

PASSES_MAX = 2  # at the ends of so many: some samplers go wrong at the end of the second one only
CHAIN = 3  # resumes in a row
FITS_MAX = 10_000  # steps between two saves that may be proposed
NOTICE = "a save that a notice of preemption led to"


@dataclass(frozen=True)
class Moment:
    """A restart. `step`: of the save it begins from; `None`: the job never had this moment, and `why` says why."""

    words: str
    step: int | None
    resume: int = 1  # in a row: the second one begins from a save that a resumed job made
    nodes: int | None = None  # another number of nodes than planned
    ranks: int | None = None  # another number of ranks a node
    notice: bool = False  # from what the job saves over a notice, a moment after that step
    why: str = ""
    missed: bool = False  # the job had it: it was not copied in time

    @property
    def in_words(self) -> str:
        return f"{self.words} (step {self.step})"

    @property
    def elsewhere(self) -> bool:
        """On another number of ranks."""
        return self.nodes is not None or self.ranks is not None


@dataclass(frozen=True)
class Saves:
    """Steps, ascending. `copied`: of those from which a restart may begin."""

    made: Sequence[int]
    copied: Sequence[int]
    unnamed: Mapping[int, str] = field(default_factory=dict)  # what named another save when this one was the newest

    def moment(self, found: int | None, words: str, rare: str) -> Moment:
        """From this save, if there is one and it was copied; or why there is none."""
        if found is None or found in self.copied:
            return Moment(words, found, why="" if found else rare)
        if found in self.unnamed:
            return Moment(words, None, why=f"{self.unnamed[found]} did not name the save of step {found}", missed=True)
        late = f"the next save came before that of step {found} could be copied: save less often, with --save-every"
        return Moment(words, None, why=late, missed=True)

    def after(self, step: int | None) -> int | None:
        return None if step is None else next((each for each in self.made if each > step), None)

    @property
    def first(self) -> int | None:
        return next(iter(self.made), None)


def moments(saves: Saves, ends: Sequence[int] | None, last: int) -> list[Moment]:
    """In the order in which they are tried. `ends`: of passes; `last`: the last step of the job. Moments with the same
    save are one restart."""
    return _merged([*_at_ends(saves, ends, last), *_in_a_row(saves), *_at_the_end(saves, last)])


def _at_ends(saves: Saves, ends: Sequence[int] | None, last: int) -> Iterator[Moment]:
    words = "around the end of a pass over the data"
    if ends is None:
        yield Moment(words, None, why="nobody tells which samples a step consumes")
    elif not ends:
        yield Moment(words, None, why=f"the job did less than one pass in {last} steps: more of them with --steps")
    often = int(np.median(np.diff([0, *saves.made]))) if saves.made else last
    rare = f"there is none: save more often, with --save-every {max(often // 2, 1)}"
    for number, end in enumerate((ends or ())[:PASSES_MAX], 1):
        begin, until = ([0, *(ends or ())][number - 1], [*(ends or ()), last][number])
        fits = next(each for each in range(min(often, FITS_MAX), 0, -1) if end % each == 0)
        no_save = f"no save is of step {end}, where it ends: --save-every {fits}"
        before = max((step for step in saves.made if begin < step < end), default=None)
        after = min((step for step in saves.made if end < step < until), default=None)
        yield saves.moment(before, f"the last save before the end of pass {number}", rare)
        yield saves.moment(end if end in saves.made else None, f"a save at the end of pass {number}", no_save)
        yield saves.moment(after, f"the first save after the end of pass {number}", rare)


def _in_a_row(saves: Saves) -> Iterator[Moment]:
    """Each from what the one before it saved."""
    step = saves.first
    yield saves.moment(step, "the first save", "the job made no save")
    for number in range(2, CHAIN + 1):
        step = saves.after(step) if step in saves.copied or number > 2 else None
        there = step is not None and saves.after(step) is not None
        why = "" if there else f"{len(saves.made)} saves are too few, or the first one was not copied"
        words = f"resume {number} in a row, from a save that a resumed job made"
        yield Moment(words, step if there else None, number, why=why)


def _at_the_end(saves: Saves, last: int) -> Iterator[Moment]:
    found = last if last in saves.made else None
    yield saves.moment(found, "the last save of the finished job", f"the job saved nothing at step {last}")
    first = saves.first if saves.first in saves.copied else None
    yield Moment(NOTICE, first, notice=True, why="there is no copy of the first save")


def _merged(found: Iterable[Moment]) -> list[Moment]:
    """Those with the same save, the same number of resumes and of nodes are one, where the first of them stood."""
    kept: dict[object, Moment] = {}
    for each in found:
        key = each.words if each.step is None else (each.step, each.resume, each.nodes, each.ranks, each.notice)
        kept[key] = replace(kept[key], words=f"{kept[key].words}; {each.words}") if key in kept else each
    return list(kept.values())
