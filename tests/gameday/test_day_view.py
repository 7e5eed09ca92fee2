"""What a page is told of a day, from its first moment to its verdict, and of an outage that is going on: pure views of
a job that never ran."""

import pathlib
import threading
from types import SimpleNamespace
from typing import Any, cast

import light_day
import numpy as np
import pytest
from judging import fault_free_of, verdict
from simulator import Job, Outage, simulate

from harness.campaign.campaign_observers import Stage
from harness.gameday import day_report
from harness.gameday.books import Booked, Books
from harness.gameday.day import Ended
from harness.gameday.day_command import Shown
from harness.gameday.day_plan import plan_day
from harness.gameday.day_view import DayView, RankView, ended, for_role, view_of
from harness.gameday.outage_phases import Span, newest_word, phase_now, phases_of
from harness.gameday.starts_and_stops import Director, News
from harness.gameday.steady import Course
from harness.report.words import PHASE_MEANING
from harness.run.injection import LiveJob
from harness.run.live_progress import LiveProgress, Worker
from harness.run.observers import Status
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


def test_a_rank_has_a_pace_while_it_goes(director: Director) -> None:
    view = seen(director, going())
    assert view.ranks.listed[1] == RankView(1, "node0", 90, 65.0, 0.1, False)
    assert view.steps_go and view.phase == "running"
    view = seen(director, going(idle_s=23))
    assert view.ranks.listed[0] == RankView(0, "node0", 90, None, 23.0, True)
    assert view.ranks.step_ms == [] and view.standing and not view.steps_go
    assert view.phase == "standing_still"
    assert not seen(director, going(idle_s=23, step_s=10)).standing
    assert not seen(director, going()).fault_free, "light days do without"


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


def test_after_the_job_comes_the_verdict_with_the_path_of_the_report(tmp_path: pathlib.Path) -> None:
    path = light_day.write(tmp_path, f"  [{KILL}]", 300)
    director = Director(plan_day(path, 1, "local", "light-1", ROOT / "scenarios"))
    job = SimpleNamespace(progress=LiveProgress(), cluster=SimpleNamespace(nodes=[]), firings={})
    views = list[DayView]()
    shown = Shown(lambda view, feed: views.append(view))
    shown.stage_ended(Stage("fault-free run", 1), "cached")
    assert views == [], "nothing is known of the day yet"
    shown.watch(director, cast(Any, job), 0)
    shown.stage_ended(Stage("run with faults", 1), "completed")
    booked = {"allocated": 344.0, "wasted_all": 86.0, "wasted_faults": 21.3, "dollars": None}
    result = SimpleNamespace(verdict=SimpleNamespace(value="fail"), reasons=["rank-kill: too slow"], booked=booked)
    shown.day_judged(Ended(tmp_path, cast(Any, result)))
    assert [(view.job_over, view.verdict) for view in views] == [(False, ""), (True, ""), (True, "fail")]
    assert views[-1].report == str(tmp_path / "report.html")
    assert views[-1].saying == "The day is over: fail. rank-kill: too slow"
    told = day_report._wasted(director.day, cast(Any, result))
    assert told == "Wasted in the whole day: 86.0 GPU-s of 344.0 GPU-s (25.0 %), 21.3 GPU-s of it by faults."
    assert (views[-1].wasted, views[-1].wasted_words) == ("21.3 GPU-s", f"by faults; in all {told[25:59]}")


def test_before_the_day_the_page_shows_the_plan_and_the_run_without_a_fault(tmp_path: pathlib.Path) -> None:
    path = light_day.write(tmp_path, f"  [{KILL}]", 300)
    director = Director(plan_day(path, 1, "local", "light-1", ROOT / "scenarios"))
    views = list[DayView]()
    shown = Shown(lambda view, feed: views.append(view), "", director)
    shown.status(Status("free-1", 2.0, "training", 40, 300, 1.5, (), ()))
    assert views[0].saying == "First the same job runs without a fault: step 40 of 300. The day begins after it."
    assert (views[0].state, views[0].step, [scene.state for scene in views[0].scenes]) == ("preparing", 40, ["next"])
    hidden = for_role(views[0], "participant", [])
    assert hidden.state == "preparing" and not hidden.scenes and hidden.title == "Game day"
    shown.watch(
        director, cast(Any, SimpleNamespace(progress=LiveProgress(), cluster=SimpleNamespace(nodes=[]), firings={})), 0
    )
    shown.status(Status("day-1", 3.0, "training", 1, 300, 1.5, (), ()))
    assert [view.state for view in views] == ["preparing", "steadying"], "the day shows itself"


def test_the_terminal_tells_once_that_a_pause_waits_for_a_press(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = light_day.write(tmp_path, f"  [{{pause: Is everybody there?}}, {{pause: Still there?}}, {KILL}]", 300)
    director = Director(plan_day(path, 1, "local", "light-1", ROOT / "scenarios"))
    job = SimpleNamespace(progress=LiveProgress(), cluster=SimpleNamespace(nodes=[]), firings={})
    shown = Shown(lambda view, feed: None, "http://127.0.0.1:1/?token=t")
    for director.state, director.scene in (("steadying", 0), ("paused", 0), ("paused", 0), ("paused", 1)):
        shown.watch(director, cast(Any, job), 0)
    for _ in range(2):
        director.feed.append(News(len(director.feed) + 1, "person", "ada: stop", "participant"))
        shown.watch(director, cast(Any, job), 0)
    waits = "  waiting for a person to press Continue: http://127.0.0.1:1/?token=t"
    told = ["  pause: Is everybody there?", waits, "  pause: Still there?", waits, *["  ada: stop"] * 2]
    assert capsys.readouterr().out.splitlines() == told


def outage(*words: str) -> list[Span]:
    """Each lasts a second."""
    return [Span(word, number * S, (number + 1) * S) for number, word in enumerate(words)]


RESTART = ("training", "rendezvous", "exiting", "startup", "rendezvous", "restore", "restored", "training")


def test_a_restart_is_told_in_the_reports_words() -> None:
    told = phases_of(outage(*RESTART), None, node_taken=False)
    others = [(phase, 1.0) for phase in ("startup", "rendezvous", "restore", "first_step", "recompute")]
    assert told == [("detect", 1.0), ("teardown", 2.0), *others]
    assert {phase for phase, _ in told} <= set(PHASE_MEANING)


def test_launchers_wait_for_a_node_that_was_taken() -> None:
    """Until its replacement is there, which then has to start."""
    spans = outage("training", "exiting", "rendezvous", "rendezvous", "startup", "rendezvous")
    spans[2].missing = True
    told = phases_of(spans, None, node_taken=True)
    assert told == [("detect", 1.0), ("teardown", 1.0), ("reschedule", 1.0), ("startup", 2.0), ("rendezvous", 1.0)]


@pytest.mark.parametrize("started", ["starting", "startup", "restore", "restored"])
def test_nothing_is_detected_after_a_new_process_was_met(started: str) -> None:
    """Whichever of its phases was seen: the shortest ones may fall between two looks."""
    told = phases_of(outage("training", started, "training"), None, node_taken=False)
    assert [phase for phase, _ in told][::2] == ["detect", "recompute"]


def test_a_node_that_comes_back_begins_a_new_part_of_the_outage() -> None:
    course, known = Course(), progress("rendezvous", worker(5, None))
    for second, missing in ((1, True), (2, True), (7, False), (9, False)):
        course.note_outage(known, True, second * S, missing)
    spans = [(span.begin_ns // S, span.end_ns // S, span.missing) for span in course.outage]
    assert spans == [(1, 7, True), (7, 9, False)]


@pytest.mark.parametrize(
    ("words", "recovered_s", "expected"),
    [
        (("training",), None, [("detect", 1.0)]),
        (("training",), 0.25, [("detect", 0.25), ("running", 0.75)]),  # a slow rank: steps go on
        (("training", "startup", "training"), 2.5, [("detect", 1.0), ("startup", 1.0), ("recompute", 0.5), ("running", 0.5)]),
        (("training", "startup", "training"), 0.5, [("detect", 0.5), ("running", 0.5), ("startup", 1.0), ("recompute", 1.0)]),
    ],
)  # fmt: skip
def test_training_is_told_by_what_was_lost_and_regained(
    words: tuple[str, ...], recovered_s: float | None, expected: list[tuple[str, float]]
) -> None:
    recovered_ns = None if recovered_s is None else round(recovered_s * S)
    assert phases_of(outage(*words), recovered_ns, node_taken=False) == expected


def progress(phase: str, *workers: Worker, furthest: int = 0, last_step_s: float = 0) -> LiveProgress:
    known = dict(enumerate(workers))
    complete = min((worker.last_step for worker in workers), default=0)
    steps = complete, max(furthest, complete)
    return LiveProgress(known, len(workers), *steps, last_step_ns=round(last_step_s * S), phase=phase)


def worker(last_step: int, restored: int | None, since_s: float = 0) -> Worker:
    return Worker("node0", 1, 7, round(since_s * S), last_step, restored)


def test_a_state_that_every_rank_has_back_is_restored() -> None:
    assert newest_word(progress("restore", worker(40, 40), worker(40, 40))) == "restored"
    assert newest_word(progress("restore", worker(40, 40), worker(0, None))) == "restore"
    assert newest_word(progress("restore", worker(55, 40), worker(55, 40))) == "restore", "it goes back once more"


@pytest.mark.parametrize(
    ("phase", "last_step", "since_s", "standing", "expected"),
    [
        ("training", 90, 1, False, "running"),
        ("training", 40, 1, False, "recompute"),
        ("training", 90, 1, True, "standing_still"),
        ("rendezvous", 90, 1, False, "restarting"),
        ("rendezvous", 0, 6, False, "rendezvous"),
        ("exiting", 90, 1, False, "teardown"),
        ("starting", 0, 1, False, "startup"),
        ("validate", 90, 1, False, "validate"),
    ],
)
def test_the_phase_that_everybody_sees(
    phase: str, last_step: int, since_s: float, standing: bool, expected: str
) -> None:
    known = progress(phase, worker(last_step, None, since_s), furthest=90, last_step_s=5)
    assert phase_now(known, standing) == expected


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_page_tells_of_an_outage_what_the_report_tells(seed: int) -> None:
    """A log that is heard as it came, beside the same log judged. Its pace is no other after the restart."""
    job = Job(nodes=2, steps=120, every=20)
    history, usual = simulate(job, [Outage(70, "rank")], seed), fault_free_of(job)
    logs, progress, course = history.logs(), LiveProgress(), Course()
    heard = [(line["mono_ns"], lines[0], line) for lines in (logs.harness, *logs.trainers()) for line in lines[1:]]
    struck_ns, recovered_ns, furthest = 0, None, 0
    for at_ns, header, line in sorted(heard, key=lambda each: each[0]):
        if line["event"] == "fault.injected":
            struck_ns, furthest = at_ns, progress.furthest_step
        progress.absorb(header, line, at_ns)
        if struck_ns and recovered_ns is None and progress.complete_step > furthest:
            recovered_ns = at_ns
        course.note_outage(progress, bool(struck_ns) and recovered_ns is None, at_ns)
        course.note(progress, 10, at_ns)
    times, steps = np.array(course.done).T
    assert np.diff(steps).min() >= 0 and (np.diff(steps) * job.step_ms * 1e6 < 2 * np.diff(times) + 1e8).all()
    told_s = sum(took_s for phase, took_s in phases_of(course.outage, recovered_ns, False) if phase != "running")
    scores = verdict(history, fault_free=usual).scores
    assert told_s == pytest.approx(scores["recovery_time"]["seconds"], rel=0.05)


def test_when_the_job_is_over_its_ledger_is_counted_to_its_end(tmp_path: pathlib.Path) -> None:
    books, amounts = Books(), {"wasted_all": 7.0, "wasted_faults": 5.0, "dollars": None, "cpu_s": 0.1}
    with books.kept(tmp_path, lambda *_: {"allocated": 9.0, **amounts}):
        assert books.newest is None, "the first count is not due yet"
    assert books.newest == Booked(9.0, 7.0, 5.0) and books.asked_ns
    late = threading.Event()
    other = Books()
    with other.kept(tmp_path, lambda *_: {"allocated": 1.0, **amounts} if late.wait() else None):
        other.close(Booked(3.0, 2.0, 1.0))
        late.set()
    assert other.newest == Booked(3.0, 2.0, 1.0), "what the report says is the last word"
