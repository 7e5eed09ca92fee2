"""One expectation on recovery time: which of the spans decides, and what the bound, doubts and clocks make of it."""

from dataclasses import replace

import pytest
from judging import fault_free_of, verdict
from mutants.bent import JOB
from simulator import Logs, Outage, clocks, remove, simulate

from harness.evidence.usual import Degraded, Slowed
from harness.judge.bounds import RecoveryBounds
from harness.judge.facts.analysis import Analysis
from harness.judge.questions.recovery_time import _lines, _Span
from harness.judge.score import Expectation, S, ScoreResult, _weighed, questions
from harness.judge.verdict import Verdict
from harness.timeline.timeline import Episode, Segment, Timeline

RUN = fault_free_of(JOB)
BUSY = (
    "a step took 3.00 × the time of the fault-free runs already before slow struck: "
    "its usual speed is not known (the host may have been busy)"
)
SLOW_BEFORE = Degraded("slow", 0, S, True, 3.0, before=3.0)
SLOW = replace(SLOW_BEFORE, before=None)


def span(seconds: float, ended: bool = True, of: Degraded = SLOW) -> _Span:
    return _Span(round(seconds * S), ended, f"stuck for {seconds} s", of)


def line(
    *spans: _Span, bound: float = 10, clocks: float = 0, outcome: str = "completed", unmeasured: str = ""
) -> Expectation:
    run = replace(RUN, uncertainty_ns=round(clocks * S), outcome=outcome)
    lines = _lines("recovery_time.max", spans, round(bound * S), run, unmeasured)
    [told] = _weighed(ScoreResult({}, lines), Analysis(run, None, ()), by_steps=False)[0].expectations
    return replace(told, rests_on=())


def test_nothing_that_stopped_the_job_used_nothing_of_the_bound() -> None:
    assert line() == Expectation("recovery_time.max", "≤ 10.00 s", "0 s", Verdict.PASS, "", 0.0, 10.0, 0.0, "s")
    unmeasured = line(unmeasured="no fault struck")
    told = (unmeasured.observed, unmeasured.verdict, unmeasured.reason)
    assert told == ("—", Verdict.INCONCLUSIVE, "no fault struck")
    assert (unmeasured.bound_value, unmeasured.observed_value, unmeasured.unit) == (10.0, None, "s")


def test_a_span_that_is_not_over_is_not_observed_in_full_and_a_bound_of_nothing_has_no_shares() -> None:
    assert line(span(4, ended=False)).observed_value is None
    assert line(span(4)).observed_value == 4.0
    assert (line(span(0), bound=0).verdict, line(span(0), bound=0).share) == (Verdict.PASS, None)
    assert (line(span(1), bound=0).verdict, line(span(1), bound=0).share) == (Verdict.FAIL, None)


@pytest.mark.parametrize(
    ("seconds", "found", "share"), [(4, Verdict.PASS, 0.4), (10, Verdict.PASS, 1.0), (12, Verdict.FAIL, 1.2)]
)
def test_the_longest_span_against_the_bound(seconds: float, found: Verdict, share: float) -> None:
    told = line(span(2), span(seconds), span(1))
    assert (told.observed, told.verdict, told.share) == (f"{seconds}.00 s", found, share)
    assert told.reason == ("" if found is Verdict.PASS else "12.00 s is more than 10.00 s")
    unmeasured = line(span(seconds), unmeasured="and what of the other fault?")
    assert unmeasured.verdict is (Verdict.INCONCLUSIVE if found is Verdict.PASS else Verdict.FAIL)


@pytest.mark.parametrize(
    ("spans", "found", "observed"),
    [
        ([span(12, of=SLOW_BEFORE)], Verdict.INCONCLUSIVE, "12.00 s"),
        ([span(5, of=SLOW_BEFORE), span(4)], Verdict.PASS, "5.00 s"),
        ([span(12, of=SLOW_BEFORE), span(11)], Verdict.FAIL, "11.00 s"),
        ([span(12, of=SLOW_BEFORE), span(4)], Verdict.INCONCLUSIVE, "12.00 s"),
        ([span(3, ended=False, of=SLOW_BEFORE), span(4)], Verdict.INCONCLUSIVE, "> 3.00 s, not over"),
        ([span(30, ended=False, of=SLOW_BEFORE), span(3, ended=False)], Verdict.FAIL, "> 3.00 s, not over"),
        ([span(3, ended=False), span(12)], Verdict.FAIL, "> 3.00 s, not over"),
    ],
)
def test_doubts_decide_only_where_nothing_certain_does(spans: list[_Span], found: Verdict, observed: str) -> None:
    for order in (spans, spans[::-1]):
        told = line(*order)
        assert (told.verdict, told.observed) == (found, observed)
    assert (told.reason == BUSY) == (found is Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("seconds", "outcome", "found"),
    [
        (3, "completed", Verdict.FAIL),
        (3, "aborted", Verdict.FAIL),
        (3, "interrupted", Verdict.INCONCLUSIVE),
        (10, "interrupted", Verdict.INCONCLUSIVE),
        (11, "interrupted", Verdict.FAIL),
    ],
)
def test_who_stops_a_run_early_does_not_know_its_length(seconds: float, outcome: str, found: Verdict) -> None:
    told = line(span(seconds, ended=False), outcome=outcome)
    assert told.verdict is found
    why = f"stuck for {seconds} s" if found is Verdict.FAIL else f"the run ended {seconds}.00 s into the recovery"
    assert told.reason == why


def test_a_run_that_was_stopped_early_is_still_accused_of_what_had_taken_too_long() -> None:
    told = line(span(3, ended=False), span(12), outcome="interrupted")
    assert (told.verdict, told.observed, told.observed_value) == (Verdict.FAIL, "12.00 s", 12.0)


def test_what_is_still_slow_is_worse_than_what_took_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    over, still = Degraded("a", 0, 90 * S, True, 1.5), Degraded("b", 50 * S, 60 * S, False, 2.0)
    for found in ([over, still], [still, over]):
        monkeypatch.setattr(Slowed, "degraded", found)
        told = questions()["recovery_time"].score(Analysis(RUN, None, ()), RecoveryBounds())
        assert (told.values["seconds"], told.summary) == (None, "still 2.00 × its usual step time at the end")


def test_the_longest_phase_is_so_by_its_sum_and_in_the_words_of_the_report() -> None:
    spans = [("rendezvous", 3), ("reschedule", 4), ("rendezvous", 3), ("startup", 1)]
    edges = [sum(seconds for _, seconds in spans[:i]) * S for i in range(len(spans) + 1)]
    phases = tuple(Segment(name, edges[i], edges[i + 1], -1) for i, (name, _) in enumerate(spans))
    run = replace(RUN, episodes=[Episode(0, None, None, 9, (), phases)], processes=[])
    bounds = RecoveryBounds.model_validate({"max": "1s"})

    def told(run: Timeline) -> str:
        [line] = questions()["recovery_time"].score(Analysis(run, None, ()), bounds).expectations
        return line.reason

    assert told(run) == "never recovered after step 9: longest phase rendezvous (6.00 s)"
    waited = replace(run, episodes=[Episode(0, None, None, 9, (), phases[1:2])])
    assert told(waited) == "never recovered after step 9: longest phase wait for capacity (4.00 s)"
    assert told(replace(run, aborted=S)) == "never recovered after step 9: at the end in start-up for 1.00 s"


def test_a_job_that_stopped_with_its_log_is_stuck_in_nothing() -> None:
    run, bounds = replace(RUN, episodes=[Episode(RUN.end, None, None, 9, (), ())]), RecoveryBounds(max="1s")
    [told] = questions()["recovery_time"].score(Analysis(run, None, ()), bounds).expectations
    assert (told.verdict, told.reason) == (Verdict.FAIL, "never recovered after step 9: no step came after")


def ended(
    logs: Logs, last: int, after_ns: int, outcome: str, *, planned: bool = False, limit_ns: int = 120 * S
) -> None:
    """The log ends so long after this moment, from which on nobody did anything; with `planned` a fault is to come."""
    end, at = logs.harness[-1], last + after_ns
    for lines in logs.values():
        remove(lines, lambda line: line["mono_ns"] > last)
    plan = logs.plan
    plan["abort"] = {"if_no_step_for_ns": limit_ns}
    if planned:
        plan["faults"] = [*plan["faults"], {"id": "late", "fault": "rank_kill", "targets": []}]
    end |= {"outcome": outcome, "reason": "given up", "wall_ns": end["wall_ns"] - end["mono_ns"] + at, "mono_ns": at}
    logs.harness += [end | {"event": "abort"}] * (outcome == "aborted") + [end]


@pytest.mark.parametrize("outcome", ["aborted", "interrupted"])
@pytest.mark.parametrize(
    ("after_ns", "limit_ns", "outage"),
    [(8 * 10**6, 120 * S, False), (900 * 10**6, 120 * S, False), (900 * 10**6, S // 2, True), (30 * S, 120 * S, True)],
    ids=["within a step", "on a busy host", "longer than it is given", "much longer than any step"],
)
def test_a_run_that_ends_within_a_step_had_no_outage(outcome: str, after_ns: int, limit_ns: int, outage: bool) -> None:
    def cut(logs: Logs) -> None:
        logs.told("fault.healed").update(clocks(logs.told("fault.effect"), 1))
        logs.put()
        ended(logs, max(line["mono_ns"] for line in logs.steps(35, 35)), after_ns, outcome, limit_ns=limit_ns)

    card = verdict(simulate(JOB, [Outage(17, "rank", victim=1)], seed=5), cut)
    assert [each.t_regained is None for each in card.evidence.run.episodes] == [False, True][: 1 + outage]
    assert card.verdict is (Verdict.FAIL if outcome == "aborted" else Verdict.INCONCLUSIVE)


@pytest.mark.parametrize("what", ["a fault at work", "a death", "an anomaly"])
def test_what_struck_in_the_course_of_the_last_step_stopped_the_job(what: str) -> None:
    def cut(logs: Logs) -> None:
        ended(logs, max(line["mono_ns"] for line in logs.steps(35, 35)), 8 * 10**6, "interrupted")
        told = clocks(logs.harness[-1], -(10**6))
        if what == "a fault at work":
            about = {"fault": "late", "kind": "hang", "kills": False, "targets": []}
            logs.harness.insert(-1, {"event": "fault.injected"} | about | told)
        else:
            event = {"event": "anomaly"} if what == "an anomaly" else {"event": "exiting", "code": 1}
            logs.trainers(rank=1)[0].append(event | told)

    card = verdict(simulate(JOB, (), seed=5), cut)
    assert [each.t_regained for each in card.evidence.run.episodes] == [None]


@pytest.mark.parametrize("kind", ["crash", "rollback", "hang"])
def test_a_run_aborted_before_any_fault_struck_accuses_nobody(kind: str) -> None:
    """Whatever stopped the job: what the scenario asks about did not happen."""
    outages = [] if kind == "hang" else [Outage(17, kind)]

    def cut(logs: Logs) -> None:
        later = {"crash": 100, "rollback": 300}.get(kind, 0) * 10**6
        ended(logs, max(line["mono_ns"] for line in logs.steps(17, 17)) + later, 200 * S, "aborted", planned=True)

    card = verdict(simulate(JOB, outages, seed=5), cut)
    assert card.verdict is Verdict.INCONCLUSIVE, card.reasons
    assert card.evidence.run.episodes
    [told] = [each for each in card.findings if each.code == "struck-before-the-end"]
    assert "before any fault had struck; reached step" in told.text and "logs/" in told.settles
