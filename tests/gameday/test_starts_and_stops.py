"""Real game days of a light trainer: the order of the schedule, stop and lift, budget, probes, a job that ends early."""

import pathlib
from collections.abc import Callable
from typing import Any

import light_day
import pytest
import small_jobs

from harness.backends.local.backend import BACKEND
from harness.gameday.day import judged, run_day
from harness.gameday.day_plan import DayPlan, plan_day
from harness.gameday.day_verdict import DayResult
from harness.gameday.day_view import DayView, view_of
from harness.gameday.requests import AlertNews, Ask
from harness.gameday.starts_and_stops import Director
from harness.judge.verdict import Verdict
from harness.report import figures as figures_of
from harness.report import run_report
from harness.run.injection import LiveJob

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain")]  # real jobs
ROOT = pathlib.Path(__file__).resolve().parents[2]
KILL = "{scenario: rank-kill, overrides: {faults: {kill: {when: {step: 5}, target: {rank: 0}}}, expect: {wasted_gpu_hours: {max_percent_by_faults: 100}}}}"
HANG = "{scenario: silent-hang, overrides: {faults: {silence: {when: {step: 5}, target: {rank: 0}, duration: 10m}}}}"


def planned(tmp_path: pathlib.Path, entries: str, steps: int = 300, **more: str) -> DayPlan:
    path = light_day.write(tmp_path, f"  [{entries}]", steps, **more)
    return plan_day(path, 1, "local", "light-1", ROOT / "scenarios")


Watcher = Callable[[Director, LiveJob, int], None]


def played(tmp_path: pathlib.Path, day: DayPlan, watcher: Watcher | None = None) -> DayResult:
    director = Director(day, watcher=watcher)
    return run_day(day, tmp_path / "reports", BACKEND, director).result


def told(tmp_path: pathlib.Path, *names: str) -> list[dict[str, Any]]:
    return small_jobs.told(tmp_path / "reports" / "light-1", *names, role="harness")


class Asking:
    """A person: asks for each thing once, when its time has come."""

    def __init__(self, *asks: tuple[str, Callable[[DayView], bool]]):
        self.left, self.replies, self.views = list(asks), list[Ask](), list[DayView]()

    def __call__(self, director: Director, job: LiveJob, now_ns: int) -> None:
        view = view_of(director, job, now_ns, now_ns)
        self.views.append(view)
        if self.left and self.left[0][1](view):
            ask = Ask(self.left.pop(0)[0], "participant", "as planned", "Ada")
            self.replies.append(ask)
            director.desk.hand_in(ask)


def frozen(view: DayView) -> bool:
    return any(fault.moment == "effect" for scene in view.scenes for act in scene.acts for fault in act.faults)


def test_entries_come_in_order_each_is_judged_and_people_and_alerts_count(tmp_path: pathlib.Path) -> None:
    expect = "expect: {alerts: [{name: Stalled, within: 10m}], people: {acknowledge: 10m}}"
    watched = KILL.replace("{scenario: rank-kill,", "{scenario: rank-kill, " + expect + ",")

    class Pager(Asking):
        def __call__(self, director: Director, job: LiveJob, now_ns: int) -> None:
            before = len(self.replies)
            super().__call__(director, job, now_ns)
            if len(self.replies) > before:
                director.desk.hand_in(AlertNews("Stalled", "firing", "no step for 2 s"))

    def struck(view: DayView) -> bool:
        return any(f.moment not in ("waiting", "acting") for s in view.scenes for a in s.acts for f in a.faults)

    day = planned(tmp_path, f"{watched}, {{rest: 200ms}}, {KILL}", steps=600)
    result = played(tmp_path, day, Pager(("acknowledged", struck)))
    acts = [(act.expected.name, act.outcome) for act in result.acts]
    assert acts == [("rank-kill", "settled"), ("rank-kill-2", "settled")]
    assert all(act.recovery_s and act.recovery_s > 0 for act in result.acts)
    entries = [(e["entry"], e["edge"]) for e in told(tmp_path, "gameday.entry")]
    assert entries == [(0, "begin"), (0, "end"), (1, "begin"), (1, "end"), (2, "begin"), (2, "end")]
    steady = [e["mono_ns"] for e in told(tmp_path, "gameday.steady")]
    struck_at = [e["mono_ns"] for e in told(tmp_path, "fault.injected")]
    assert len(struck_at) == 2 and steady[0] < struck_at[0] and steady[-1] < struck_at[1]
    reactions = result.acts[0].reactions
    assert reactions["detect"] == reactions["acknowledge"] is not None
    (person,) = told(tmp_path, "gameday.person")
    assert (person["who"], person["text"], result.sides["people"]) == ("Ada", "as planned", Verdict.PASS)
    folder = tmp_path / "reports" / "light-1"
    assert "What to fix" in (folder / "report.md").read_text()
    assert (folder / "rehearsals" / "rank-kill" / "report.html").exists()
    assert judged(folder).verdict is result.verdict  # the log alone says it again


def test_stop_heals_at_once_and_blocks_until_it_is_lifted_and_a_pause_waits(tmp_path: pathlib.Path) -> None:
    """The day ends its job. Its verdict says which entry was stopped, and judges the steps until then as all of them."""
    late = KILL.replace("step: 5", "step: 100000000")  # inject does not wait for steps
    person = Asking(
        ("stop", frozen),
        ("inject", lambda view: view.blocked),
        ("lift", lambda view: view.blocked and view.step > 60),
        ("inject", lambda view: view.state == "paused"),
        ("continue", lambda view: view.state == "paused"),
        ("inject", lambda view: view.state == "acting" and not frozen(view)),
    )
    limits = "{cool_down: 100ms}"  # the next fault waits until the job has recovered from the one that was stopped
    entries = f"{HANG}, {{pause: Is everybody there?}}, {late}"
    day = planned(tmp_path, entries, steps=1_000_000, limits=limits, when_done="stop")
    result = played(tmp_path, day, person)
    (asked,) = [e for e in told(tmp_path, "gameday.person") if e["action"] == "stop"]
    (healed, _) = told(tmp_path, "fault.healed")
    assert healed["fault"] == "silent-hang-silence" and healed["mono_ns"] > asked["mono_ns"]
    assert [e["fault"] for e in told(tmp_path, "fault.recovered")] == ["silent-hang-silence", "rank-kill"]
    (lifted,) = told(tmp_path, "gameday.lifted")
    assert told(tmp_path, "fault.injected")[1]["mono_ns"] > lifted["mono_ns"], "nothing is injected while it is blocked"
    replies = [ask.reply.result() for ask in person.replies]
    assert "blocked" in replies[1] and (replies[3], replies[5]) == ("nothing to inject now", "")
    assert result.outcome == "completed" and [act.outcome for act in result.acts] == ["stopped", "settled"]
    (finished,), (over,) = told(tmp_path, "gameday.finished"), told(tmp_path, "gameday.over")
    assert finished["reason"] == "silent-hang was stopped" and over["reason"] == "the schedule is over"
    assert result.job is not None and result.job.metrics["steps_done"] == result.job.metrics["steps_planned"]
    assert result.verdict in (Verdict.INCONCLUSIVE, Verdict.INVALID)
    assert not [reason for reason in result.reasons if "interrupted" in reason or "steps are missing" in reason]
    rehearsal = run_report.read(tmp_path / "reports" / "light-1" / "rehearsals" / "silent-hang" / "report.json")
    assert (rehearsal.verdict, rehearsal.reasons[0]) == (Verdict.INCONCLUSIVE, "it was stopped: a person pressed stop")
    booked = result.acts[0].card
    assert booked is not None and figures_of.scores(booked)["wasted_gpu_hours"]["accounts"]["straggler_drag"] > 0.3


def test_inject_says_why_a_fault_is_held_back(tmp_path: pathlib.Path) -> None:
    """The second one is due while the first one is still at work on the same node."""
    together = f"{{parallel: [{HANG.replace('10m', '4s')}, {KILL.replace('step: 5', 'step: 100000000')}]}}"
    person = Asking(("inject", frozen), ("inject", lambda view: not frozen(view) and view.step > 150))
    result = played(tmp_path, planned(tmp_path, together, steps=400, limits="{cool_down: 100ms}"), person)
    assert person.replies[0].reply.result() == "it is held back: its node still has an active fault"
    assert person.replies[1].reply.result() == ""
    assert [act.outcome for act in result.acts] == ["settled", "settled"]


def test_a_probe_that_does_not_hold_ends_the_day_and_not_the_job(tmp_path: pathlib.Path) -> None:
    probes = "[{name: fails, command: ['false'], when: [before]}]"
    result = played(tmp_path, planned(tmp_path, KILL, steps=60, probes=probes))
    assert told(tmp_path, "fault.injected") == []
    assert result.outcome == "probe" and result.verdict is Verdict.INCONCLUSIVE
    assert any("probe fails failed (before): ended with 1" in reason for reason in result.reasons)
    assert told(tmp_path, "run.finished")[0]["outcome"] == "completed"


def test_a_spent_budget_stops_what_acts(tmp_path: pathlib.Path) -> None:
    day = planned(tmp_path, f"{HANG}, {KILL}", steps=500, budget="{wasted_gpu_hours: 0.0005}")  # 1.8 GPU-seconds
    result = played(tmp_path, day)
    assert result.outcome == "budget" and result.verdict is Verdict.FAIL
    assert [act.outcome for act in result.acts] == ["stopped", "not_run"]


def test_a_job_that_ends_early_leaves_the_rest_inconclusive(tmp_path: pathlib.Path) -> None:
    result = played(tmp_path, planned(tmp_path, f"{KILL}, {{pause: nobody is here}}, {KILL}", steps=120))
    assert result.outcome == "job_ended" and result.verdict is Verdict.INCONCLUSIVE
    assert [act.outcome for act in result.acts] == ["settled", "not_run"]
    assert any("rank-kill-2: it was not run" in reason for reason in result.reasons)
