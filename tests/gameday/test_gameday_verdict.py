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


def test_a_day_on_which_all_passed_passes_and_says_what_was_not_judged() -> None:
    result = verdict_of(day(rehearsed("a", 10), rehearsed("b", 50)), Expected("a", 0), Expected("b", 1))
    assert result.verdict is Verdict.PASS
    assert result.reasons == [
        "all 2 rehearsals passed on one job that kept running; its losses were judged in the rehearsals only, not between"
        " and after them; not judged: alerts and people (the plan expects nothing of them)"
    ]


UNSTEADY = {"event": "gameday.steady", "ok": False, "reason": "no checkpoint", "s": 5}


@pytest.mark.parametrize(
    ("events", "reasons"),
    [
        (day(UNSTEADY, rehearsed("a", 10)), ["the job was not steady (no checkpoint), and yet the day went on"]),
        (day(end="not_steady", reason="it saved nothing yet"), ["it saved nothing yet", "a: it was not run"]),
        (day(rehearsed("a", 10)[:-1]), ["a: it did not settle: its end is not in the log"]),
    ],
    ids=["it went on though the job was not steady", "never steady before any fault", "no end of the rehearsal"],
)
def test_such_a_day_proves_nothing(events: list[Event], reasons: list[str]) -> None:
    result = verdict_of(events, Expected("a", 0))
    assert (result.verdict, result.reasons) == (Verdict.INCONCLUSIVE, reasons)


@pytest.mark.parametrize(
    ("fires", "verdict", "told"),
    [
        ([14.0], Verdict.PASS, ""),
        ([], Verdict.FAIL, "a: alert Stalled did not fire (≤ 5.00 s)"),
        ([18.0], Verdict.FAIL, "a: alert Stalled fired only after 6.00 s (≤ 5.00 s)"),
        ([5.0, 14.0], Verdict.FAIL, "a: alert Stalled did not fire (≤ 5.00 s)"),  # it fired before, and fires on
        ([14.0, 40.0], Verdict.PASS, ""),  # told again while it fires on
    ],
)
def test_an_alert_must_fire_in_time(fires: list[float], verdict: Verdict, told: str) -> None:
    result = verdict_of(day(rehearsed("a", 10), *(alert("Stalled", at) for at in fires)), STALLED)
    assert result.sides["alerts"] is verdict and result.verdict is verdict
    assert not told or told in result.reasons


def test_an_alert_where_nothing_was_injected_fails() -> None:
    events = day(rehearsed("a", 10), alert("Stalled", 14), alert("Stalled", 15, "resolved"), alert("Stalled", 300))
    result = verdict_of(events, STALLED)
    assert result.verdict is Verdict.FAIL
    assert result.reasons == ["alert Stalled fired at 5 min 0 s, when no fault was active"]
    for alerts, told in (([alert("Stalled", 13)], Verdict.FAIL), ([], Verdict.INCONCLUSIVE)):
        assert verdict_of(day(rehearsed("a", 10, acts=False), *alerts), STALLED).sides["alerts"] is told


@pytest.mark.parametrize(("after_s", "false"), [(-1, False), (4.9, False), (5.1, True)])
def test_an_alert_may_fire_late_about_a_fault_of_another_rehearsal(after_s: float, false: bool) -> None:
    """It looks back: as long after the other fault's end as the plan gives it after a fault's begin."""
    fires = alert("Stalled", 14), alert("Stalled", 15, "resolved"), alert("Stalled", 60 + after_s)
    result = verdict_of(day(rehearsed("a", 10), rehearsed("b", 50, 10), *fires), STALLED, Expected("b", 1))
    told = any("when no fault was active" in reason for reason in result.reasons)
    assert told is false, result.reasons


def test_an_alert_that_the_plan_does_not_name_is_shown_and_not_judged() -> None:
    result = verdict_of(day(rehearsed("a", 10), alert("DiskFull", 300)), Expected("a", 0))
    assert result.verdict is Verdict.PASS and result.sides["alerts"] is None
    assert any(moment.what.startswith("DiskFull firing") for moment in result.moments)


def test_who_acknowledges_has_detected() -> None:
    events = day(rehearsed("a", 10), person("acknowledged", 15), person("mitigated", 19))
    result = verdict_of(events, Expected("a", 0, people={"detect": 4 * S, "mitigate": 6 * S}))
    assert result.acts[0].reactions == {"detect": 3 * S, "acknowledge": 3 * S, "mitigate": 7 * S}
    assert result.sides["people"] is Verdict.FAIL
    assert result.reasons == ["a: people mitigate: it took 7.00 s (≤ 6.00 s)"]
    (act,) = result.acts
    assert act.worst_first[0] == "people mitigate: it took 7.00 s (≤ 6.00 s)", "not that the job recovered"
    assert day_report.to_do(result) == ["a: give it a runbook: …"]
    known = replace(act, expected=replace(act.expected, runbook="https://runbooks/a"))
    (step,) = day_report.to_do(replace(result, acts=[known]))
    assert step == "a: go through its runbook with those on call: https://runbooks/a"


@pytest.mark.parametrize(
    ("presses", "found"),
    [
        ([person("detected", 13, "master")], Verdict.FAIL),
        ([person("detected", 13), person("mitigated", 500)], Verdict.PASS),
        ([person("detected", 45)], Verdict.PASS),
    ],
    ids=["the game master", "mitigated late and once", "the job has recovered already"],
)
def test_who_detects_and_has_not_guessed(presses: list[Event], found: Verdict) -> None:
    result = verdict_of(day(rehearsed("a", 10), *presses), Expected("a", 0, people={"detect": 60 * S}))
    assert result.acts[0].over is not None and result.acts[0].over < 45 * S
    assert result.sides["people"] is result.verdict is found
    assert found is Verdict.PASS or result.reasons == ["a: people detect: nobody did (≤ 60.00 s)"]


@pytest.mark.parametrize(("wrong", "verdict"), [(0, Verdict.PASS), (1, Verdict.PASS), (2, Verdict.INCONCLUSIVE)])
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
    result = verdict_of(day(rehearsed("a", 10), rehearsed("b", 50), *presses), *expected)
    assert result.sides["people"] is result.verdict is verdict
    assert (wrong == 2) is ("where there was none (2 of 4 times)" in result.reasons[0])


def test_what_people_do_counts_for_the_newest_fault() -> None:
    events = day(rehearsed("a", 10), rehearsed("b", 50), person("detected", 60), person("detected", 5))
    result = verdict_of(events, Expected("a", 0, people={"detect": 60 * S}), Expected("b", 1))
    assert result.acts[0].reactions["detect"] is None and result.acts[1].reactions["detect"] == 8 * S
    assert result.reasons[:1] == ["a: people detect: nobody did (≤ 60.00 s)"]


@pytest.mark.parametrize("outcome", ["stopped", "skipped"])
def test_what_a_person_ended_proves_nothing(outcome: str) -> None:
    events = day(rehearsed("a", 10, outcome=outcome))
    for verdict in Verdict:
        result = verdict_of(events, Expected("a", 0), cards={"a": card(verdict)})
        assert result.acts[0].verdict is Verdict.INCONCLUSIVE and result.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        ("completed", Verdict.PASS),
        ("budget", Verdict.FAIL),
        ("not_steady", Verdict.FAIL),
        ("job_ended", Verdict.INCONCLUSIVE),
        ("probe", Verdict.INCONCLUSIVE),
        ("some word of a later version", Verdict.INCONCLUSIVE),
        ("", Verdict.INCONCLUSIVE),
        (None, Verdict.INCONCLUSIVE),
    ],
)
def test_how_the_schedule_ended(end: str | None, verdict: Verdict) -> None:
    assert verdict_of(day(rehearsed("a", 10), end=end, reason="why"), Expected("a", 0)).verdict is verdict


def test_a_day_that_a_signal_ended_says_so_first() -> None:
    ended = {"event": "run.finished", "outcome": "interrupted", "reason": "stopped by the user", "s": 1001}
    entry = "the job ended during entry 1 of 2"
    result = verdict_of(
        day(rehearsed("a", 10, outcome="job_ended"), ended, end="job_ended", reason=entry), Expected("a", 0)
    )
    assert result.reasons[0] == f"the schedule was not completed: job_ended: {entry}: stopped by the user"
    ended |= {"outcome": "completed", "reason": "every node's command ended with 0"}
    result = verdict_of(day(rehearsed("a", 10), ended, end="job_ended", reason=entry), Expected("a", 0))
    assert result.reasons[0] == f"the schedule was not completed: job_ended: {entry}"


@pytest.mark.parametrize(
    ("moment", "verdict"), [("before", Verdict.INCONCLUSIVE), ("during", Verdict.FAIL), ("after", Verdict.FAIL)]
)
def test_a_probe_that_did_not_hold(moment: str, verdict: Verdict) -> None:
    probe = {"event": "gameday.probe", "name": "up", "moment": moment, "ok": False, "detail": "HTTP 500", "s": 12}
    assert verdict_of(day(rehearsed("a", 10), probe, end="probe"), Expected("a", 0)).verdict is verdict


def test_what_failed_comes_before_what_cost_most() -> None:
    events = day(rehearsed("a", 10), rehearsed("b", 50), rehearsed("c", 90))
    cards = {"a": card(wasted=1.0), "b": card(Verdict.FAIL, 0.5), "c": card(wasted=4.0)}
    result = verdict_of(events, Expected("a", 0), Expected("b", 1), Expected("c", 2), cards=cards)
    assert [act.expected.name for act in result.to_fix] == ["b", "c", "a"]


def test_a_day_without_a_card_or_a_rehearsal_is_never_green() -> None:
    events = day(rehearsed("a", 10))
    assert judge_day(events, [Expected("a", 0)], {"a": card()}, None).verdict is Verdict.INCONCLUSIVE
    assert judge_day([], [], {}, None).verdict is Verdict.INCONCLUSIVE
    result = verdict_of(day())
    assert (result.verdict, result.reasons) == (Verdict.INCONCLUSIVE, ["no rehearsal was planned: nothing is proven"])


AT_S = st.integers(0, 900)
ALERTS = st.tuples(st.sampled_from(["Stalled", "Other"]), AT_S, st.sampled_from(["firing", "resolved"]))
PEOPLE = st.tuples(st.sampled_from(["detected", "acknowledged", "mitigated", "note"]), AT_S)


@given(st.lists(ALERTS, max_size=6), st.lists(PEOPLE, max_size=6))
def test_it_passes_only_with_an_alert_in_time_and_none_elsewhere(
    alerts: list[tuple[str, int, str]], people: list[tuple[str, int]]
) -> None:
    told = [alert(name, at, status) for name, at, status in alerts] + [person(*each) for each in people]
    result = verdict_of(day(rehearsed("a", 100), *told), STALLED)
    if result.verdict is Verdict.PASS:
        assert any(name == "Stalled" and status == "firing" and 102 <= at <= 107.001 for name, at, status in alerts)
    reactions = [took for took in result.acts[0].reactions.values() if took is not None]
    assert reactions == sorted(reactions), "nobody mitigates before they detect"


@pytest.mark.parametrize("outcome", ["aborted", "never_began", "job_ended", "", "some other word"])
def test_only_a_settled_rehearsal_passes(outcome: str) -> None:
    result = verdict_of(day(rehearsed("a", 10, outcome=outcome)), Expected("a", 0))
    assert result.verdict is Verdict.INCONCLUSIVE and result.reasons[0].startswith("a: it did not settle: ")
    failed = verdict_of(day(rehearsed("a", 10, outcome=outcome)), Expected("a", 0), cards={"a": card(Verdict.FAIL)})
    assert failed.verdict is Verdict.FAIL


def test_what_the_death_of_the_harness_cut_short_is_inconclusive_and_not_invalid() -> None:
    events = [each for each in day(rehearsed("a", 10), end=None) if each["event"] != "rehearsal.finished"]
    invalid = card(Verdict.INVALID)
    result = judge_day(events, [Expected("a", 0)], {"a": invalid}, invalid)
    assert (result.verdict, result.acts[0].verdict) == (Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE)


@pytest.mark.parametrize("kind", ["pause", "rest"])
def test_a_skipped_pause_or_rest_is_inconclusive(kind: str) -> None:
    entry = {"event": "gameday.entry", "entry": 1, "kind": kind, "edge": "end", "s": 40}
    result = verdict_of(day(rehearsed("a", 10), {**entry, "reason": "skipped"}), Expected("a", 0))
    assert result.verdict is Verdict.INCONCLUSIVE and result.reasons == [f"entry 2: the {kind} was skipped"]
    assert verdict_of(day(rehearsed("a", 10), {**entry, "reason": ""}), Expected("a", 0)).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (person("stop", 14), "a: it was stopped: a person pressed stop"),
        ({"event": "gameday.blocked", "reason": "stop", "s": 14}, "a: it was stopped: a person pressed stop"),
        (person("skip", 14, "master"), "a: it was skipped: a person skipped it"),
        (
            {"event": "gameday.finished", "outcome": "completed", "reason": "", "s": 14},
            "a: it was stopped: the schedule was over before it had ended",
        ),
        (
            {"event": "rehearsal.finished", "rehearsal": "a", "outcome": "stopped", "reason": "cut", "s": 14},
            "a: it was stopped: cut",
        ),
        (
            {"event": "gameday.entry", "entry": 0, "kind": "scenario", "edge": "end", "reason": "stopped", "s": 30},
            "entry 1: the scenario was stopped",
        ),
    ],
)
def test_a_rehearsal_that_settled_though_the_log_says_that_it_was_cut_short_proves_nothing(
    more: Event, told: str
) -> None:
    result = verdict_of(day(rehearsed("a", 10), more), Expected("a", 0))
    assert (result.verdict, result.reasons[0]) == (Verdict.INCONCLUSIVE, told)


@pytest.mark.parametrize("at_s", [5, 25])
def test_what_people_stop_before_and_after_a_rehearsal_does_not_change_it(at_s: float) -> None:
    assert_verdict(verdict_of(day(rehearsed("a", 10), person("stop", at_s)), Expected("a", 0)), Verdict.PASS)


def test_one_alert_serves_one_fault() -> None:
    both = [STALLED, Expected("b", 1, [("Stalled", 100 * S)])]
    events = day(rehearsed("a", 10), rehearsed("b", 50), alert("Stalled", 60))
    result = verdict_of(events, *both)
    assert [act.watches[0].verdict for act in result.acts] == [Verdict.FAIL, Verdict.PASS]
    together = day(rehearsed("a", 10), rehearsed("b", 10), alert("Stalled", 14))
    result = verdict_of(together, *both)
    assert [act.watches[0].verdict for act in result.acts] == [Verdict.PASS, Verdict.FAIL]
    patient = replace(STALLED, alerts=[("Stalled", 100 * S)])
    result = verdict_of(events, patient, both[1])
    told = [act.watches[0].verdict for act in result.acts]
    assert told == [Verdict.INCONCLUSIVE, Verdict.PASS], "the next fault cut its window short"


def test_an_alert_in_time_but_after_recovery_is_no_false_alarm() -> None:
    events = day(rehearsed("a", 10), alert("Stalled", 40), alert("Stalled", 41, "resolved"))
    slow = Expected("a", 0, [("Stalled", 60 * S)])
    assert verdict_of(events, slow).verdict is Verdict.PASS
    assert verdict_of([*events[:-1], {**alert("Stalled", 90), "at": 90 * S}], slow).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("outcome", "fires", "within_s"), [("stopped", [19], 5), ("skipped", [19], 5), ("settled", [], 2000)]
)
def test_alerts_and_people_have_until_the_limit_unless_it_ended_before(
    outcome: str, fires: list[float], within_s: int
) -> None:
    """A person ended the rehearsal, or the log ends."""
    wanted = Expected("a", 0, [("Stalled", within_s * S)], {"detect": within_s * S})
    result = verdict_of(day(rehearsed("a", 10, outcome=outcome), *(alert("Stalled", at) for at in fires)), wanted)
    assert result.sides["alerts"] is result.sides["people"] is Verdict.INCONCLUSIVE


def test_alerts_of_one_name_are_told_apart_by_fingerprint() -> None:
    early, own = {**alert("Stalled", 5), "fingerprint": "1"}, {**alert("Stalled", 14), "fingerprint": "2"}
    assert verdict_of(day(rehearsed("a", 10), early, own), STALLED).acts[0].watches[0].verdict is Verdict.PASS
    other = {**alert("Stalled", 15, "resolved"), "fingerprint": "1"}
    again = {**alert("Stalled", 300), "fingerprint": "2"}
    assert verdict_of(day(rehearsed("a", 10), own, other, again), STALLED).verdict is Verdict.PASS


def test_a_probe_that_never_answered_is_inconclusive() -> None:
    wanted, cards = [Expected("a", 0)], {"a": card()}
    probe = {"event": "gameday.probe", "name": "up", "moment": "during", "ok": True, "rehearsal": "a", "s": 12}
    assert_verdict(judge_day(day(rehearsed("a", 10), probe), wanted, cards, card(), [("up", "during")]), Verdict.PASS)
    result = judge_day(day(rehearsed("a", 10)), wanted, cards, card(), [("up", "during")])
    assert result.verdict is Verdict.INCONCLUSIVE and result.reasons == ["probe up never answered (during a)"]


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
    events = day(rehearsed("a", 10), rehearsed("b", 50))
    return verdict_of(events, Expected("a", 0), Expected("b", 1), cards=cards)


def test_a_day_that_passed_names_in_its_headline_what_was_not_judged() -> None:
    files = day_report.render(DAY, result_of())
    told = "not judged in one rehearsal or more: pace, loss"
    assert json.loads(files["gameday-report.json"])["reasons"][0].endswith(told)
    assert told in files["report.md"].splitlines()[0]
    for each in (Verdict.PASS, Verdict.FAIL):  # nothing is added where all was judged
        whole = verdict_of(day(rehearsed("a", 10)), Expected("a", 0), cards={"a": card(each)})
        assert "not judged in" not in day_report.render(DAY, whole)["report.md"]
    assert "All 2 rehearsals passed" in Page(files["report.html"]).text and told in Page(files["report.html"]).text


def test_a_day_that_failed_names_it_below_its_headline() -> None:
    files = day_report.render(DAY, result_of(Verdict.FAIL, "loss_continuity.mode: 3 steps differ"))
    reasons = json.loads(files["gameday-report.json"])["reasons"]
    assert reasons[0] == "b: loss_continuity.mode: 3 steps differ"
    assert reasons[-1] == "not judged in one rehearsal or more: pace, loss"
    text = Page(files["report.html"]).text
    assert text.count("Loss continuity, mode: 3 steps differ") == 2, "the headline and the scorecard"
    assert "loss_continuity" not in text
    assert "- Next: b: Once it is mended" in files["report.md"] and "b: Once it is mended" in text
    assert any("b: Once" in step for step in json.loads(files["gameday-report.json"])["next_steps"])


def test_a_day_tells_the_time_on_the_wall_and_what_is_not_over() -> None:
    late = Expectation("recovery_time.max", "≤ 9.00 s", "> 4.57 s, not over", Verdict.INCONCLUSIVE)
    result = verdict_of(day(rehearsed("a", 10)), Expected("a", 0), cards={"a": replace(card(), expectations=[late])})
    job = replace(card(), environment={"begun_at": "2026-11-27T23:59:55+00:00"})
    files = day_report.render(DAY, replace(result, job=job))
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
