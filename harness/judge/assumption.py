"""The contract of an assumption: what must be so before evidence can be believed or compared.

Each file of `harness/judge/assumptions/` is one, by its name. The first line of its docstring is the sentence that
people read. A broken one makes *inconclusive* of what rests on it, and says why in its own words. No guarantee knows an
assumption: it names its ground, and an assumption spoils grounds of one kind.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.judge.facts.analysis import Analysis as Analysis
from harness.judge.verdict import Ground as Ground
from harness.judge.verdict import Kind as Kind
from harness.plugins import Family

AGAIN = "Run it again on a quiet host"
FRESH = f"{AGAIN}, with fault-free runs of its own: {{run}} --fresh-fault-free"
Reasons = Iterator[str]  # what breaks an assumption, in words


@dataclass(frozen=True)
class Spoils:
    """One way to spoil a ground. `why` returns what spoils the ground in this run, or an empty text. `settles`: one
    line that says how to find out; `: {run}` at its end is the command that runs the scenario again. `alone`: `why`
    replaces the breach's own words. `either_way`: a passed expectation becomes doubtful, too."""

    kind: Kind
    why: Callable[[Analysis, Ground], str]
    settles: str = ""
    alone: bool = False
    either_way: bool = False


@dataclass(frozen=True)
class Assumption:
    """`broken` yields what makes the whole run inconclusive; the first one is told. `spoils`: the grounds that it makes
    doubtful. `holds_for`: kinds of run, as in a guarantee. `order`: lower ones are asked first. `family`: if a
    guarantee of this family fails for sure, `broken` is not told. `settles`: how to find out, as in `Spoils`."""

    broken: Callable[[Analysis], Reasons] = lambda evidence: iter(())
    spoils: Sequence[Spoils] = ()
    holds_for: tuple[str, ...] = ("run", "restore drill", "second restart")
    order: int = 5
    family: str = ""
    settles: str = ""


FAMILY = Family("assumption", "harness.judge.assumptions", "ASSUMPTION")


@functools.cache
def assumptions() -> Mapping[str, Assumption]:
    """All assumptions by name, as `clocks-known`, sorted."""
    return {file.replace("_", "-"): FAMILY.load(file) for file in FAMILY.names()}


@dataclass(frozen=True)
class Spoilt:
    """The assumption that is broken, why, and how to find out."""

    assumption: str
    why: str
    settles: str
    alone: bool

    def after(self, words: str) -> str:
        return self.why if self.alone else f"{words}; {self.why}"


def spoilt(grounds: Sequence[Ground], evidence: Analysis, good: bool = False) -> Spoilt | None:
    """Returns the first broken assumption that one of these grounds rests on. `good`: for one that is met."""
    for name, each in sorted(assumptions().items(), key=lambda each: each[1].order):
        for row in each.spoils:
            for ground in grounds if row.either_way or not good else ():
                if row.kind is ground.kind and (why := _why(row, evidence, ground)):
                    return Spoilt(name, why, row.settles, row.alone)
    return None


def _why(row: Spoils, evidence: Analysis, ground: Ground) -> str:
    """Returns what spoils the ground. What cannot be computed is not known to be sound."""
    try:
        return row.why(evidence, ground)
    except Exception as error:
        return f"the judge crashed: {type(error).__name__}: {error}"
