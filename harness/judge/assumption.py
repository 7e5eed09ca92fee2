"""The contract of an assumption: a condition that must hold before evidence can be believed or compared.

Each file of `harness/judge/assumptions/` defines one assumption, named after the file. The first line of the file's
docstring is the sentence that people read. If an assumption is broken, all verdicts that rest on it become
*inconclusive*, and the assumption gives the reason in words. No guarantee names an assumption: a breach names its
grounds, and an assumption spoils grounds of certain kinds.
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
Reasons = Iterator[str]  # violations of an assumption, in words


@dataclass(frozen=True)
class Spoils:
    """One way to spoil a ground. `why` returns the reason why the ground is doubtful in this run, or an empty text.
    `settles`: advice how to settle the doubt, in one line; `{run}` stands for the command that runs the scenario again.
    `alone`: `why` replaces the breach's own words. `either_way`: a passed expectation becomes doubtful, too."""

    kind: Kind
    why: Callable[[Analysis, Ground], str]
    settles: str = ""
    alone: bool = False
    either_way: bool = False


@dataclass(frozen=True)
class Assumption:
    """`broken` yields reasons that make the whole run inconclusive; only the first is reported. `spoils`: the grounds
    that the assumption makes doubtful. `holds_for`: kinds of run, as in a guarantee. `order`: assumptions with a lower
    number are checked first. `family`: `broken` is not checked if a guarantee of this family certainly fails.
    `settles`: advice, as in `Spoils`."""

    broken: Callable[[Analysis], Reasons] = lambda evidence: iter(())
    spoils: Sequence[Spoils] = ()
    holds_for: tuple[str, ...] = ("run", "restore drill", "second restart")
    order: int = 5
    family: str = ""
    settles: str = ""


FAMILY = Family("assumption", "harness.judge.assumptions", "ASSUMPTION")


@functools.cache
def assumptions() -> Mapping[str, Assumption]:
    """Returns all assumptions by name (such as `clocks-known`), sorted."""
    return {file.replace("_", "-"): FAMILY.load(file) for file in FAMILY.names()}


@dataclass(frozen=True)
class Spoilt:
    """The broken assumption, the reason, and how to settle the doubt."""

    assumption: str
    why: str
    settles: str
    alone: bool

    def after(self, words: str) -> str:
        return self.why if self.alone else f"{words}; {self.why}"


def spoilt(grounds: Sequence[Ground], evidence: Analysis, good: bool = False) -> Spoilt | None:
    """Returns the first broken assumption that one of these grounds rests on. `good`: the grounds are those of a passed
    expectation."""
    for name, each in sorted(assumptions().items(), key=lambda each: each[1].order):
        for row in each.spoils:
            for ground in grounds if row.either_way or not good else ():
                if row.kind is ground.kind and (why := _why(row, evidence, ground)):
                    return Spoilt(name, why, row.settles, row.alone)
    return None


def _why(row: Spoils, evidence: Analysis, ground: Ground) -> str:
    """Returns the reason why the ground is spoilt, or an empty text. A crash of the computation spoils the ground,
    too."""
    try:
        return row.why(evidence, ground)
    except Exception as error:
        return f"the judge crashed: {type(error).__name__}: {error}"
