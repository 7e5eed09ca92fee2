"""Defines criteria (class `Score`) such as the recovery time, and the scorecard, which is the contents of a report.

Each file in `harness/judge/questions/` defines `SCORES`, a tuple of criteria. The file `question.py` of a wing (an
optional part of the harness) may define `SCORES`, too. `harness/judge/bounds.py` defines the keys of `expect:` in a
scenario. Every criterion is measured in every run. A limit in a scenario only adds an expectation: a line of the report
that compares a measured value with the limit.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from harness import units
from harness.evidence import reported
from harness.evidence.logs import Evidence as Evidence
from harness.judge import weighing
from harness.judge.assumption import assumptions, spoilt
from harness.judge.bounds import OFF, Bounds, bounds_by_score, expects_something
from harness.judge.facts.after_the_run import restore_drill, second_restart
from harness.judge.facts.analysis import Analysis
from harness.judge.guarantee import DRILL, ORDER, RUN, SECOND_RESTART, family, guarantees
from harness.judge.verdict import Code, Doubt, Finding, Ground, Kind, Verdict, merge, unknown, worst_first
from harness.judge.weighing import Judged
from harness.plugins import Family

S = 1_000_000_000
ELSEWHERE = 5  # place of assumptions without a family among the scores


@dataclass(frozen=True)
class Expectation:
    """One line of the report's table, such as: `recovery_time.max` ≤ `60 s`, observed `4.21 s`, pass.

    If the limit is a number, `bound_value` is the limit and `observed_value` the measured value, both in `unit`.
    `observed_value` is `None` if nothing was measured, or if the measured interval was not over when the log ended.
    """

    name: str
    bound: str
    observed: str
    verdict: Verdict
    reason: str = ""
    share: float | None = None  # observed value as a share of an upper bound; used to combine runs
    bound_value: float | None = None
    observed_value: float | None = None
    unit: str = ""
    code: str = ""  # code of the finding; empty: the name of the expectation
    doubt: str = ""  # code of the reason if inconclusive
    settles: str = ""  # how to settle the doubt, in one line for people
    rests_on: tuple[Ground, ...] = ()


@dataclass(frozen=True)
class ScoreResult:
    values: Mapping[str, Any]  # as in report.json: scores.<name>
    expectations: Sequence[Expectation] = ()
    reasons: Sequence[Finding] = ()  # findings beside those of the expectations
    summary: str = ""  # clause for the headline of a passed run
    not_judged: Sequence[tuple[str, str]] = ()  # (item, why): items without evidence in this run
    why_not: str = ""  # why a criterion that is judged by default is not judged


@dataclass(frozen=True)
class Score:
    """A criterion, such as the recovery time. The function `score` measures a run, and compares the values with the
    scenario's limits: an instance of the class `bounds`, or `None` if this criterion has no limits."""

    name: str  # its key in `expect:`
    order: int  # place in reports and headlines
    score: Callable[[Analysis, Any], ScoreResult]
    section: Literal["scores", "metrics"] = "scores"  # section of its values in report.json
    by_steps: bool = True  # its expectations rest on the steps in the log
    explained_by: tuple[str, ...] = ()  # guarantees whose breach explains that a bound does not hold

    @property
    def bounds(self) -> type[Bounds]:
        """Returns the class of this criterion's limits in a scenario, or `Bounds` if the criterion has no limits."""
        return bounds_by_score().get(self.name, Bounds)

    @property
    def by_default(self) -> str:
        return self.bounds.by_default


def shown_ns(ns: float | None) -> str:
    return units.format_duration(round(ns)) if ns else "0 s"


def line(name: str, bound: str, observed: str | None, reason: str, *rests_on: Ground, **numbers: Any) -> Expectation:
    """Returns a line of the report. The line is inconclusive without a measurement (`observed=None`), and failed if
    `reason` is not empty."""
    if observed is None:
        return replace(left_open(name, bound, reason, Doubt.UNMEASURED, **numbers), rests_on=rests_on)
    verdict = Verdict.FAIL if reason else Verdict.PASS
    return Expectation(name, bound, observed, verdict, reason, rests_on=rests_on, **numbers)


@dataclass(frozen=True)
class Bound:
    """An upper limit in `unit` or, if `least` is True, a lower limit. `show` formats a number for the report."""

    name: str
    show: Callable[[Any], str] = str
    unit: str = ""
    least: bool = False

    def line(self, allowed: float, measured: float | None, why: str = "", *rests_on: Ground) -> Expectation:
        """Compares a measured value with its limit. `why` says why the value misses the limit, or why nothing was
        measured."""
        bound, numbers = f"{'≥' if self.least else '≤'} {self.show(allowed)}", {"bound_value": allowed}
        if measured is None:
            why = why or "there is nothing to measure"
            return left_open(self.name, bound, why, Doubt.UNMEASURED, **numbers, unit=self.unit)
        apart = f"{self.show(measured)} is {'less' if self.least else 'more'} than {self.show(allowed)}"
        held = measured >= allowed if self.least else measured <= allowed
        share = None if self.least or allowed <= 0 else measured / allowed
        reason = "" if held else why or apart
        more = {**numbers, "observed_value": measured, "share": share, "unit": self.unit}
        return line(self.name, bound, self.show(measured), reason, *rests_on, **more)


def left_open(name: str, bound: str, why: str, doubt: Doubt, **numbers: Any) -> Expectation:
    """Returns an inconclusive line of the report, for evidence that does not show whether the limit `bound` is met."""
    return Expectation(name, bound, "—", Verdict.INCONCLUSIVE, why, doubt=doubt, **numbers)


_FAMILY = Family("question", "harness.judge.questions", "SCORES")
_OF_WINGS = Family("question of a wing", "harness", "SCORES", part="question")


@functools.cache
def questions() -> Mapping[str, Score]:
    """Returns all criteria by name: those in `questions/`, and those in the files `question.py` of optional wings."""
    found = (score for family in (_FAMILY, _OF_WINGS) for name in family.names() for score in family.load(name))
    return {score.name: score for score in found}


@dataclass(frozen=True)
class Scorecard:
    """The contents of `report.json`, and the timelines from which charts are drawn."""

    run_id: str
    scenario: str
    title: str
    backend: str
    seed: int
    verdict: Verdict
    reasons: Sequence[str]  # the first reason is the headline
    scores: Mapping[str, Mapping[str, Any]]
    metrics: Mapping[str, Any]
    expectations: Sequence[Expectation]
    environment: Mapping[str, Any]
    evidence: Analysis = field(repr=False)
    not_judged: Mapping[str, str] = field(default_factory=dict)  # item → why
    guarantees: Sequence[Judged] = ()
    findings: Sequence[Finding] = ()  # all findings except passes, in the order in which they were found


@np.errstate(all="ignore")  # a log may hold any number
def judge(evidence: Evidence, run_id: str) -> Scorecard:
    """Judges a run by all criteria and guarantees, without side effects, and merges the findings into one verdict."""
    analysis = Analysis.of(evidence)
    plan = evidence.run.plan
    expect = plan.get("expect") or {}
    scores = sorted(questions().values(), key=lambda score: (score.order, score.name))
    results_of = {score.name: _result(score, analysis, expect.get(score.name)) for score in scores}
    weighed = {score.name: _weighed(results_of[score.name], analysis, score.by_steps) for score in scores}
    results = {name: result for name, (result, _) in weighed.items()}
    untold = reported.not_judged(evidence, expect)
    not_judged = dict([*untold, *(item for result in results.values() for item in result.not_judged)])
    states, found_broken = weighing.judged(analysis, RUN)
    for kind, made in ((DRILL, restore_drill(analysis)), (SECOND_RESTART, second_restart(analysis))):
        left_open, found = weighing.judged_within(analysis, kind, made)
        odd = {each.name: each for each in left_open}
        states = [odd.get(each.name, each) if each.state in ("held", "not judged") else each for each in states]
        found_broken += found
    placed = [(_place(finding.code), finding) for finding in found_broken]
    placed += [(score.order, finding) for score in scores for finding in weighed[score.name][1]]
    findings = [finding for _, finding in sorted(placed, key=operator.itemgetter(0))]
    switches = {each.switch for each in guarantees().values()}
    strange = (name for name in expect if name not in bounds_by_score() and name not in switches)
    findings += [unknown(Code.EXPECT_UNKNOWN, f"expect: unknown score {name!r}") for name in strange]
    verdict = merge([Verdict.PASS, *(finding.verdict for finding in findings)])
    stopped = [each.text for each in findings if each.code == "end-known"]
    stopped *= evidence.run.outcome == "interrupted"  # the reason for the stop comes first
    reasons = [*stopped, *(reason for reason in worst_first(findings, _causes) if reason not in stopped)]
    if reasons and (run := _without_faults(plan, run_id)):
        how = "failed" if verdict is Verdict.FAIL else "did not complete"
        told = reasons[0].removeprefix("the job failed: ")
        reasons[0] = f"{run} {how}, so nothing was injected: {told}"
    values = {score.name: results[score.name].values for score in scores if score.section == "scores"}
    metrics = (results[score.name].values for score in scores if score.section == "metrics")
    scenario = plan.get("scenario") or {}
    return Scorecard(
        run_id=run_id,
        scenario=str(scenario.get("name", "")),
        title=str(scenario.get("title", "")),
        backend=str(plan.get("backend", "")),
        seed=int(plan.get("seed") or 0),
        verdict=verdict,
        reasons=reasons or [_headline(results, expects_something(expect), not_judged)],
        not_judged=not_judged,
        scores={name: each for name, each in values.items() if each or name in expect},  # others are empty
        metrics={name: value for each in metrics for name, value in each.items()},
        expectations=[line for result in results.values() for line in result.expectations],
        environment=evidence.run.environment,
        evidence=analysis,
        guarantees=states,
        findings=findings,
    )


def _place(code: str) -> int:
    of = assumptions()[code].family if code in assumptions() else family(code)
    return ORDER.get(of, ELSEWHERE)


def _causes(code: str) -> Sequence[str]:
    if code in guarantees():
        return guarantees()[code].explained_by
    of = (score for name, score in questions().items() if code.startswith((f"{name}.", f"{name.partition('_')[0]}.")))
    return next((score.explained_by for score in of), ())


def _without_faults(plan: Mapping[str, Any], run_id: str) -> str:
    own_id = str(plan.get("run_id", ""))
    if plan.get("faults") or not own_id.startswith(f"{run_id}-"):
        return ""
    return "the fault-free run" if own_id == f"{run_id}-fault-free" else "a fault-free run for calibration"


def _result(score: Score, evidence: Analysis, written: Any) -> ScoreResult:
    try:
        off = bool(score.by_default) and written == OFF
        unbound = off or (written is None and not score.by_default)
        found = score.score(evidence, None if unbound else score.bounds.model_validate(written or {}))
        why = "the scenario switches it off" if off else found.why_not
        mine = [(score.by_default, why)] if why else []
        return replace(found, not_judged=mine if off else [*mine, *found.not_judged])
    except ValidationError as error:
        problem = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        code, text = Code.EXPECT_UNREADABLE, f"{score.name}: its bounds cannot be read: {problem}"
    except Exception as error:
        code, text = Code.SCORER_CRASHED, f"{score.name}: the scorer crashed: {type(error).__name__}: {error}"
    return ScoreResult({}, reasons=[unknown(code, text)])


def _weighed(result: ScoreResult, evidence: Analysis, by_steps: bool) -> tuple[ScoreResult, list[Finding]]:
    also = (Ground(Kind.STEPS),) if by_steps else ()
    lines = _one_each([_weighed_line(each, (*each.rests_on, *also), evidence) for each in result.expectations])
    found = [each for each in map(_finding, lines) if each.verdict is not Verdict.PASS]
    return replace(result, expectations=lines), [*result.reasons, *found]


def _weighed_line(line: Expectation, rests_on: Sequence[Ground], evidence: Analysis) -> Expectation:
    found = spoilt(rests_on, evidence, good=line.verdict is not Verdict.FAIL)
    if found is None:
        return line
    told = replace(line, verdict=Verdict.INCONCLUSIVE, share=None, doubt=found.assumption, settles=found.settles)
    return replace(told, reason=found.after(line.reason))


def _one_each(lines: Sequence[Expectation]) -> list[Expectation]:
    worst: dict[str, Expectation] = {}
    for line in lines:
        known = worst.setdefault(line.name, line)
        if merge([known.verdict, line.verdict]) is not known.verdict:
            worst[line.name] = line
    return list(worst.values())


def _finding(line: Expectation) -> Finding:
    text = line.reason or f"{line.observed} (allowed {line.bound})"
    return Finding(line.verdict, f"{line.name}: {text}", line.code or line.name, line.doubt, line.settles)


def _headline(results: Mapping[str, ScoreResult], asked: bool, not_judged: Mapping[str, str]) -> str:
    clauses = [result.summary for result in results.values() if result.summary] or ["the job did all its steps"]
    if not asked:
        clauses.append("the scenario expects nothing else")
    if not_judged:
        clauses.append(f"not judged: {', '.join(not_judged)}")
    return "; ".join(clauses)
