"""Defines assumptions: conditions that must hold before the judge can trust or compare the evidence of a run.

Each file of `harness/judge/assumptions/` defines one assumption, named after the file. The page docs/guarantees.md
shows the docstring of each such file. If an assumption is broken, all verdicts that rest on the assumption become
*inconclusive*, and the report gives the reason. Each breach of a guarantee names the evidence that shows this breach
(`Ground`). Each assumption names the kinds of evidence that become doubtful if the assumption is broken.
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
    """One way in which a broken assumption makes evidence doubtful. `why` returns the reason for the doubt in this run,
    or an empty text. `settles` is advice on how to remove the doubt, in which `{run}` is the command that repeats the
    run. If `alone` is True, the report shows only this reason, without the words of the breach. If `either_way` is
    True, the doubt makes not only a breach but also a passed expectation inconclusive."""

    kind: Kind
    why: Callable[[Analysis, Ground], str]
    settles: str = ""
    alone: bool = False
    either_way: bool = False


@dataclass(frozen=True)
class Assumption:
    """One assumption. `broken` yields reasons that make the whole run inconclusive, and only the first is reported.
    `spoils` says which evidence becomes doubtful if the assumption is broken. `holds_for` names the kinds of run for
    which `broken` is checked. If several assumptions make one piece of evidence doubtful, the report names the
    assumption with the lowest `order`. `broken` is not checked if a guarantee of `family` (such as `restart`) is
    certainly broken. `settles` is advice on how to get a conclusive run."""

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
    """Returns the first assumption that makes some of this evidence doubtful, or `None`. `good` is True if the evidence
    supports a passed expectation, and not a breach."""
    for name, each in sorted(assumptions().items(), key=lambda each: each[1].order):
        for row in each.spoils:
            for ground in grounds if row.either_way or not good else ():
                if row.kind is ground.kind and (why := _why(row, evidence, ground)):
                    return Spoilt(name, why, row.settles, row.alone)
    return None


def _why(row: Spoils, evidence: Analysis, ground: Ground) -> str:
    """Returns the reason why the evidence is doubtful, or an empty text. A crash of `Spoils.why` is a reason, too."""
    try:
        return row.why(evidence, ground)
    except Exception as error:
        return f"the judge crashed: {type(error).__name__}: {error}"
