"""Grades the answers about one run. Pure.

Each fault gets the grade of the best answer about it. If a wrong answer about the fault came no later than the best
answer, the fault gets the grade of the wrong answer, because an operator would act on the first answer. An answer that
fits no fault is a false alarm. A suspect is innocent if no fault had hit it by the time of the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from harness.diagnosis.answer import BROKEN, Answer, Decision, Kind, Suspect
from harness.diagnosis.injected import Injected, RunFaults, Victim
from harness.log.truth import Place
from harness.timeline.lineage import NEVER

EARLY_NS = 10**9  # an answer may come so much before a fault began, as other clocks differ
TOGETHER_NS = 5 * 10**9  # faults that begin so close to each other may have one answer
CONTROL = "control"  # the host of the rendezvous store: no node of the job, so that nobody innocent is accused


class Grade(StrEnum):
    RIGHT = "right"
    COARSE = "coarse"  # the node instead of the rank, or nobody
    LATE = "late"
    WRONG = "wrong"  # another kind, or an innocent
    UNSURE = "unsure"  # the diagnoser says that it does not know
    MISSING = "missing"


FOUND = (Grade.RIGHT, Grade.COARSE, Grade.LATE)


@dataclass(frozen=True)
class GradedFault:
    """A fault, its grade, and the deciding answer, if any. `after_ns` is the time from the fault to `answer`."""

    injected: Injected
    grade: Grade
    answer: Answer | None = None
    after_ns: int | None = None

    @property
    def decision_right(self) -> bool | None:
        """Returns True if the answer's decision helps against the fault, `None` after a miss or without a decision."""
        decision = self.answer.decision if self.answer and self.grade in FOUND else None
        return None if decision is None else decision in self.injected.truth.decisions

    @property
    def kind(self) -> Kind:
        return Kind.NONE if self.injected.truth.benign else self.injected.truth.kinds[0]


@dataclass(frozen=True)
class RunGrade:
    """The grades of all answers about one run. `judged` holds each distinct accusation, and whether the accusation fits
    a fault. An accusation reports a failure, or acts against an innocent without such a report. In a run with an
    ungraded fault, `judged` holds only answers that fit another fault.
    `innocents` maps each innocent (a rank, a node or `the job`) to the first answer that accused it."""

    truth: RunFaults
    answers: Sequence[Answer]
    faults: Sequence[GradedFault]
    judged: Sequence[tuple[Answer, bool]]
    innocents: Mapping[str, Answer]


@dataclass(frozen=True)
class _Timed:
    """A diagnoser's answer with its time on the run's clock (`None`: unknown), its grade for each fault, and the ranks
    and nodes that it accuses although no fault had struck them (`innocents`)."""

    answer: Answer
    at: int | None
    grades: Sequence[Grade | None]
    innocents: Sequence[str] = ()

    @property
    def true_of(self) -> tuple[int, ...]:
        return tuple(place for place, grade in enumerate(self.grades) if grade in FOUND)


def grade_run(truth: RunFaults, answers: Iterable[Answer], within_ns: int) -> RunGrade:
    """Grades the answers about a run. A right answer is late if it comes over `within_ns` after its fault began."""
    timed = []
    for answer in answers:
        at = truth.moment(answer.at, answer.step)
        grades = [_grade(fault, answer, at, within_ns) for fault in truth.faults]
        each = _Timed(answer, at, _credited(truth.faults, grades, at))
        timed.append(_acting(truth, replace(each, innocents=_innocents(truth, each))))
    timed.sort(key=lambda each: (each.at is None, each.at or 0))
    faults = [_best(fault, place, timed) for place, fault in enumerate(truth.faults)]
    judged: dict[object, tuple[Answer, bool]] = {}
    innocents: dict[str, Answer] = {}
    for each in (each for each in timed if each.true_of or not truth.not_graded):
        if each.answer.kind in BROKEN or each.innocents:
            judged.setdefault((each.answer.kind, each.answer.who, each.true_of), (each.answer, bool(each.true_of)))
        innocents |= {part: each.answer for part in each.innocents if part not in innocents}
    return RunGrade(truth, [each.answer for each in timed], faults, [*judged.values()], innocents)


def _acting(truth: RunFaults, each: _Timed) -> _Timed:
    """Returns an answer whose grades are `wrong` if it acts against an innocent, but reports no failure. In a run with
    an ungraded fault, nobody is known to be innocent."""
    if each.answer.kind in BROKEN or not each.innocents or truth.not_graded:
        return each
    begun = [each.at is None or fault.begin - EARLY_NS <= each.at for fault in truth.faults]
    return replace(each, grades=[Grade.WRONG if struck else None for struck in begun])


def _credited(faults: Sequence[Injected], grades: Sequence[Grade | None], at: int | None) -> list[Grade | None]:
    """Returns an answer's grade for each fault, or `None` if it does not count. If an answer fits several faults, it
    counts only for the newest of them, and for faults that began at about the same time as the newest."""
    pairs = [*zip(faults, grades, strict=True)]
    since = max((fault.begin for fault, grade in pairs if grade in FOUND), default=0) - TOGETHER_NS
    return [None if at is not None and grade in FOUND and fault.begin < since else grade for fault, grade in pairs]


def _best(fault: Injected, place: int, timed: Sequence[_Timed]) -> GradedFault:
    """Returns a fault with its best grade, and the first answer with this grade. A wrong answer that came no later is
    returned instead. If the best answers' decisions differ, none counts. A benign fault without an answer is right."""
    mine = [(how, each) for each in timed if (how := each.grades[place]) and not (how is Grade.WRONG and each.true_of)]
    if not mine:
        return GradedFault(fault, Grade.RIGHT if fault.truth.benign else Grade.MISSING)
    grade, best = min(mine, key=lambda each: [*Grade].index(each[0]))
    until, decision = NEVER if best.at is None else best.at + EARLY_NS, best.answer.decision
    by_then = [(how, each) for how, each in mine if grade in FOUND and (each.at or 0) < until]
    against = ((how, each) for how, each in by_then if how is Grade.WRONG and _about(fault, each.answer))
    differ = any(each.answer.decision not in (None, decision) for how, each in by_then if how is grade)
    grade, best = next(against, (grade, best))
    answer = msgspec.structs.replace(best.answer, decision=None if differ else best.answer.decision)
    return GradedFault(fault, grade, answer, None if best.at is None else max(0, best.at - fault.begin))


def _about(fault: Injected, answer: Answer) -> bool:
    """Returns True if an answer names the fault's kind, accuses the fault's victim, or accuses nobody."""
    fits = (_fits(fault, suspect) is not None for suspect in answer.who)
    return not answer.who or answer.kind in fault.truth.kinds or any(fits)


def _grade(fault: Injected, answer: Answer, at: int | None, within_ns: int) -> Grade | None:
    """Returns an answer's grade for a fault, or `None` if the answer reports no failure, or came before the fault."""
    if answer.kind is Kind.NONE or (at is not None and at < fault.begin - EARLY_NS):
        return None
    if answer.kind is Kind.UNKNOWN:
        return None if fault.truth.benign else Grade.UNSURE
    named = [_fits(fault, suspect) for suspect in answer.who]
    if answer.kind not in fault.truth.kinds or None in named:
        return Grade.WRONG
    if at is not None and at > fault.begin + within_ns:
        return Grade.LATE
    return Grade.RIGHT if (all(named) if named else fault.truth.place is Place.JOB) else Grade.COARSE


def _fits(fault: Injected, suspect: Suspect) -> bool | None:
    """Returns True if a suspect is a fault's victim, False if it is only close (such as a node), else `None`."""
    place = fault.truth.place
    if suspect.rank is None and suspect.node is None:
        if place is Place.FILE and suspect.file is not None:
            return any(_same_file(suspect.file, file) for file in fault.files) or None
        return place is Place.JOB
    if place is Place.JOB:
        return suspect.node == CONTROL or None
    return _struck(fault, suspect) and place is not Place.FILE


def _struck(fault: Injected, suspect: Suspect) -> bool | None:
    """Returns True if a suspect is a fault's victim, False if it is only the victim's node, else `None`."""
    found = [each for victim in fault.victims if (each := _at(fault, victim, suspect)) is not None]
    return any(found) if found else None


def _at(fault: Injected, victim: Victim, suspect: Suspect) -> bool | None:
    node = suspect.node or fault.nodes.get(-1 if suspect.rank is None else suspect.rank)
    if node != victim.node:
        return None
    if fault.truth.place is Place.NODE or victim.rank is None:
        return True
    if suspect.rank is None and suspect.gpu is None:
        return False
    return (suspect.rank == victim.rank if suspect.rank is not None else suspect.gpu == victim.gpu) or None


def _same_file(told: str, true: str) -> bool:
    """Returns True if a path names the damaged file or a folder that contains it, but not the folder of all saves."""
    name, whole = told.rstrip("/").rpartition("/")[2], true.strip("/").split("/")
    return name == whole[-1] or name in whole[1:-1]


def accuses(answer: Answer) -> bool:
    """Returns True if an answer reports a failure, or decides to act, whatever the kind that it reports."""
    return answer.kind in BROKEN or answer.decision not in (None, Decision.IGNORE)


def _innocents(truth: RunFaults, each: _Timed) -> list[str]:
    """Returns the ranks and nodes that an answer accuses, although no fault had struck them by that time. Returns
    `the job` if the answer accuses none of them, but no harmful fault was at work, and its decision is not `ignore`."""
    begun = [fault for fault in truth.faults if each.at is None or fault.begin - EARLY_NS <= each.at]
    struck = [fault for fault in begun if fault.truth.place is not Place.JOB]
    parts = [suspect for suspect in each.answer.who if suspect.rank is not None or suspect.node not in (None, CONTROL)]
    if not accuses(each.answer):
        return []
    if not parts and each.answer.decision is not Decision.IGNORE and not each.true_of:
        return [] if any(not fault.truth.benign for fault in begun) else ["the job"]
    return [str(suspect) for suspect in parts if all(_struck(fault, suspect) is None for fault in struck)]
