"""Defines assumptions: conditions that must hold before the judge can trust or compare the evidence of a run.

Each file of `harness/judge/assumptions/` defines one assumption, named after the file. The page docs/guarantees.md
shows the docstring of each such file. If an assumption is broken, all verdicts that rest on the assumption become
*inconclusive*, and the report gives the reason. Each breach of a guarantee lists the evidence for this breach
(`Ground`). An assumption names the kinds of evidence that become doubtful if the assumption is broken.
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
    """A way in which a broken assumption makes evidence doubtful. `why` returns the reason why this run's evidence is
    doubtful, or an empty text. `settles`: advice on how to remove the doubt; `{run}` is the command that runs the
    scenario again. `alone`: the report shows only this reason, without the words of the breach. `either_way`: the doubt
    makes a passed expectation inconclusive, too, not only a breach."""

    kind: Kind
    why: Callable[[Analysis, Ground], str]
    settles: str = ""
    alone: bool = False
    either_way: bool = False


@dataclass(frozen=True)
class Assumption:
    """`broken` yields reasons that make the whole run inconclusive; only the first is reported. `spoils`: the evidence
    that becomes doubtful if the assumption is broken. `holds_for`: the kinds of run for which `broken` is checked.
    `order`: if several assumptions make the same evidence doubtful, the report names the assumption with the lowest
    `order`. `family`: `broken` is not checked if a guarantee of this family (such as `restart`) is certainly broken.
    `settles`: advice on how to get a conclusive run."""

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
    """A doubt about evidence: the broken assumption, the reason, and advice on how to remove the doubt."""

    assumption: str
    why: str
    settles: str
    alone: bool

    def after(self, words: str) -> str:
        return self.why if self.alone else f"{words}; {self.why}"


def spoilt(grounds: Sequence[Ground], evidence: Analysis, good: bool = False) -> Spoilt | None:
    """Returns the first assumption that makes some of this evidence doubtful, or `None`. `good`: the evidence supports
    a passed expectation, not a breach."""
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
