"""The contract of a guarantee: one thing that must be so in a run, and what breaks it.

Each file of `harness/judge/guarantees/` is one, by its name: `restart_newest.py` is `restart.newest`. The first line of
its docstring is the sentence that people read. A guarantee looks at facts and says in words what breaks it. It does not
weigh evidence: the strength of a breach comes with its facts, and doubts about evidence are in
`harness/judge/assumptions/`. `harness.judge.weighing` merges the two.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.judge.facts.analysis import Analysis as Analysis
from harness.judge.facts.faults import struck
from harness.judge.facts.known import By, Known, Odd, weakest
from harness.judge.verdict import Ground, Kind
from harness.plugins import Family
from harness.timeline.timeline import FaultRecord as FaultRecord

RUN, DRILL, SECOND_RESTART = "run", "restore drill", "second restart"  # what a guarantee may hold for


@dataclass(frozen=True)
class Breach:
    """A violation of a guarantee, in words. `by`: strength of its weakest fact. `grounds`: evidence that an assumption
    may spoil. `of`: whose breach it is, as a fault's id; one is told for each. `idle`: it concerns rolled-back steps
    only, and is dropped if its process died with them."""

    words: str
    by: By
    grounds: tuple[Ground, ...] = ()
    of: str = ""
    idle: bool = False


Breaches = Iterator[Breach]
Flaws = Iterator[str]  # a fault's flaws, in words that follow its id


def breach(words: str, *facts: Known, grounds: Sequence[Ground] = (), of: str = "", idle: bool = False) -> Breach:
    """Makes a breach. `facts`: the facts that it rests on. Without facts it is as strong as the harness's own sight."""
    return Breach(words, weakest(*facts), tuple(grounds), of, idle)


def of_fault(words: str, fault: str) -> Breach:
    """Makes a breach of the fault with this id. A rehearsal that people stopped says nothing of its faults."""
    return breach(f"fault {fault} {words}", grounds=[Ground(Kind.FAULTS)], of=fault)


def of_second(words: str, *facts: Known) -> Breach:
    return breach(f"{SECOND_RESTART}: {words}", *facts)


def in_words(facts: Iterable[Odd], *grounds: Ground) -> Iterator[Breach]:
    return (breach(each.words, each, grounds=grounds) for each in facts)


@dataclass(frozen=True)
class Guarantee:
    """`breaches`: yields all violations. `nothing`: why a run without a breach proves nothing, as no restart came; an
    empty text where it held. `rests_on`: kinds of evidence that it needs, as in `harness.judge.facts.reported`.
    `explained_by`: names of guarantees whose breach also breaks this one. `holds_for`: kinds of run that it is checked
    in. `switch`: the key in `expect:` that switches it off by `off`.

    `needs_steps`: it is not judged if the job's steps are not known. `until_the_end`: a rehearsal that people
    stopped says nothing of it. `of_a_fault`: its breach shows that a fault did not act as planned, so that the run
    proves nothing.
    """

    breaches: Callable[[Analysis], Breaches]
    rests_on: tuple[str, ...] = ()
    explained_by: tuple[str, ...] = ()
    holds_for: tuple[str, ...] = (RUN, DRILL, SECOND_RESTART)
    nothing: Callable[[Analysis], str] = lambda evidence: ""
    switch: str = ""
    needs_steps: bool = True
    until_the_end: bool = False
    of_a_fault: bool = False


def of_faults(flaws: Callable[[Analysis, FaultRecord], Flaws], **more: Any) -> Guarantee:
    """Makes a guarantee that each fault acted as planned. `flaws`: yields evidence that one did not."""

    def breaches(evidence: Analysis) -> Breaches:
        for fault in struck(evidence):
            yield from (of_fault(words, fault.id) for words in flaws(evidence, fault))

    return replace(Guarantee(breaches, holds_for=(RUN,), needs_steps=False, of_a_fault=True), **more)


def second_guarantee(breaches: Callable[[Analysis], Breaches], nothing: Callable[[Analysis], str]) -> Guarantee:
    """Makes a guarantee about a run and its second restart."""
    explained_by = ("saves.one_writer",)
    return Guarantee(breaches, (), explained_by, (RUN,), nothing, switch="second_restart", until_the_end=True)


FAMILY = Family("guarantee", "harness.judge.guarantees", "GUARANTEE")
# Place of each family among the findings of scores, and the order of families in reports.
ORDER: Mapping[str, int] = {
    "fault": -1,
    "job": 0,
    "end": 0,
    "steps": 1,
    "restart": 2,
    "saves": 3,
    "result": 29,
    "again": 41,
    "drill": 42,
    "second": 43,
}


@functools.cache
def guarantees() -> Mapping[str, Guarantee]:
    """Returns all guarantees by name, family by family."""
    files = sorted(FAMILY.names(), key=lambda file: (ORDER.get(file.partition("_")[0], len(FAMILY.names())), file))
    return {file.replace("_", ".", 1): FAMILY.load(file) for file in files}


def family(name: str) -> str:
    return name.partition(".")[0]
