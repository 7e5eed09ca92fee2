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

from harness.errors import UsageError, choice
from harness.evidence.faults import struck
from harness.evidence.reported import ITEMS
from harness.evidence.work import Waited
from harness.judge.bounds import BOUNDS
from harness.judge.facts.analysis import Analysis as Analysis
from harness.judge.facts.known import By, Known, Odd, weakest
from harness.judge.verdict import Ground, Kind
from harness.plugins import Family
from harness.timeline.timeline import FaultRecord as FaultRecord

RUN, DRILL, SECOND_RESTART = KINDS_OF_RUN = "run", "restore drill", "second restart"
FACTS = "a save of evidence.saves.all, a restart of evidence.restarts, a restore of its members (docs/evidence.md)"


@dataclass(frozen=True)
class Breach:
    """A violation of a guarantee. `by` is the certainty of the breach's least certain fact. `grounds` lists evidence
    that a broken assumption can make doubtful. The report shows one breach for each subject `of`, such as a fault's id.
    An `idle` breach concerns only rolled-back steps of a process, and is dropped if a fault killed the process."""

    words: str
    by: By
    grounds: tuple[Ground, ...] = ()
    of: str = ""
    idle: bool = False


Breaches = Iterator[Breach]
Flaws = Iterator[str]  # a fault's flaws, in words that follow its id


def breach(words: str, *facts: Known, grounds: Sequence[Ground] = (), of: str = "", idle: bool = False) -> Breach:
    """Returns a breach that is as certain as its least certain fact. Raises `TypeError` for wrong arguments."""
    if not isinstance(words, str) or not words.strip():
        raise TypeError(f"breach(words): words is {words!r:.60}; write a sentence that says what is wrong")
    for each in facts:
        if not hasattr(each, "by"):
            raise TypeError(f"breach(words, fact): {each!r:.60} is no fact; take one that has `by`: {FACTS}")
    if not all(isinstance(each, Ground) for each in grounds):
        raise TypeError(f"breach(grounds=[…]): {grounds!r:.60} holds more than Ground(Kind.…)")
    return Breach(words, weakest(*facts), tuple(grounds), of, idle)


def of_fault(words: str, fault: str) -> Breach:
    """Returns a breach that concerns one fault. If people stopped the fault test early, the breach is inconclusive."""
    return breach(f"fault {fault} {words}", grounds=[Ground(Kind.FAULTS)], of=fault)


def of_second(words: str, *facts: Known, grounds: Sequence[Ground] = ()) -> Breach:
    return breach(f"{SECOND_RESTART}: {words}", *facts, grounds=grounds)


def after(wait: Waited | None) -> list[Ground]:
    """Returns the grounds of a breach that may be a timeout after the wait `wait`. A busy host can cause a timeout in a
    healthy job."""
    return [Ground(Kind.DURATION, of=wait)] if wait else []


def in_words(facts: Iterable[Odd], *grounds: Ground) -> Iterator[Breach]:
    return (breach(each.words, each, grounds=grounds) for each in facts)


@dataclass(frozen=True)
class Guarantee:
    """A condition that must hold in each run. `breaches` yields each violation. Without a breach, `nothing` returns why
    the run proves nothing (such as no restart), or an empty text if the guarantee held. A guarantee without a breach is
    not judged if the log lacks evidence that `rests_on` names. If `needs_steps` is True, a run without known steps is
    not judged. `explained_by` names guarantees whose breach may cause a breach of this guarantee. `holds_for` names the
    kinds of run in which the guarantee is checked. A breach in a restore drill or second restart is inconclusive,
    because only the drill's or restart's log shows the breach. `expect: {SWITCH: off}` switches the guarantee off,
    where SWITCH is `switch` or a plug-in's own name. If `until_the_end` is True, a breach is inconclusive in a fault
    test that people stopped early. If `of_a_fault` is True, a breach shows that a fault did not act as planned."""

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
    """Returns a guarantee on all faults. `flaws` yields each way in which one fault did not act as planned."""

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
    """Returns all guarantees by name, sorted by family. In a family, guarantees on samples come first."""
    place = {file: ORDER.get(file.partition("_")[0], len(FAMILY.names())) for file in FAMILY.names()}
    files = sorted(place, key=lambda file: (place[file], "samples" not in file, file))
    return {dotted(file): load_guarantee(file) for file in files}


def load_guarantee(file: str) -> Guarantee:
    """Returns the guarantee that this file, or plug-in, defines. Raises `UsageError` for an invalid definition."""
    found: Guarantee = FAMILY.load(file)
    if wrong := next(_mistakes(file, found), ""):
        raise UsageError(f"{FAMILY.module(file).__file__}: {wrong}")
    return replace(found, switch=file) if of_a_plugin(file) else found


def _mistakes(file: str, found: Any) -> Iterator[str]:
    if not isinstance(found, Guarantee):
        yield f"GUARANTEE is {found!r:.60}; write GUARANTEE = Guarantee(breaches)"
        return
    if "_" not in file or file in BOUNDS:
        yield f"{file!r} is no name of a guarantee; write FAMILY_NAME, like steps_small_loss, and no key of `expect:`"
    if not FAMILY.sentence(file).strip():
        yield "it has no docstring; write one, whose first line is the sentence that reports show"
    if not callable(found.breaches) or not callable(found.nothing):
        yield f"breaches={found.breaches!r:.60}, nothing={found.nothing!r:.60}: both are functions of the evidence"
    names = [dotted(each) for each in FAMILY.names()]
    for key, allowed in (("rests_on", ITEMS), ("holds_for", KINDS_OF_RUN), ("explained_by", names)):
        given = getattr(found, key)
        if not isinstance(given, tuple) or (key == "holds_for" and not given):
            yield f"{key} is {given!r:.60}; write a tuple, like ({next(iter(allowed))!r},)"
        for each in (each for each in given if each not in [*allowed]):
            known = choice(each, allowed) if allowed is names else f"choose one of: {', '.join(allowed)}"
            yield f"{key}: unknown {each!r:.60}; {known}"
    if of_a_plugin(file) and found.switch not in ("", file):
        yield f"switch is {found.switch!r:.60}; leave it out: `expect: {{{file}: off}}` switches it off"


def breaches_of(guarantee: Guarantee, evidence: Analysis) -> Breaches:
    """Yields the breaches in a run. Raises an error if a plug-in yields something other than valid breaches."""
    run = evidence.run
    for each in guarantee.breaches(evidence):
        if not isinstance(each, Breach):
            raise TypeError(f"`breaches` yields {each!r:.60}; yield breach(words)")
        for begin, end in (ground.of for ground in each.grounds if type(ground.of) is tuple):
            if not (begin <= end and begin <= run.end and run.begin <= end):
                window = f"the window ({begin}, {end}) of a Ground is outside of the run"
                raise ValueError(f"{window}, ({run.begin}, {run.end}); write (begin, end) in ns, as in evidence.run")
        yield each


def proves_nothing(guarantee: Guarantee, evidence: Analysis) -> str:
    """Returns the text of `nothing`: why the run proves nothing. Raises `TypeError` if `nothing` returns no text."""
    text = guarantee.nothing(evidence)
    if not isinstance(text, str):
        raise TypeError(f"`nothing` returns {text!r:.60}; return a text: why the run proves nothing, or an empty one")
    return text


def dotted(file: str) -> str:
    return file.replace("_", ".", 1)


def of_a_plugin(name: str) -> bool:
    return name.replace(".", "_", 1) in FAMILY.added()


def family(name: str) -> str:
    return name.partition(".")[0]
