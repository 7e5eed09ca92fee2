"""Defines guarantees: conditions that must hold in a run, each with a function that finds breaches of the condition.

Each file of `harness/judge/guarantees/` defines one guarantee, named after the file: `restart_newest.py` defines
`restart.newest`. Reports show the first line of each guarantee's docstring. A guarantee reads facts about the run, and
describes each breach in words. `harness/judge/facts/tellers.py` rates how certain each fact is. The files in
`harness/judge/assumptions/` check whether evidence can be trusted. `weighing.py` decides the verdict on each breach.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.judge.facts.analysis import Analysis as Analysis
from harness.judge.facts.faults import struck
from harness.judge.facts.job_end import Waited
from harness.judge.facts.known import By, Known, Odd, weakest
from harness.judge.verdict import Ground, Kind
from harness.plugins import Family
from harness.timeline.timeline import FaultRecord as FaultRecord

RUN, DRILL, SECOND_RESTART = "run", "restore drill", "second restart"  # kinds of run


@dataclass(frozen=True)
class Breach:
    """A violation of a guarantee, in words. `by` is the certainty of the least certain fact that shows the breach.
    `grounds` is the evidence for the breach, which a broken assumption can make doubtful. `of` is the subject of the
    breach, such as a fault's id. For each subject, the report shows only one breach. If `idle` is True, the breach
    concerns only rolled-back steps of a process, and is dropped if a fault killed this process."""

    words: str
    by: By
    grounds: tuple[Ground, ...] = ()
    of: str = ""
    idle: bool = False


Breaches = Iterator[Breach]
Flaws = Iterator[str]  # a fault's flaws, in words that follow its id


def breach(words: str, *facts: Known, grounds: Sequence[Ground] = (), of: str = "", idle: bool = False) -> Breach:
    """Returns a breach that `facts` show. If `facts` is empty, the breach counts as seen by the harness itself."""
    return Breach(words, weakest(*facts), tuple(grounds), of, idle)


def of_fault(words: str, fault: str) -> Breach:
    """Returns a breach that concerns one fault. If people stopped the fault test early, the breach is inconclusive."""
    return breach(f"fault {fault} {words}", grounds=[Ground(Kind.FAULTS)], of=fault)


def of_second(words: str, *facts: Known, grounds: Sequence[Ground] = ()) -> Breach:
    return breach(f"{SECOND_RESTART}: {words}", *facts, grounds=grounds)


def after(wait: Waited | None) -> list[Ground]:
    """Returns the evidence for a failure that came after this wait: a busy host may cause a timeout."""
    return [Ground(Kind.DURATION, of=wait)] if wait else []


def in_words(facts: Iterable[Odd], *grounds: Ground) -> Iterator[Breach]:
    return (breach(each.words, each, grounds=grounds) for each in facts)


@dataclass(frozen=True)
class Guarantee:
    """A condition that must hold in each run. `breaches` yields each violation of the guarantee. If a run has no
    breach, `nothing` returns why this proves nothing (such as no restart), or an empty text if the guarantee held.
    `rests_on` names evidence without which the guarantee is not judged. A guarantee that is not judged leaves the
    verdict as it is, and the report says why. `explained_by` names guarantees whose breach may cause a breach of this
    one. `holds_for` names the kinds of run in which the guarantee is checked. A breach in a restore drill or second
    restart is inconclusive and leaves the guarantee open, because only the restart's own log shows the breach. The
    value `off` of the key `switch` in `expect:` switches the guarantee off. If `needs_steps` is True, the guarantee is
    judged only if the job's steps are known. If `until_the_end` is True, a breach is inconclusive in a fault test that
    people stopped early. If `of_a_fault` is True, a breach shows that a fault did not act as planned."""

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
    """Returns a guarantee for each fault. `flaws` yields each way in which one fault did not act as planned."""

    def breaches(evidence: Analysis) -> Breaches:
        for fault in struck(evidence):
            yield from (of_fault(words, fault.id) for words in flaws(evidence, fault))

    return replace(Guarantee(breaches, holds_for=(RUN,), needs_steps=False, of_a_fault=True), **more)


def second_guarantee(breaches: Callable[[Analysis], Breaches], nothing: Callable[[Analysis], str]) -> Guarantee:
    """Returns a guarantee that compares a run with its second restart, which repeats the run's last steps."""
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
    """Returns all guarantees by name, sorted by family (the part of a name before the dot). In a family, guarantees on
    samples come first: other samples give other losses."""
    place = {file: ORDER.get(file.partition("_")[0], len(FAMILY.names())) for file in FAMILY.names()}
    files = sorted(place, key=lambda file: (place[file], "samples" not in file, file))
    return {file.replace("_", ".", 1): FAMILY.load(file) for file in files}


def family(name: str) -> str:
    return name.partition(".")[0]
