"""Finds files that are missing in a checkpoint but exist in most checkpoints before and after it, by file names
alone."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from harness.preflight.pairs import Joined
from harness.preflight.siblings import Lack
from harness.timeline.save_events import family
from harness.trainers.checkpoints.contract import FoundCheckpoint
from harness.trainers.checkpoints.shared.formats import SUFFIXES

NEAR = 16  # saves before and after one that it is held against: a folder may have thousands
_NUMBER = re.compile(r"[-_.]?\d+")
# A save accounts for these numbers itself, by their total and by .metadata.
_ACCOUNTED = re.compile(r"-\d+-of-\d+|(?<=__)\d+_\d+(?=\.distcp$)")
_LOADED = (*SUFFIXES, ".safetensors", ".distcp")  # a trainer that saves such a file reads it when it resumes
_Kinds = Mapping[str, list[str]]  # a name without numbers → the files of that name, by path from where the save lies


def kind(file: str) -> str:
    """Returns a file's name without numbers, so that files of all steps and of all ranks get the same name."""
    return _NUMBER.sub("", _ACCOUNTED.sub("", file))


def with_step(file: str, step: int | None, other: int | str = "#") -> str:
    """Replaces the number `step` in a file's name by `other`. A number after the word `rank` is kept, because it is not
    a step."""
    if step is None:
        return file
    mine = re.compile(rf"(?<!\d)(?<!rank)(?<!rank[-_=])0*{step}(?!\d)")
    return mine.sub(
        lambda found: f"{other:0{len(found[0])}}" if found[0][0] == "0" and other != "#" else str(other), file
    )


def told(checkpoints: Sequence[FoundCheckpoint]) -> list[FoundCheckpoint]:
    """Adds to each checkpoint the names of files that it lacks but most other checkpoints of its series have. A series
    is all checkpoints of one folder whose names differ only in numbers."""
    series = defaultdict[tuple[str, str], list[FoundCheckpoint]](list)
    for each in checkpoints:
        series[each.path.rpartition("/")[0], family(each.path)].append(each)
    lacks = {each.path: lack for saves in series.values() for each, lack in _lacks(saves)}
    return [
        Joined(each.path, each.files, each.step, each.whole, lacks[each.path]) if lacks.get(each.path) else each
        for each in checkpoints
    ]


def _lacks(saves: Sequence[FoundCheckpoint]) -> Iterator[tuple[FoundCheckpoint, tuple[Lack, ...]]]:
    kinds = [(each, _kinds(each)) for each in saves if not isinstance(each, Joined)]
    for place, (save, own) in enumerate(kinds):
        newer = [each for each in kinds[max(place - NEAR, 0) : place] if each[0].whole]
        older = [each for each in kinds[place + 1 : place + 1 + NEAR] if each[0].whole]
        yield save, tuple(lack for name in _names(newer + older) for lack in _of_kind(name, save, own, newer, older))


def _names(others: Sequence[tuple[FoundCheckpoint, _Kinds]]) -> list[str]:
    return sorted(set[str]().union(*(kinds for _, kinds in others)))


def _of_kind(
    name: str,
    save: FoundCheckpoint,
    own: _Kinds,
    newer: Sequence[tuple[FoundCheckpoint, _Kinds]],
    older: Sequence[tuple[FoundCheckpoint, _Kinds]],
) -> Iterator[Lack]:
    mine, others = own.get(name, []), [*older, *reversed(newer)]
    counts = Counter(len(kinds.get(name, ())) for _, kinds in others)
    usual, saves = counts.most_common(1)[0]
    beside = [len(kinds.get(name, ())) for _, kinds in (*newer[-1:], *older[:1])]
    # Two saves after each other with as many files: the job went on with another number of ranks.
    if len(mine) >= usual or 2 * saves <= len(others) or (mine and len(mine) in beside):
        return
    example = next(each for each in others if len(each[1].get(name, ())) == usual)
    expected = _expected(save, mine, example[0], example[1][name])
    # The first ones alone are there: fewer ranks write just that. The job may remove files of its oldest save, and end
    # with its model alone.
    fewer_ranks = bool(mine) and expected[: len(mine)] == mine
    inner = bool(older) and bool(newer or mine)
    sure = len(others) > 1 and saves == len(others) and inner and not fewer_ranks and set(mine) <= set(expected)
    for file in [file for file in expected if file not in mine] if set(mine) <= set(expected) else [expected[-1]]:
        what = "is missing, and most other saves have it" + "; does the job go on with fewer ranks?" * fewer_ranks
        yield Lack(what, _folder(save) + file, sure=sure and file.endswith(_LOADED))


def _kinds(save: FoundCheckpoint) -> dict[str, list[str]]:
    kinds = defaultdict[str, dict[str, str]](dict)
    for file in save.files:
        relative = file.removeprefix(_folder(save))
        # Files whose numbers the save accounts for count as one.
        kinds[kind(relative)].setdefault(_ACCOUNTED.sub("", relative), relative)
    return {name: sorted(files.values(), key=_numbers) for name, files in kinds.items()}


def _numbers(file: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", file)]


def _expected(save: FoundCheckpoint, mine: Sequence[str], other: FoundCheckpoint, files: Sequence[str]) -> list[str]:
    if save.step is None or set(mine) & set(files):
        return list(files)
    return [with_step(file, other.step, save.step) for file in files]


def _folder(save: FoundCheckpoint) -> str:
    folder, slash, _ = save.path.rpartition("/")
    return folder + slash if save.path in save.files else f"{save.path}/"
