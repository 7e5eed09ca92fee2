"""The verdict on a game day, from events alone: alerts, people, probes, budget, and what was not run; and its report."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import report_runs
import small_jobs
from hypothesis import given
from hypothesis import strategies as st
from report_pages import Page
from scorecards import assert_verdict

from harness.gameday import day_report
from harness.gameday.books import Booked
from harness.gameday.day_file import Budget, Steady
from harness.gameday.day_plan import DayPlan
from harness.gameday.day_verdict import DayResult, Expected, judge_day
from harness.judge.score import Expectation, Scorecard
from harness.judge.verdict import Verdict

S = 10**9
Event = dict[str, Any]


def card(verdict: Verdict = Verdict.PASS, wasted: float = 1.0) -> Scorecard:
    scores = {"wasted_gpu_hours": {"gpu_seconds_wasted_by_faults": wasted}, "recovery_time": {"seconds": 2.0}}
    reasons, evidence = [f"it is {verdict}"], report_runs.spot_evict().evidence
    return Scorecard("r", "s", "t", "local", 1, verdict, reasons, scores, {}, [], {}, evidence)


def rehearsed(name: str, at_s: float, took_s: float = 10.0, outcome: str = "settled", acts: bool = True) -> list[Event]:
    """A rehearsal whose fault acts two seconds after its begin, and whose job recovers at its end."""
    fault = {"fault": f"{name}-f"}
    own = [
        {"event": "plan", "rehearsal": name, "plan": {"faults": [{"id": f"{name}-f"}]}, "s": at_s},
        {"event": "rehearsal.started", "rehearsal": name, "s": at_s},
        {"event": "fault.injected", **fault, "s": at_s + 2},
        {"event": "fault.healed", **fault, "s": at_s + 3},
        {"event": "fault.recovered", **fault, "s": at_s + took_s},
        {"event": "rehearsal.finished", "rehearsal": name, "outcome": outcome, "s": at_s + took_s},
    ]
    return own if acts else [each for each in own if not str(each["event"]).startswith("fault")]


def day(*events: Sequence[Event] | Event, end: str | None = "completed", reason: str = "") -> list[Event]:
    flat: list[Event] = [{"event": "gameday.started", "name": "d", "s": 0}]
    for each in events:
        flat += [each] if isinstance(each, dict) else list(each)
    if end:
        flat.append({"event": "gameday.finished", "outcome": end, "reason": reason, "s": 1000})
    return sorted(({**each, "at": int(each["s"] * S) + 5} for each in flat), key=lambda each: each["at"])


def alert(name: str, at_s: float, status: str = "firing") -> Event:
    return {"event": "gameday.alert", "name": name, "status": status, "s": at_s}


def person(action: str, at_s: float, role: str = "participant") -> Event:
    return {"event": "gameday.person", "action": action, "role": role, "s": at_s}


def verdict_of(events: list[Event], *expected: Expected, cards: dict[str, Scorecard] | None = None) -> DayResult:
    begun = {e["rehearsal"] for e in events if e["event"] == "rehearsal.started"}
    return judge_day(events, expected, cards or {name: card() for name in begun}, card())


STALLED = Expected("a", 0, [("Stalled", 5 * S)])


UNSTEADY = {"event": "gameday.steady", "ok": False, "reason": "no checkpoint", "s": 5}
PAUSE = {"event": "gameday.entry", "entry": 1, "kind": "pause", "edge": "end", "s": 40, "reason": ""}
OVER = {"event": "run.finished", "outcome": "interrupted", "reason": "stopped by the user", "s": 1001}
PASS, FAIL, DOUBT = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE
A, B = Expected("a", 0), Expected("b", 1)
ONE = rehearsed("a", 10)
TWO = [*ONE, *rehearsed("b", 50)]
PASSED = (
    "all 2 rehearsals passed on one job that kept running; its losses were judged in the rehearsals only, not between"
)
PASSED += " and after them; not judged: alerts and people (the plan expects nothing of them)"
CUT, SILENT = "the schedule was not completed", "a: alert Stalled did not fire (≤ 5.00 s)"


def stalled(*fires: float, resolved: float | None = None, of: str = "") -> list[Event]:
    over = [] if resolved is None else [alert("Stalled", resolved, "resolved")]
    own = {"fingerprint": of} if of else {}
    return [each | own for each in (*(alert("Stalled", at) for at in fires), *over)]


def probe(moment: str, ok: bool = False) -> Event:
    return {"event": "gameday.probe", "name": "up", "moment": moment, "ok": ok, "detail": "", "rehearsal": "a", "s": 12}


def ended(event: str, reason: str = "", **more: Any) -> Event:
    return {"event": event, "outcome": "stopped", "reason": reason, "s": 14} | more


def judged(result: DayResult, verdict: Verdict, told: str) -> None:
    assert result.verdict is verdict and "; ".join(result.reasons).startswith(told), result.reasons


@pytest.mark.parametrize(
    ("events", "verdict", "told"),
    [
        (day(TWO), PASS, PASSED),
        (day(UNSTEADY, TWO), DOUBT, "the job was not steady (no checkpoint), and yet the day went on"),
        (day(TWO[:5], TWO[6:]), DOUBT, "a: it did not settle: its end is not in the log"),
        (day(TWO, end="budget", reason="why"), FAIL, "the error budget is spent: why"),
        (day(TWO, end="not_steady", reason="why"), FAIL, "why"),
        (day(TWO, end="job_ended", reason="why"), DOUBT, "the schedule was not completed: job_ended: why"),
        (day(TWO, end="probe", reason="why"), DOUBT, "the schedule was not completed: probe: why"),
        (day(TWO, end="some word of a later version", reason="why"), DOUBT, ""),
        (day(TWO, end=""), DOUBT, ""),
        (day(TWO, end=None), DOUBT, ""),
        (day(TWO, OVER, end="job_ended", reason="y"), DOUBT, f"{CUT}: job_ended: y: stopped by the user"),
        (day(TWO, OVER | {"outcome": "completed"}, end="job_ended", reason="y"), DOUBT, f"{CUT}: job_ended: y"),
        (day(TWO, probe("before"), end="probe"), DOUBT, ""),
        (day(TWO, probe("during"), end="probe"), FAIL, ""),
        (day(TWO, probe("after"), end="probe"), FAIL, ""),
        (day(TWO, PAUSE), PASS, ""),
        (day(TWO, PAUSE | {"reason": "skipped"}), DOUBT, "entry 2: the pause was skipped"),
        (day(TWO, PAUSE | {"reason": "skipped", "kind": "rest"}), DOUBT, "entry 2: the rest was skipped"),
        # It settled, and the log says that it was cut short.
        (day(TWO, person("stop", 14)), DOUBT, "a: it was stopped: a person pressed stop"),
        (day(TWO, ended("gameday.blocked", "stop")), DOUBT, "a: it was stopped: a person pressed stop"),
        (day(TWO, person("skip", 14, "master")), DOUBT, "a: it was skipped: a person skipped it"),
        (day(TWO, ended("gameday.finished")), DOUBT, "a: it was stopped: the schedule was over before it had ended"),
        (day(TWO, ended("rehearsal.finished", "cut", rehearsal="a")), DOUBT, "a: it was stopped: cut"),
        (day(TWO, PAUSE | {"reason": "stopped", "entry": 0}), DOUBT, "entry 1: the pause was stopped"),
        (day(TWO, person("stop", 5)), PASS, ""),
        (day(TWO, person("stop", 25)), PASS, ""),
    ],
)
def test_a_day_passes_only_if_all_of_it_was_done(events: list[Event], verdict: Verdict, told: str) -> None:
    judged(verdict_of(events, A, B), verdict, told)


@pytest.mark.parametrize(
    ("alerts", "verdict", "told"),
    [
        (stalled(14), PASS, ""),
        ([], FAIL, SILENT),
        (stalled(18), FAIL, "a: alert Stalled fired only after 6.00 s (≤ 5.00 s)"),
        (stalled(5, 14), FAIL, SILENT),  # it fired before, and fires on
        (stalled(14, 20), PASS, ""),  # told again while it fires on
        (stalled(14, 300, resolved=15), FAIL, "alert Stalled fired at 5 min 0 s, when no fault was active"),
        # It looks back: as long after another fault's end as the plan gives it after a fault's begin.
        (stalled(14, 59, resolved=15), PASS, ""),
        (stalled(14, 64.9, resolved=15), PASS, ""),
        (stalled(14, 65.1, resolved=15), FAIL, "alert Stalled fired at"),
        # Alerts of one name are told apart by their fingerprints.
        ([*stalled(5, of="1"), *stalled(14, of="2")], FAIL, "alert Stalled fired at 5.00 s, when no fault was active"),
        ([*stalled(14, 300, of="2"), *stalled(of="1", resolved=15)], PASS, ""),
    ],
)
def test_an_alert_must_fire_in_time_and_about_a_fault(alerts: list[Event], verdict: Verdict, told: str) -> None:
    result = verdict_of(day(TWO, alerts), STALLED, B)
    judged(result, verdict, told)
    assert result.sides["alerts"] is verdict
    assert (result.acts[0].watches[0].verdict is PASS) is not told.startswith("a: ")


def test_an_alert_without_an_effect_is_false_and_one_after_the_recovery_may_be_in_time() -> None:
    for alerts, told in ((stalled(13), FAIL), ([], DOUBT)):
        assert verdict_of(day(rehearsed("a", 10, acts=False), alerts), STALLED).sides["alerts"] is told
    slow = Expected("a", 0, [("Stalled", 60 * S)])
    judged(verdict_of(day(ONE, stalled(40, resolved=41)), slow), PASS, "")
    judged(verdict_of(day(ONE, stalled(40), stalled(90, resolved=41)), slow), FAIL, "")


@pytest.mark.parametrize(
    ("presses", "verdict"),
    [
        ([person("detected", 13, "master")], FAIL),
        ([person("detected", 13), person("mitigated", 500)], PASS),
        ([person("detected", 45)], PASS),  # the job has recovered already
        ([person("detected", 60), person("detected", 5)], FAIL),  # it counts for the newest fault
    ],
)
def test_who_detects_and_has_not_guessed(presses: list[Event], verdict: Verdict) -> None:
    result = verdict_of(day(TWO, *presses), Expected("a", 0, people={"detect": 60 * S}), B)
    assert result.acts[0].over is not None and result.acts[0].over < 45 * S
    assert result.sides["people"] is verdict
    judged(result, verdict, "" if verdict is PASS else "a: people detect: nobody did (≤ 60.00 s)")


def test_who_acknowledges_has_detected() -> None:
    events = day(ONE, person("acknowledged", 15), person("mitigated", 19))
    result = verdict_of(events, Expected("a", 0, people={"detect": 4 * S, "mitigate": 6 * S}))
    assert result.acts[0].reactions == {"detect": 3 * S, "acknowledge": 3 * S, "mitigate": 7 * S}
    assert result.sides["people"] is FAIL
    assert result.reasons == ["a: people mitigate: it took 7.00 s (≤ 6.00 s)"]
    (act,) = result.acts
    assert act.worst_first[0] == "people mitigate: it took 7.00 s (≤ 6.00 s)", "not that the job recovered"
    assert day_report.to_do(result) == ["a: give it a runbook: …"]
    known = replace(act, expected=replace(act.expected, runbook="https://runbooks/a"))
    (step,) = day_report.to_do(replace(result, acts=[known]))
    assert step == "a: go through its runbook with those on call: https://runbooks/a"


@pytest.mark.parametrize(("wrong", "verdict"), [(0, PASS), (1, PASS), (2, DOUBT)])
@pytest.mark.parametrize(
    ("wanted", "says", "wrongly", "since"),
    [
        ("detect", "detected", "acknowledged", 200),
        ("detect", "mitigated", "mitigated", 2),
        ("mitigate", "mitigated", "mitigated", 2),
    ],
)
def test_who_says_so_all_the_time_has_shown_nothing(
    wanted: str, says: str, wrongly: str, since: int, wrong: int, verdict: Verdict
) -> None:
    presses = [person(says, 13), person(says, 53), *(person(wrongly, since + s) for s in range(wrong))]
    expected = [Expected(name, scene, people={wanted: 60 * S}) for scene, name in enumerate("ab")]
    result = verdict_of(day(TWO, *presses), *expected)
    assert result.sides["people"] is result.verdict is verdict
    assert (wrong == 2) is ("where there was none (2 of 4 times)" in result.reasons[0])


def test_what_failed_comes_before_what_cost_most() -> None:
    cards = {"a": card(wasted=1.0), "b": card(FAIL, 0.5), "c": card(wasted=4.0)}
    result = verdict_of(day(TWO, rehearsed("c", 90)), A, B, Expected("c", 2), cards=cards)
    assert [act.expected.name for act in result.to_fix] == ["b", "c", "a"]


def test_a_day_without_a_card_is_never_green_and_one_that_a_kill_cut_short_is_not_invalid() -> None:
    assert judge_day(day(ONE), [A], {"a": card()}, None).verdict is DOUBT
    assert judge_day([], [], {}, None).verdict is DOUBT
    judged(verdict_of(day()), DOUBT, "no rehearsal was planned: nothing is proven")
    judged(
        verdict_of(day(end="not_steady", reason="it saved nothing"), A), DOUBT, "it saved nothing; a: it was not run"
    )
    cut, invalid = day(ONE[:-1], end=None), card(Verdict.INVALID)
    result = judge_day(cut, [A], {"a": invalid}, invalid)
    assert (result.verdict, result.acts[0].verdict) == (DOUBT, DOUBT)


AT_S = st.integers(0, 900)
ALERTS = st.tuples(st.sampled_from(["Stalled", "Other"]), AT_S, st.sampled_from(["firing", "resolved"]))
PEOPLE = st.tuples(st.sampled_from(["detected", "acknowledged", "mitigated", "note"]), AT_S)


@given(st.lists(ALERTS, max_size=6), st.lists(PEOPLE, max_size=6))
def test_it_passes_only_with_an_alert_in_time_and_none_elsewhere(
    alerts: list[tuple[str, int, str]], people: list[tuple[str, int]]
) -> None:
    told = [alert(name, at, status) for name, at, status in alerts] + [person(*each) for each in people]
    result = verdict_of(day(rehearsed("a", 100), *told), STALLED)
    if result.verdict is PASS:
        assert any(name == "Stalled" and status == "firing" and 102 <= at <= 107.001 for name, at, status in alerts)
    reactions = [took for took in result.acts[0].reactions.values() if took is not None]
    assert reactions == sorted(reactions), "nobody mitigates before they detect"


@pytest.mark.parametrize(
    "outcome", ["stopped", "skipped", "aborted", "never_began", "job_ended", "", "some other word"]
)
def test_only_a_settled_rehearsal_passes_and_what_a_person_ended_proves_nothing(outcome: str) -> None:
    by_person = outcome in ("stopped", "skipped")
    for of_card in Verdict if by_person else (PASS, FAIL):
        result = verdict_of(day(rehearsed("a", 10, outcome=outcome)), A, cards={"a": card(of_card)})
        assert result.verdict is (FAIL if of_card is FAIL and not by_person else DOUBT)
        assert by_person or of_card is FAIL or result.reasons[0].startswith("a: it did not settle: ")


def test_one_alert_serves_one_fault() -> None:
    both, events = [STALLED, Expected("b", 1, [("Stalled", 100 * S)])], day(TWO, stalled(60))
    patient = replace(STALLED, alerts=[("Stalled", 100 * S)])
    for told, expected, found in (
        (events, both, [FAIL, PASS]),
        (day(ONE, rehearsed("b", 10), stalled(14)), both, [PASS, FAIL]),
        (events, [patient, both[1]], [DOUBT, PASS]),  # the next fault cut its window short
    ):
        assert [act.watches[0].verdict for act in verdict_of(told, *expected).acts] == found


@pytest.mark.parametrize(
    ("outcome", "fires", "within_s"), [("stopped", [19], 5), ("skipped", [19], 5), ("settled", [], 2000)]
)
def test_alerts_and_people_have_until_the_limit_unless_it_ended_before(
    outcome: str, fires: list[float], within_s: int
) -> None:
    """A person ended the rehearsal, or the log ends."""
    wanted = Expected("a", 0, [("Stalled", within_s * S)], {"detect": within_s * S})
    result = verdict_of(day(rehearsed("a", 10, outcome=outcome), stalled(*fires)), wanted)
    assert result.sides["alerts"] is result.sides["people"] is DOUBT


def test_a_probe_that_never_answered_is_inconclusive() -> None:
    usual = [A], {"a": card()}, card(), [("up", "during")]
    assert_verdict(judge_day(day(ONE, probe("during", ok=True)), *usual), PASS)
    result = judge_day(day(ONE), *usual)
    assert result.verdict is DOUBT and result.reasons == ["probe up never answered (during a)"]


JOB = small_jobs.job("day", ["python", "train.py"], nodes=2).model_copy(update={"run_id": "day-1"})
DAY = DayPlan.model_construct(name="plan", title="A day", seed=1, job=JOB, steady=Steady(), scenes=())


def result_of(verdict: Verdict = Verdict.PASS, reason: str = "recovered in 2 s") -> DayResult:
    cards = {
        "a": replace(card(), not_judged={"pace": "x", "loss": "y"}),
        "b": replace(
            card(verdict),
            not_judged={"pace": "x"},
            reasons=[reason],
            expectations=[Expectation("loss_continuity.mode", "exact", "–", verdict)],
        ),
    }
    return verdict_of(day(TWO), A, B, cards=cards)


def test_a_day_names_what_was_not_judged_in_its_headline_or_below_a_failure() -> None:
    told = "not judged in one rehearsal or more: pace, loss"
    files = day_report.render(DAY, result_of())
    assert json.loads(files["gameday-report.json"])["reasons"][0].endswith(told)
    assert told in files["report.md"].splitlines()[0]
    assert "All 2 rehearsals passed" in Page(files["report.html"]).text and told in Page(files["report.html"]).text
    for each in (PASS, FAIL):  # nothing is added where all was judged
        whole = verdict_of(day(ONE), A, cards={"a": card(each)})
        assert "not judged in" not in day_report.render(DAY, whole)["report.md"]
    files = day_report.render(DAY, result_of(FAIL, "loss_continuity.mode: 3 steps differ"))
    report, text = json.loads(files["gameday-report.json"]), Page(files["report.html"]).text
    assert (report["reasons"][0], report["reasons"][-1]) == ("b: loss_continuity.mode: 3 steps differ", told)
    assert text.count("Loss continuity, mode: 3 steps differ") == 2, "the headline and the scorecard"
    assert "loss_continuity" not in text
    assert "- Next: b: Once it is mended" in files["report.md"] and "b: Once it is mended" in text
    assert any("b: Once" in step for step in report["next_steps"])


def test_a_day_tells_the_time_on_the_wall_what_is_not_over_and_an_alert_that_the_plan_does_not_name() -> None:
    late = Expectation("recovery_time.max", "≤ 9.00 s", "> 4.57 s, not over", DOUBT)
    cards = {"a": replace(card(), expectations=[late])}
    result = verdict_of(day(ONE, alert("DiskFull", 300)), A, cards=cards)
    job = replace(card(), environment={"begun_at": "2026-11-27T23:59:55+00:00"})
    files = day_report.render(DAY, replace(result, job=job))
    assert result.sides["alerts"] is None and "DiskFull firing" in files["report.md"]
    assert "| 0:12.0 | 00:00:07 | fault |" in files["report.md"] and "2026-11-27 23:59 UTC" in files["report.md"]
    assert "> 4.57 s, not over" in files["report.html"].replace("\u00a0", " ").replace("&gt;", ">")


def test_the_waste_of_the_whole_day_is_told() -> None:
    """And what of the budget is spent, which counts from the first steady steps on."""
    since = {"allocated": 300.0, "wasted_all": 72.0, "wasted_faults": 21.3, "dollars": None}
    result = replace(result_of(), booked=since | {"allocated": 344.0, "wasted_all": 86.0, "since": since})
    told = "Wasted in the whole day: 86.0 GPU-s of 344.0 GPU-s (25.0 %), 21.3 GPU-s of it by faults."
    assert told in day_report.render(DAY, result)["report.md"]
    capped = DAY.model_copy(update={"budget": Budget(wasted_gpu_hours=0.5, wasted_percent="30%")})
    files = day_report.render(capped, result)
    told += " Of the budget, since the job was first steady: 72.0 GPU-s of 0.5 GPU-hours and 24.0 % of 30 %."
    assert told in files["report.md"] and told in Page(files["report.html"]).text.replace("\u00a0", " ")
    assert "Wasted in the whole day" not in day_report.render(DAY, result_of())["report.md"]


@pytest.mark.parametrize(
    ("since", "spent"),
    [
        (None, []),  # it was not steady yet
        (Booked(100.0, 90.0, 0.0), [0.05, 0.0]),  # a percentage of so little time says nothing
        (Booked(120.0, 90.0, 0.0), [0.05, 2.5]),
    ],
)
def test_what_is_spent_of_a_budget(since: Booked | None, spent: list[float]) -> None:
    booked = Booked(1000.0, 500.0, 0.0, since=since)
    budget = Budget(wasted_gpu_hours=0.5, wasted_percent="30%")
    assert [share for _, share in booked.spent(budget, gpus=2)] == pytest.approx(spent)
