"""Defines assumptions: conditions that must hold before the judge can trust or compare the evidence of a run.

Each file of `harness/judge/assumptions/` defines one assumption; docs/guarantees.md shows the file's docstring. If an
assumption is broken in a run, each finding that depends on the assumption is *inconclusive*. A breach of a guarantee
names its evidence (`Ground`). An assumption lists the kinds of evidence that are doubtful if the assumption is broken.
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
    """One way in which a broken assumption makes evidence doubtful. `why` returns the reason for the doubt, or an empty
    text. `settles` is advice on how to remove the doubt, in which `{run}` stands for the command that repeats the run.
    If `alone` is True, the report shows the reason instead of the finding. If `either_way` is True, passed expectations
    become inconclusive, too."""

    kind: Kind
    why: Callable[[Analysis, Ground], str]
    settles: str = ""
    alone: bool = False
    either_way: bool = False


@dataclass(frozen=True)
class Assumption:
    """A condition on a run's evidence. `broken` yields the reasons why the condition fails; the first reason makes the
    run inconclusive. `broken` is called only for the kinds of run in `holds_for`. `broken` is not called if a guarantee
    of the family `family`, such as `restart`, is certainly broken. `spoils` lists the evidence that becomes doubtful.
    Of several broken assumptions, the report names the one with the lowest `order`. `settles` says how to get a
    conclusive verdict."""

    broken: Callable[[Analysis], Reasons] = lambda evidence: iter(())
    spoils: Sequence[Spoils] = ()
    holds_for: tuple[str, ...] = ("run", "restore drill", "second restart")
    order: int = 5
    family: str = ""
    settles: str = ""


FAMILY = Family("assumption", "harness.judge.assumptions", "ASSUMPTION")


@functools.cache
def assumptions() -> Mapping[str, Assumption]:
    """Returns all assumptions, sorted by name (such as `clocks-known`)."""
    return {file.replace("_", "-"): FAMILY.load(file) for file in FAMILY.names()}


@dataclass(frozen=True)
class Spoilt:
    """A doubt about evidence: the name of the broken assumption, the reason, and advice on how to remove the doubt."""

    assumption: str
    why: str
    settles: str
    alone: bool

    def after(self, words: str) -> str:
        return self.why if self.alone else f"{words}; {self.why}"


def spoilt(grounds: Sequence[Ground], evidence: Analysis, good: bool = False) -> Spoilt | None:
    """Returns the doubt about the evidence `grounds`, or `None` if no broken assumption makes any of this evidence
    doubtful. `good` is False if the evidence shows a breach or a missed limit, and True otherwise."""
    for name, each in sorted(assumptions().items(), key=lambda each: each[1].order):
        for row in each.spoils:
            for ground in grounds if row.either_way or not good else ():
                if row.kind is ground.kind and (why := _why(row, evidence, ground)):
                    return Spoilt(name, why, row.settles, row.alone)
    return None


def _why(row: Spoils, evidence: Analysis, ground: Ground) -> str:
    try:
        return row.why(evidence, ground)
    except Exception as error:
        return f"the judge crashed: {type(error).__name__}: {error}"
