"""The contract of an assumption: what must be so before evidence can be believed or compared.

Each file of `harness/judge/assumptions/` is one, by its name. The first line of its docstring is the sentence that
people read. A broken one makes *inconclusive* of what rests on it, and says why in its own words. No guarantee knows an
assumption: it names its ground, and an assumption spoils grounds of one kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.judge.facts.analysis import Analysis
from harness.judge.verdict import Ground, Kind
from harness.plugins import Family

AGAIN = "Run it again on a quiet host, with fault-free runs of its own"
FRESH = f"{AGAIN}: {{run}} --fresh-fault-free"


@dataclass(frozen=True)
class Spoils:
    """`why` says in words what spoils this ground in this run; an empty text: nothing does. `settles`: what would tell,
    as one line for people; `{run}` in it is the command that runs the scenario again. `alone`: the words of `why` stand
    in place of the breach's own, which are about nothing then. `either_way`: they spoil what is good as well."""

    kind: Kind
    why: Callable[[Analysis, Ground], str]
    settles: str = ""
    alone: bool = False
    either_way: bool = False


def nothing(evidence: Analysis) -> Iterator[str]:
    return iter(())


@dataclass(frozen=True)
class Assumption:
    """`broken`: what breaks it for the run as a whole, in words: then the run is inconclusive. Of that the first one is
    told. `spoils`: the grounds that it makes doubtful. `holds_for`: as of a guarantee. `order`: the least is asked
    first. `family`: of guarantees; where one of them is broken for sure, this one is not told of the whole run.
    `settles`: what would tell of the whole run, as in `Spoils`."""

    broken: Callable[[Analysis], Iterator[str]] = nothing
    spoils: Sequence[Spoils] = ()
    holds_for: tuple[str, ...] = ("run", "restore drill", "second restart")
    order: int = 5
    family: str = ""
    settles: str = ""


FAMILY = Family("assumption", "harness.judge.assumptions", "ASSUMPTION")


@functools.cache
def assumptions() -> Mapping[str, Assumption]:
    """All of them by name, as `clocks-known`, sorted."""
    return {file.replace("_", "-"): FAMILY.load(file) for file in FAMILY.names()}


def statement(name: str) -> str:
    """The sentence that people read."""
    return FAMILY.sentence(name.replace("-", "_"))


def details(name: str) -> list[str]:
    """Beyond the sentence, a paragraph each."""
    return FAMILY.details(name.replace("-", "_"))


@dataclass(frozen=True)
class Spoilt:
    """By which assumption, why in words, and what would settle it."""

    assumption: str
    why: str
    settles: str
    alone: bool

    def after(self, words: str) -> str:
        return self.why if self.alone else f"{words}; {self.why}"


def spoilt(grounds: Sequence[Ground], evidence: Analysis, good: bool = False) -> Spoilt | None:
    """By the first broken assumption that one of these grounds rests on. `good`: what rests on them is."""
    for name, each in _in_order():
        for row in each.spoils:
            for ground in grounds if row.either_way or not good else ():
                if row.kind is ground.kind and (why := row.why(evidence, ground)):
                    return Spoilt(name, why, row.settles, row.alone)
    return None


def _in_order() -> Sequence[tuple[str, Assumption]]:
    """What leaves nothing else to say comes first."""
    return sorted(assumptions().items(), key=lambda each: each[1].order)
