"""What the live page is told of a day: pure views of a job that never ran."""

from __future__ import annotations

import pathlib
from types import SimpleNamespace
from typing import Any, cast

import light_day
import pytest

from harness.gameday.day_plan import plan_day
from harness.gameday.day_view import DayView, RankView, ended, for_role, view_of
from harness.gameday.outage_phases import Span
from harness.gameday.starts_and_stops import Director, News
from harness.run.injection import LiveJob
from harness.run.live import LiveProgress, Worker
from harness.run.trigger import Firing

ROOT = pathlib.Path(__file__).resolve().parents[2]
S = 10**9
NOW = 200 * S
KILL = "{scenario: rank-kill, overrides: {faults: {kill: {when: {step: 5}, target: {rank: 0}}}}}"
HANG = "{scenario: silent-hang, overrides: {faults: {silence: {when: {step: 5}, target: {rank: 0}, duration: 40s}}}}"


@pytest.fixture
def director(tmp_path: pathlib.Path) -> Director:
    path = light_day.write(tmp_path, f"  [{KILL}, {{rest: 1s}}, {HANG}]", 300)
    return Director(plan_day(path, 1, "local", "light-1", ROOT / "scenarios"))


def going(*, idle_s: float = 0.1, step_s: float = 0.065, **more: Any) -> LiveProgress:
    """Two ranks at step 90, the last one so long ago."""
    at = NOW - round(idle_s * S)
    progress = LiveProgress({rank: Worker("node0", 1, 7, S, 90, None, at, at) for rank in range(2)}, 2)
    progress.complete_step, progress.furthest_step, progress.last_step_ns, progress.phase = 90, 90, at, "training"
    for rank in range(2):
        progress.step_times[rank] = cast(Any, [(at, round(step_s * S))])
    for name, value in more.items():
        setattr(progress, name, value)
    return progress


def seen(director: Director, progress: LiveProgress, firings: dict[str, Firing] | None = None) -> DayView:
    job = SimpleNamespace(progress=progress, cluster=SimpleNamespace(nodes=[]), firings=firings or {})
    return view_of(director, cast(LiveJob, job), 0, NOW)


def test_a_rank_that_does_no_step_has_no_pace(director: Director) -> None:
    view = seen(director, going(idle_s=23))
    assert view.ranks.listed[0] == RankView(0, "node0", 90, None, 23.0, True)
    assert view.ranks.step_ms == [] and view.standing and not view.steps_go
    assert view.phase == "standing_still"


def test_a_rank_that_goes_has_its_pace(director: Director) -> None:
    view = seen(director, going())
    assert view.ranks.listed[1] == RankView(1, "node0", 90, 65.0, 0.1, False)
    assert view.steps_go and view.phase == "running"


def test_slow_steps_are_no_standstill(director: Director) -> None:
    assert not seen(director, going(idle_s=23, step_s=10)).standing


def test_a_restart_says_neither_that_steps_are_done_nor_a_pace(director: Director) -> None:
    fresh = {rank: Worker("node0", 1, 8, NOW - S // 2) for rank in range(2)}
    view = seen(director, going(idle_s=1, workers=fresh, complete_step=0, phase="rendezvous"))
    assert (view.steps_go, view.standing, view.phase) == (False, False, "rendezvous")
    assert (view.step, view.furthest_step) == (0, 90)
    assert view.ranks.listed[0] == RankView(0, "node0", 0, None)


def test_an_outage_is_told_by_what_its_own_faults_came_to(director: Director) -> None:
    director.course.outage = [Span("training", 100 * S, 104 * S), Span("rendezvous", 104 * S, 110 * S)]
    firings = {name: firing for cue in director.cues for name, firing in cue.rehearsal.firings.items()}
    earlier, now = firings.values()
    earlier.moments_ns.update(injected=20 * S, recovered=30 * S, healed=20 * S)
    now.moments_ns.update(injected=100 * S)
    assert seen(director, going(), firings).outage == [("detect", 4.0), ("teardown", 6.0)]
    now.moments_ns.update(recovered=101 * S)
    assert seen(director, going(), firings).outage == [("detect", 1.0), ("running", 3.0), ("teardown", 6.0)]


def person(at_s: int, text: str) -> News:
    return News(at_s * S, "person", text, "participant")


@pytest.mark.parametrize(
    ("feed", "told"),
    [
        ([person(159, "Ada: stop"), person(170, "Bob: stop")], "Stopped by Ada at 2:39: "),
        ([person(20, "Ada: stop"), person(60, "Grace: lift"), person(170, "Bob: stop")], "Stopped by Bob at 2:50: "),
        ([person(159, "participant: stop")], "Stopped by a participant at 2:39: "),
        ([person(159, "master: stop")], "Stopped by the game master at 2:39: "),
        ([person(159, "Ada: note: stop")], "Stopped by a person: "),
        ([], "Stopped by a person: "),
    ],
)
@pytest.mark.parametrize("role", ["master", "participant"])
def test_everybody_reads_who_stopped_it_and_when(director: Director, feed: list[News], told: str, role: str) -> None:
    director.blocked = True
    director.feed.extend(feed)
    saying = for_role(seen(director, going()), role, []).saying
    assert saying == f"{told}nothing is injected until the game master lifts it. The job goes on."


def test_once_the_schedule_is_over_nothing_is_left_to_lift(director: Director) -> None:
    director.blocked, director.state = True, "over"
    for role in ("master", "participant"):
        assert for_role(seen(director, going()), role, []).saying.startswith("The schedule is over")


@pytest.mark.parametrize(("outcome", "state"), [("settled", "over"), ("stopped", "stopped"), ("skipped", "skipped")])
def test_an_entry_says_how_it_ended(director: Director, outcome: str, state: str) -> None:
    director.scene = 1
    director.cues[0].rehearsal.outcome = outcome
    view = seen(director, going())
    assert [scene.state for scene in view.scenes] == [state, "now", "next"]
    assert [scene.state for scene in for_role(view, "participant", []).scenes] == [state], "what is over is told"


def test_a_fault_that_is_due_and_held_back_says_why(director: Director) -> None:
    firing = next(iter(director.cues[0].rehearsal.firings.values()))
    assert seen(director, going()).scenes[0].acts[0].faults[0].moment == "waiting"
    firing.held_back = "the pause of 9 s after a recovery is not over"
    assert seen(director, going()).scenes[0].acts[0].faults[0].moment == f"waiting: {firing.held_back}"
    firing.fired = True
    assert seen(director, going()).scenes[0].acts[0].faults[0].moment == "acting"


def test_participants_read_the_title_once_the_job_is_over(director: Director) -> None:
    view = seen(director, going())
    assert for_role(view, "participant", []).title == "Game day", "a title may tell what comes"
    assert for_role(ended(view), "participant", []).title == "A light day" == for_role(view, "observer", []).title


def test_of_a_schedule_that_ended_early_the_rest_is_skipped(director: Director) -> None:
    director.scene, director.state = 1, "over"
    director.cues[0].rehearsal.outcome = "settled"
    assert [scene.state for scene in seen(director, going()).scenes] == ["over", "stopped", "skipped"]


@pytest.mark.parametrize("role", ["master", "participant", "observer"])
def test_after_the_job_the_verdict_is_told(director: Director, role: str) -> None:
    view = seen(director, going())
    over = for_role(ended(view), role, [])
    assert over.job_over and over.state == "over" and over.saying == "The job is over. The day is being judged."
    judged = for_role(ended(view, "fail", "silent-hang: too slow", "/r/report.html"), role, [])
    assert judged.saying == "The day is over: fail. silent-hang: too slow"
    assert (judged.verdict, judged.report) == ("fail", "/r/report.html")


def test_the_page_knows_whether_there_is_a_fault_free_run(director: Director) -> None:
    assert not seen(director, going()).fault_free, "light days do without"
