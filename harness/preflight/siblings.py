"""Finds missing files of a checkpoint by the numbers in file names, or by a file that lists the other files."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.trainers.checkpoints.shared.formats import Inside
from harness.trainers.checkpoints.shared.pickles import fields

NAMED_MAX = 100  # missing files that are named
TRIED_MAX = 10_000
_OF = re.compile(r"-(\d{1,6})-of-(\d{1,6})(?=\D)")
_RANKS = re.compile(r"(?<=rank[_=-])\d{1,6}(?:_\d{1,6})*|(?<=rank)\d{1,6}|(?<=rng_state_)\d{1,6}")
_ZERO = re.compile(r"zero_pp_rank_\d+_(mp_rank_\d+)_optim_states\.pt$")


class Lack(NamedTuple):
    """A file that a checkpoint lacks. `sure` is True if the file must exist."""

    what: str
    file: str
    tensor: str = ""
    sure: bool = True


def numbered(files: Sequence[str]) -> Iterator[Lack]:
    """Yields files that are missing according to numbers in file names: a total, as in `model-00001-of-00003`, or
    ranks. The field `sure` is False if all ranks are multiples of one number, because perhaps only each node's first
    rank saves."""
    known, ranks = set(files), defaultdict[str, list[str]](list)
    counted = defaultdict[str, dict[int, re.Match[str]]](dict)  # by name without numbers: one file for each total
    for file in files:
        if of := _OF.search(file):
            counted[_OF.sub("", file)].setdefault(int(of[2]), of)
            if int(of[1]) > int(of[2]):
                yield Lack(f"is there, and is numbered beyond its total of {int(of[2])}", file, sure=False)
        elif _RANKS.search(file):
            ranks[_RANKS.sub(lambda found: re.sub(r"\d+", "#", found[0]), file)].append(file)
    for of, sure in ((of, len(totals) == 1) for totals in counted.values() for of in totals.values()):
        count, width = min(int(of[2]), TRIED_MAX), len(of[1])
        every = [f"{of.string[: of.start(1)]}{number:0{width}}{of.string[of.end(1) :]}" for number in range(count + 1)]
        needed = every[:-1] if every[0] in known else every[1:]
        absent = [name for name in needed if name not in known]
        # With several totals, those of all but one may be left from a save before.
        yield from (Lack(f"is missing, one of {int(of[2])}", name, sure=sure) for name in absent[:NAMED_MAX])
    for family in ranks.values():
        if len(family) > 1:  # the number of one alone may be another one's, as of an adapter's rank
            yield from _ranks(family)


def _ranks(family: Sequence[str]) -> Iterator[Lack]:
    found = {tuple(int(number) for each in _RANKS.findall(file) for number in each.split("_")) for file in family}
    sides = [{numbers[place] for numbers in found} for place in range(len(min(found)))]
    sure = math.gcd(*itertools.chain(*sides)) < 2
    # A further number that is always the same counts no ranks.
    ranges = [sorted(side) if place and len(side) == 1 else range(max(side) + 1) for place, side in enumerate(sides)]
    absent = (each for each in itertools.islice(itertools.product(*ranges), TRIED_MAX) if each not in found)
    for numbers in itertools.islice(absent, NAMED_MAX):
        name = family[0].replace("{", "{{").replace("}", "}}")
        named = _RANKS.sub(lambda ranks: re.sub(r"\d+", lambda old: f"{{:0{len(old[0])}}}", ranks[0]), name)
        yield Lack("is missing, and ranks with larger numbers are there", named.format(*numbers), sure=sure)


def told(insides: Mapping[str, Inside]) -> Iterator[Lack]:
    """Yields a finding if a checkpoint has fewer files than one of its DeepSpeed or Megatron-LM files states."""
    zero = defaultdict[str, int](int)
    for file in insides:
        zero[of[1] if (of := _ZERO.search(file)) else ""] += 1
    zero.pop("", None)
    models = {file.split("/")[-2] for file in insides if file.endswith("/model_optim_rng.pt")}
    for file, inside in insides.items():
        ranks, args = inside.top.get("dp_world_size"), fields(inside.top.get("args"))
        if type(ranks) is int and zero and min(zero.values()) < ranks:
            yield Lack(f"tells of {ranks} ranks that hold the optimizer; files of {min(zero.values())} are there", file)
        sizes = [args.get(f"{side}_model_parallel_size") for side in ("tensor", "pipeline")]
        needed = math.prod(size for size in sizes if type(size) is int and 0 < size < TRIED_MAX)
        if models and len(models) < needed:
            yield Lack(f"tells of {needed} parts of the model; files of {len(models)} are there", file)


def indexed(insides: Mapping[str, Inside]) -> Iterator[Lack]:
    """Yields differences between a checkpoint and its Hugging Face index, which names the file of each tensor."""
    for index, inside in insides.items():
        where = inside.top.get("weight_map")
        if not index.endswith(".index.json") or not isinstance(where, dict):
            continue
        held = defaultdict[str, set[str]](set)
        for tensor, name in where.items():
            held[f"{index.rpartition('/')[0]}/{name}"].add(tensor)
        yield from _unnamed(index, held.keys(), insides)
        for file, tensors in held.items():
            if file not in insides:
                yield Lack(f"is missing; the index names it for {len(tensors)} of its tensors", file)
            elif insides[file].known and not insides[file].wrong and not insides[file].unclear:
                # Files of torch.save may hold one tensor under two names, and other things.
                torch = not file.endswith(".safetensors")
                there = set(insides[file].top) if torch else {span.name for span in insides[file].spans}
                more = set[str]() if torch else there - tensors
                yield from (Lack("is not in it, and the index says so", file, each) for each in sorted(tensors - there))
                yield from (Lack("is there, and the index does not name it", index, each) for each in sorted(more))


def _unnamed(index: str, named: Collection[str], insides: Mapping[str, Inside]) -> Iterator[Lack]:
    stem, _, suffix = index.removesuffix(".index.json").rpartition(".")
    series = {f"{stem}.{suffix}", *(_OF.sub("", file) for file in named if _OF.search(file))}
    totals = {int(of[2]) for file in named if (of := _OF.search(file))}
    for file in sorted(insides.keys() - named):
        if (of := _OF.search(file)) and _OF.sub("", file) in series:
            yield Lack(f"is there, and {index.rpartition('/')[2]} does not name it", file, sure=int(of[2]) in totals)
