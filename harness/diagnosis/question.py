"""Judges the diagnoses that the training job logged (events `diagnosis`) against the faults that were injected.

Only a complete log proves that no diagnosis was right, or that no innocent was accused.
"""

from collections.abc import Iterator, Sequence

from harness.diagnosis.answer import Decision, answer_told
from harness.diagnosis.bounds import DiagnosisBounds
from harness.diagnosis.grading import FOUND, Grade, GradedFault, RunGrade, accuses, grade_run
from harness.diagnosis.injected import ELSEWHERE, Injected, faults_of
from harness.evidence.usual import others_share
from harness.judge.assumption import assumptions
from harness.judge.facts.analysis import Analysis
from harness.judge.score import Bound, Expectation, S, Score, ScoreResult, left_open, line, shown_ns
from harness.judge.thresholds import OTHERS_MAX
from harness.judge.verdict import Doubt, Figure, Ground, Kind
from harness.log.truth import Kind as Failure
from harness.log.truth import Place
from harness.timeline.timeline import Timeline
from harness.units import format_duration

UNLIMITED_NS = 2**62
WHOLE = ("log-whole", "ranks-heard", "ends-told")  # assumptions without which an answer may be lost
RESTARTS = (Decision.RESTART_IN_PLACE, Decision.RESTART_ELSEWHERE)
WITHIN = Bound("diagnosis.right_within", lambda seconds: shown_ns(seconds * S), "s")
INNOCENTS = Bound("diagnosis.max_innocents")
DECISION = "diagnosis.decision"
BEFORE_NS = 10 * S  # Time (ns) before an answer about slowness, in which the host must have been idle


def diagnosis(evidence: Analysis, bounds: DiagnosisBounds | None) -> ScoreResult:
    if bounds is None:
        return ScoreResult({})
    answers = [answer_told(event, event["at"]) for event in evidence.run.diagnoses]
    within_ns = UNLIMITED_NS if bounds.right_within is None else bounds.right_within
    grade = grade_run(faults_of(evidence.run), answers, within_ns)
    values = [{"fault": each.injected.id, "grade": each.grade, "after_ns": each.after_ns} for each in grade.faults]
    return ScoreResult({"faults": values, "innocents": [*grade.innocents]}, [*_lines(evidence, bounds, grade)])


def _lines(evidence: Analysis, bounds: DiagnosisBounds, grade: RunGrade) -> Iterator[Expectation]:
    lost = _lost(evidence)
    if bounds.right_within is not None:
        yield from (_in_time(evidence, each, bounds.right_within, lost) for each in grade.faults)
        yield from _not_graded(grade, WITHIN.name, f"≤ {WITHIN.show(bounds.right_within / S)}")
    if bounds.max_innocents is not None:
        yield _innocents(evidence.run, grade, bounds.max_innocents, lost)
    if bounds.decision is not None:
        yield from (_decision(each, bounds.decision, lost) for each in grade.faults)
        yield from _not_graded(grade, DECISION, bounds.decision)


def _lost(evidence: Analysis) -> str:
    if evidence.run.dropped:
        return f"{evidence.run.dropped} events were lost to a full disk"
    broken = (why for name in WHOLE for why in assumptions()[name].broken(evidence))
    return next((each.words for each in evidence.lost_lines), next(broken, ""))


def _not_graded(grade: RunGrade, name: str, bound: str) -> Iterator[Expectation]:
    found = [f"{fault}: {why}" for fault, why in grade.truth.not_graded if why != ELSEWHERE]
    if not grade.faults and not found:
        found = ["no fault struck, so there was nothing to diagnose"]
    yield from (left_open(name, bound, why, Doubt.UNMEASURED) for why in found)


def _in_time(evidence: Analysis, fault: GradedFault, within_ns: int, lost: str) -> Expectation:
    run, begin, allowed = evidence.run, fault.injected.begin, f"≤ {WITHIN.show(within_ns / S)}"
    if fault.answer is None and fault.grade is Grade.RIGHT:
        return line(WITHIN.name, allowed, "no answer needed", "")
    after_ns = fault.after_ns or 0
    figure = Ground(Kind.DURATION, of=Figure(after_ns, 2 * run.uncertainty_ns), bound=within_ns)
    if fault.grade is Grade.RIGHT:
        return WITHIN.line(within_ns / S, after_ns / S, "", figure)
    why = _why(fault, within_ns)
    over = run.outcome in ("completed", "failed") or run.end >= begin + within_ns
    if lost := lost or ("" if over else f"the log ends {format_duration(run.end - begin)} after it struck"):
        return WITHIN.line(within_ns / S, None, f"{why}; {lost}")
    grounds = [Ground(Kind.FAULTS), Ground(Kind.DURATION, of=(begin, begin + within_ns))]
    if fault.grade is Grade.LATE:
        return WITHIN.line(within_ns / S, after_ns / S, why, figure, *grounds)
    return line(WITHIN.name, allowed, str(fault.grade), why, *grounds, unit="s")


def _why(fault: GradedFault, within_ns: int) -> str:
    injected, limit, answer = fault.injected, f"{within_ns / S:g} s", fault.answer
    right = f"right is {_right(injected)}"
    if answer is None:
        return f"no diagnosis within {limit} of {injected.id}; {right}"
    said = f"{injected.id}: the answer was {answer.kind} of {' and '.join(map(str, answer.who)) or 'nobody'}"
    late = f", {format_duration(fault.after_ns or 0)} after it struck and not within {limit}"
    return f"{said}{late if fault.grade is Grade.LATE else f', which is {fault.grade}'}; {right}"


def _right(fault: Injected) -> str:
    if fault.truth.benign:
        return "silence"
    ranks = [f"rank {each.rank} on {each.node}" for each in fault.victims if each.rank is not None]
    who = [each.node for each in fault.victims] if fault.truth.place is Place.NODE or not ranks else ranks
    at_best = {Place.JOB: ["nobody"], Place.FILE: [f"file {each}" for each in fault.files[:1]]}
    return f"{fault.truth.kinds[0]} of {' and '.join(at_best.get(fault.truth.place, who))}"


def _innocents(run: Timeline, grade: RunGrade, allowed: int, lost: str) -> Expectation:
    """Counts the accused ranks and nodes that no fault had hit. The count is inconclusive if the right diagnosis of a
    fault is unknown. The count is inconclusive, too, if a diagnosis calls a rank slow while the host is busy, because a
    busy host slows ranks without a fault."""
    slow = [each.at or 0 for each in grade.innocents.values() if each.kind is Failure.STRAGGLER]
    found, doubt, excused = len(grade.innocents), lost, sum(not _was_idle(run, at) for at in slow)
    why = f"accused, though no fault had struck it: {'; '.join(grade.innocents)}"
    if found > allowed:
        doubt = f"{why}; the host was not known to be idle then" if found - excused <= allowed else ""
    elif grade.truth.not_graded and not lost:
        judged, (fault, reason) = {(each.kind, each.who) for each, _ in grade.judged}, grade.truth.not_graded[0]
        if any((each.kind, each.who) not in judged for each in grade.answers if each.who and accuses(each)):
            doubt = f"an answer may be about {fault}: {reason}"
    return INNOCENTS.line(allowed, None if doubt else found, doubt or why)


def _was_idle(run: Timeline, at: int) -> bool:
    known = any(at - BEFORE_NS <= each["at"] <= at for each in run.host_load)
    return known and others_share(run, at - BEFORE_NS, at) <= OTHERS_MAX


def _decision(fault: GradedFault, wanted: str, lost: str) -> Expectation:
    injected, answer = fault.injected, fault.answer
    allowed: Sequence[str] = {"right": injected.truth.decisions, "restart": RESTARTS}.get(wanted, (wanted,))
    decision = answer.decision if answer and fault.grade in FOUND else None
    if answer is None and injected.truth.benign:
        decision = Decision.IGNORE
    if decision is None:
        why = f"no decision was told with a right answer about {injected.id}"
        doubt = left_open(DECISION, wanted, f"{why}; {lost}", Doubt.UNMEASURED)
        return doubt if lost else line(DECISION, wanted, "none", why, Ground(Kind.FAULTS))
    why = f"{decision} was decided about {injected.id}; expected {' or '.join(allowed)}"
    return line(DECISION, wanted, str(decision), "" if decision in allowed else why, Ground(Kind.FAULTS))


SCORES = (Score("diagnosis", 30, diagnosis, by_steps=False),)
