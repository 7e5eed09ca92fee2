"""Grades the answers of a diagnoser (a program that says what broke) about one run.

Each fault gets the grade of the best answer about the fault. If a wrong answer about the fault came no later than the
best answer, the fault gets the grade `wrong`, because an operator would act on the first answer. An answer that fits no
fault is a false alarm. An accused rank or node is innocent if no fault had hit this rank or node by the time of the
answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

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
BEST_FIRST = [*Grade]


@dataclass(frozen=True)
class GradedFault:
    """An injected fault, the fault's grade, and the answer that decided the grade, if any. `after_ns` is the time in ns
    from the begin of the fault to the answer."""

    injected: Injected
    grade: Grade
    answer: Answer | None = None
    after_ns: int | None = None

    @property
    def decision_right(self) -> bool | None:
        """Returns True if the answer's decision, such as a restart, helps against the fault. Returns `None` without a
        decision, or if no answer found the fault."""
        decision = self.answer.decision if self.answer and self.grade in FOUND else None
        return None if decision is None else decision in self.injected.truth.decisions

    @property
    def kind(self) -> Kind:
        return Kind.NONE if self.injected.truth.benign else self.injected.truth.kinds[0]


@dataclass(frozen=True)
class RunGrade:
    """The grades of all answers about one run. `judged` holds each distinct accusation, and whether the accusation fits
    a fault. An accusation is an answer that reports a failure, or acts against an innocent. In a run with a fault that
    cannot be graded, `judged` holds only answers that fit another fault. `innocents` maps each innocent (a rank, a node
    or `the job`) to the first answer that accused this innocent."""

    truth: RunFaults
    answers: Sequence[Answer]
    faults: Sequence[GradedFault]
    judged: Sequence[tuple[Answer, bool]]
    innocents: Mapping[str, Answer]


@dataclass(frozen=True)
class _Timed:
    """A diagnoser's answer with its time in ns on the run's clock (`None`: unknown), its grade for each fault (`None`:
    not about the fault), and the accused parts that no fault had hit by the time of the answer."""

    answer: Answer
    at: int | None
    grades: Sequence[Grade | None]
    innocents: Sequence[str]

    @property
    def true_of(self) -> tuple[int, ...]:
        return tuple(place for place, grade in enumerate(self.grades) if grade in FOUND)


def grade_run(truth: RunFaults, answers: Iterable[Answer], within_ns: int) -> RunGrade:
    """Grades the answers about a run. A right answer is late if it comes more than `within_ns` after the fault
    began."""
    timed = [_timed(truth, answer, within_ns) for answer in answers]
    timed.sort(key=lambda each: (each.at is None, each.at or 0))
    faults = [_graded(fault, place, timed) for place, fault in enumerate(truth.faults)]
    counted = [each for each in timed if each.true_of or not truth.not_graded]
    return RunGrade(truth, [each.answer for each in timed], faults, _accusations(counted), _first_accusers(counted))


def _timed(truth: RunFaults, answer: Answer, within_ns: int) -> _Timed:
    at = truth.moment(answer.at, answer.step)
    grades = _only_newest(truth.faults, [_grade(fault, answer, at, within_ns) for fault in truth.faults], at)
    innocents = _innocents(truth, answer, at, fits_a_fault=any(grade in FOUND for grade in grades))
    if innocents and answer.kind not in BROKEN and not truth.not_graded:
        # The answer names no failure, but acts against an innocent.
        grades = [Grade.WRONG if _had_begun(fault, at) else None for fault in truth.faults]
    return _Timed(answer, at, grades, innocents)


def _had_begun(fault: Injected, at: int | None) -> bool:
    return at is None or at >= fault.begin - EARLY_NS


def _only_newest(faults: Sequence[Injected], grades: Sequence[Grade | None], at: int | None) -> list[Grade | None]:
    """Replaces the grade by `None` for each fault that an answer fits, but that began long before the newest fault that
    the answer fits. An answer without a time keeps all grades."""
    fitting = [fault.begin for fault, grade in zip(faults, grades, strict=True) if grade in FOUND]
    if at is None or not fitting:
        return [*grades]
    since = max(fitting) - TOGETHER_NS
    return [
        None if grade in FOUND and fault.begin < since else grade for fault, grade in zip(faults, grades, strict=True)
    ]


def _accusations(counted: Iterable[_Timed]) -> list[tuple[Answer, bool]]:
    distinct: dict[object, tuple[Answer, bool]] = {}
    for each in counted:
        if each.answer.kind in BROKEN or each.innocents:
            key = each.answer.kind, each.answer.who, each.true_of
            distinct.setdefault(key, (each.answer, bool(each.true_of)))
    return [*distinct.values()]


def _first_accusers(counted: Iterable[_Timed]) -> dict[str, Answer]:
    found: dict[str, Answer] = {}
    for each in counted:
        for part in each.innocents:
            found.setdefault(part, each.answer)
    return found


# The grade of a fault


def _graded(fault: Injected, place: int, timed: Sequence[_Timed]) -> GradedFault:
    """Returns a fault with its best grade, and the first answer with this grade. If a wrong answer about the fault came
    no later, returns the wrong answer instead. If answers with the best grade decide differently, no decision counts. A
    benign fault without an answer is graded right."""
    about = list(_about(place, timed))
    if not about:
        return GradedFault(fault, Grade.RIGHT if fault.truth.benign else Grade.MISSING)
    grade, best = min(about, key=lambda each: BEST_FIRST.index(each[0]))
    undecided = False
    if grade in FOUND:
        until = NEVER if best.at is None else best.at + EARLY_NS
        by_then = [(how, each) for how, each in about if (each.at or 0) < until]
        alike = [each.answer.decision for how, each in by_then if how is grade]
        undecided = any(decision not in (None, best.answer.decision) for decision in alike)
        against = [each for how, each in by_then if how is Grade.WRONG and _contradicts(fault, each.answer)]
        if against:
            grade, best = Grade.WRONG, against[0]
    answer = msgspec.structs.replace(best.answer, decision=None) if undecided else best.answer
    return GradedFault(fault, grade, answer, None if best.at is None else max(0, best.at - fault.begin))


def _about(place: int, timed: Iterable[_Timed]) -> Iterator[tuple[Grade, _Timed]]:
    for each in timed:
        grade = each.grades[place]
        if grade is not None and not (grade is Grade.WRONG and each.true_of):
            yield grade, each


def _contradicts(fault: Injected, answer: Answer) -> bool:
    """Returns True if a wrong answer names the fault's kind, accuses the fault's victim, or accuses nobody. Any other
    wrong answer may be about another problem than the fault."""
    if not answer.who or answer.kind in fault.truth.kinds:
        return True
    return any(_fit(fault, suspect) is not _Fit.OTHER for suspect in answer.who)


# The grade of one answer for one fault


def _grade(fault: Injected, answer: Answer, at: int | None, within_ns: int) -> Grade | None:
    if answer.kind is Kind.NONE or not _had_begun(fault, at):
        return None
    if answer.kind is Kind.UNKNOWN:
        return None if fault.truth.benign else Grade.UNSURE
    fits = [_fit(fault, suspect) for suspect in answer.who]
    if answer.kind not in fault.truth.kinds or _Fit.OTHER in fits:
        return Grade.WRONG
    if at is not None and at > fault.begin + within_ns:
        return Grade.LATE
    if not fits:
        return Grade.RIGHT if fault.truth.place is Place.JOB else Grade.COARSE
    return Grade.COARSE if _Fit.NEAR in fits else Grade.RIGHT


class _Fit(IntEnum):
    OTHER = 0
    NEAR = 1  # such as the victim's node
    VICTIM = 2


def _fit(fault: Injected, suspect: Suspect) -> _Fit:
    place = fault.truth.place
    names_a_part = suspect.rank is not None or suspect.node is not None
    if place is Place.JOB:
        return _Fit.OTHER if names_a_part and suspect.node != CONTROL else _Fit.VICTIM
    if names_a_part:
        fit = _fit_of_part(fault, suspect)
        return min(fit, _Fit.NEAR) if place is Place.FILE else fit  # the file is the victim, not its reader
    if place is Place.FILE and suspect.file is not None:
        damaged = any(_same_file(suspect.file, file) for file in fault.files)
        return _Fit.VICTIM if damaged else _Fit.OTHER
    return _Fit.NEAR


def _fit_of_part(fault: Injected, suspect: Suspect) -> _Fit:
    return max((_fit_of_victim(fault, victim, suspect) for victim in fault.victims), default=_Fit.OTHER)


def _fit_of_victim(fault: Injected, victim: Victim, suspect: Suspect) -> _Fit:
    node = suspect.node
    if node is None and suspect.rank is not None:
        node = fault.nodes.get(suspect.rank)
    if node != victim.node:
        return _Fit.OTHER
    if fault.truth.place is Place.NODE or victim.rank is None:
        return _Fit.VICTIM
    if suspect.rank is not None:
        return _Fit.VICTIM if suspect.rank == victim.rank else _Fit.OTHER
    if suspect.gpu is not None:
        return _Fit.VICTIM if suspect.gpu == victim.gpu else _Fit.OTHER
    return _Fit.NEAR


def _same_file(told: str, true: str) -> bool:
    """Returns True if a path names the damaged file or a folder that contains it, but not the folder of all saves."""
    name, whole = told.rstrip("/").rpartition("/")[2], true.strip("/").split("/")
    return name == whole[-1] or name in whole[1:-1]


# Innocents


def accuses(answer: Answer) -> bool:
    """Returns True if an answer reports a failure, or if the answer's decision changes what the job does."""
    return answer.kind in BROKEN or answer.decision not in (None, Decision.IGNORE)


def _innocents(truth: RunFaults, answer: Answer, at: int | None, fits_a_fault: bool) -> list[str]:
    """Returns the ranks and nodes that an answer accuses although no fault had hit them before the answer. Returns the
    text `the job` for an answer that accuses no rank or node, if no harmful fault had begun before the answer."""
    if not accuses(answer):
        return []
    begun = [fault for fault in truth.faults if _had_begun(fault, at)]
    accused = [each for each in answer.who if each.rank is not None or each.node not in (None, CONTROL)]
    if accused:
        hit = [fault for fault in begun if fault.truth.place is not Place.JOB]
        return [str(each) for each in accused if all(_fit_of_part(fault, each) is _Fit.OTHER for fault in hit)]
    explained = fits_a_fault or any(not fault.truth.benign for fault in begun)
    return [] if explained or answer.decision is Decision.IGNORE else ["the job"]
