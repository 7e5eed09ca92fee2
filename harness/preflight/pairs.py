"""Finds checkpoints that consist of several files in one folder: `model_30.pt` and `optim_30.pt` are one checkpoint."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.preflight.siblings import Lack
from harness.trainers.checkpoints.contract import FoundCheckpoint
from harness.trainers.checkpoints.shared import names

_WORDS = """model net network weights params ckpt checkpoint optim optims optimizer opt sched scheduler lr rng random
scaler ema generator discriminator gen disc actor critic encoder decoder trainer train state states loader dataloader
sampler"""
PARTS = frozenset(_WORDS.split())
_SEPARATOR = re.compile(r"[-_.=]+")


@dataclass(frozen=True)
class Joined(FoundCheckpoint):
    """A checkpoint that consists of several files in one folder, such as `model_10.pt` and `optim_10.pt`. `lacks` are
    the files that other checkpoints have and this checkpoint lacks."""

    lacks: tuple[Lack, ...] = ()


class _Name(NamedTuple):
    """A file's name in three parts. `series` holds the folder and the words of the name that do not name a part such as
    `model`. `part` is the path with a NUL byte in place of `number`."""

    series: tuple[str, ...]
    part: str
    number: str


def joined(checkpoints: Sequence[FoundCheckpoint]) -> list[FoundCheckpoint]:
    """Joins files into one checkpoint if their names differ only in a word such as `model` or `optim`. A word counts
    only if more than half of the checkpoints have a file with the word."""
    series = defaultdict[tuple[str, ...], dict[str, dict[str, FoundCheckpoint]]](lambda: defaultdict(dict))
    for each in checkpoints:
        if name := _name_of(each):
            series[name.series][name.part][name.number] = each
    result, taken = list[FoundCheckpoint](), set[str]()
    for parts in series.values():
        numbers = set[str]().union(*parts.values())
        shared = {part: found for part, found in parts.items() if len(found) > max(1, len(numbers) / 2)}
        if len(shared) > 1:
            own = list(_joined(shared))
            taken |= {file for each in own for file in each.files}
            result += own
    return [*result, *(each for each in checkpoints if each.path not in taken)]


def _name_of(found: FoundCheckpoint) -> _Name | None:
    folder, _, name = names.without_rank(found.path).rpartition("/")
    numbers = list(re.finditer(r"\d+", name))
    if found.path not in found.files or not numbers:
        return None
    part = name[: numbers[-1].start()] + "\0" + name[numbers[-1].end() :]
    words = [word for word in _SEPARATOR.split(part) if word]
    rest = [word for word in words if word.lower() not in PARTS]
    return _Name((folder, *rest), f"{folder}/{part}", numbers[-1][0])


def _joined(parts: Mapping[str, Mapping[str, FoundCheckpoint]]) -> Iterator[Joined]:
    numbers = sorted(set[str]().union(*parts.values()), key=int, reverse=True)
    for number in numbers:
        there = [found[number] for found in parts.values() if number in found]
        lacks = []
        for part, found in parts.items():
            if number not in found:
                # What only the oldest save lacks, or several do, may have been removed by the job itself.
                sure = len(found) == len(numbers) - 1 and number != numbers[-1]
                lacks.append(Lack("is missing, and most other saves have it", part.replace("\0", number), sure=sure))
        files = tuple(sorted(file for each in there for file in each.files))
        step = next((each.step for each in there if each.step is not None), None)
        yield Joined(files[0], files, step, not lacks and all(each.whole for each in there), tuple(lacks))
