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
    return directing(tmp_path, f"{KILL}, {{rest: 1s}}, {HANG}")


def directing(tmp_path: pathlib.Path, entries: str) -> Director:
    path = light_day.write(tmp_path, f"  [{entries}]", 300)
    return Director(plan_day(path, 1, "local", "light-1", ROOT / "scenarios"))


def job_of(progress: LiveProgress, firings: dict[str, Firing] | None = None) -> LiveJob:
    job = SimpleNamespace(progress=progress, cluster=SimpleNamespace(nodes=[]), firings=firings or {})
    return cast(LiveJob, job)


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
    return view_of(director, job_of(progress, firings), 0, NOW)


def test_a_rank_has_a_pace_while_it_goes_and_none_after_a_restart(director: Director) -> None:
    view = seen(director, going())
    assert view.ranks.listed[1] == RankView(1, "node0", 90, 65.0, 0.1, False)
    assert view.steps_go and view.phase == "running" and not view.fault_free, "light days do without"
    view = seen(director, going(idle_s=23))
    assert view.ranks.listed[0] == RankView(0, "node0", 90, None, 23.0, True)
    assert (view.ranks.step_ms, view.standing, view.steps_go, view.phase) == ([], True, False, "standing_still")
    assert not seen(director, going(idle_s=23, step_s=10)).standing
    fresh = {rank: Worker("node0", 1, 8, NOW - S // 2) for rank in range(2)}
    view = seen(director, going(idle_s=1, workers=fresh, complete_step=0, phase="rendezvous"))
    assert (view.steps_go, view.standing, view.phase) == (False, False, "rendezvous")
    assert (view.step, view.furthest_step, view.ranks.listed[0]) == (0, 90, RankView(0, "node0", 0, None))


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


@pytest.mark.parametrize(
    ("outcome", "state", "shown"),
    [
        ("settled", "acting", ["over", "now", "next"]),
        ("stopped", "acting", ["stopped", "now", "next"]),
        ("skipped", "acting", ["skipped", "now", "next"]),
        ("settled", "over", ["over", "stopped", "skipped"]),  # the schedule ended early
    ],
)
def test_an_entry_says_how_it_ended(director: Director, outcome: str, state: str, shown: list[str]) -> None:
    director.scene, director.state, director.blocked = 1, state, state == "over"
    director.cues[0].rehearsal.outcome = outcome
    view = seen(director, going())
    assert [scene.state for scene in view.scenes] == shown
    told = [scene.state for scene in for_role(view, "participant", []).scenes]
    assert state == "over" or told == shown[:1], "what is over is told"
    for role in ("master", "participant"):
        assert state != "over" or for_role(view, role, []).saying.startswith("The schedule is over"), "nothing to lift"


def test_a_fault_that_is_due_and_held_back_says_why(director: Director) -> None:
    firing = next(iter(director.cues[0].rehearsal.firings.values()))
    assert seen(director, going()).scenes[0].acts[0].faults[0].moment == "waiting"
    firing.held_back = "the pause of 9 s after a recovery is not over"
    assert seen(director, going()).scenes[0].acts[0].faults[0].moment == f"waiting: {firing.held_back}"
    firing.fired = True
    assert seen(director, going()).scenes[0].acts[0].faults[0].moment == "acting"


@pytest.mark.parametrize("role", ["master", "participant", "observer"])
def test_after_the_job_the_verdict_is_told(director: Director, role: str) -> None:
    view = seen(director, going())
    over = for_role(ended(view), role, [])
    assert over.job_over and over.state == "over" and over.saying == "The job is over. The day is being judged."
    judged = for_role(ended(view, "fail", "silent-hang: too slow", "/r/report.html"), role, [])
    assert judged.saying == "The day is over: fail. silent-hang: too slow"
    assert (judged.verdict, judged.report, over.title) == ("fail", "/r/report.html", "A light day")
    assert for_role(view, "participant", []).title == "Game day", "a title may tell what comes"


def test_the_page_shows_the_plan_the_run_without_a_fault_the_day_and_its_verdict(tmp_path: pathlib.Path) -> None:
    director, views = directing(tmp_path, KILL), list[DayView]()
    shown = Shown(lambda view, feed: views.append(view), "", director)
    shown.status(Status("free-1", 2.0, "training", 40, 300, 1.5, (), ()))
    assert views[0].saying == "First the same job runs without a fault: step 40 of 300. The day begins after it."
    assert (views[0].state, views[0].step, [scene.state for scene in views[0].scenes]) == ("preparing", 40, ["next"])
    hidden = for_role(views[0], "participant", [])
    assert hidden.state == "preparing" and not hidden.scenes and hidden.title == "Game day"
    shown.stage_ended(Stage("fault-free run", 1), "cached")
    shown.watch(director, job_of(LiveProgress()), 0)
    shown.status(Status("day-1", 3.0, "training", 1, 300, 1.5, (), ()))
    shown.stage_ended(Stage("run with faults", 1), "completed")
    booked = {"allocated": 344.0, "wasted_all": 86.0, "wasted_faults": 21.3, "dollars": None}
    result = SimpleNamespace(verdict=SimpleNamespace(value="fail"), reasons=["rank-kill: too slow"], booked=booked)
    shown.day_judged(Ended(tmp_path, cast(Any, result)))
    assert [view.state for view in views] == ["preparing", "steadying", "over", "over"], "the day shows itself"
    assert [(view.job_over, view.verdict) for view in views[1:]] == [(False, ""), (True, ""), (True, "fail")]
    assert views[-1].report == str(tmp_path / "report.html")
    assert views[-1].saying == "The day is over: fail. rank-kill: too slow"
    words = "by faults; in all 86.0 GPU-s of 344.0 GPU-s (25.0 %)"
    assert (views[-1].wasted, views[-1].wasted_words) == ("21.3 GPU-s", words)


def test_the_terminal_tells_once_that_a_pause_waits_for_a_press(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    director = directing(tmp_path, f"{{pause: Is everybody there?}}, {{pause: Still there?}}, {KILL}")
    shown = Shown(lambda view, feed: None, "http://127.0.0.1:1/?token=t")
    for director.state, director.scene in (("steadying", 0), ("paused", 0), ("paused", 0), ("paused", 1)):
        shown.watch(director, job_of(LiveProgress()), 0)
    for _ in range(2):
        director.feed.append(News(len(director.feed) + 1, "person", "ada: stop", "participant"))
        shown.watch(director, job_of(LiveProgress()), 0)
    waits = "  waiting for a person to press Continue: http://127.0.0.1:1/?token=t"
    told = ["  pause: Is everybody there?", waits, "  pause: Still there?", waits, *["  ada: stop"] * 2]
    assert capsys.readouterr().out.splitlines() == told


def test_a_node_that_comes_back_begins_a_new_part_of_the_outage() -> None:
    course, known = Course(), progress("rendezvous", worker(5, None))
    for second, missing in ((1, True), (2, True), (7, False), (9, False)):
        course.note_outage(known, True, second * S, missing)
    spans = [(span.begin_ns // S, span.end_ns // S, span.missing) for span in course.outage]
    assert spans == [(1, 7, True), (7, 9, False)]


@pytest.mark.parametrize(
    ("words", "recovered_s", "expected"),
    [
        ("training", None, "detect 1.0"),
        ("training", 0.25, "detect 0.25, running 0.75"),  # a slow rank: steps go on
        ("training startup training", 2.5, "detect 1.0, startup 1.0, recompute 0.5, running 0.5"),
        ("training startup training", 0.5, "detect 0.5, running 0.5, startup 1.0, recompute 1.0"),
        (
            "training rendezvous exiting startup rendezvous restore restored training",
            None,
            "detect 1.0, teardown 2.0, startup 1.0, rendezvous 1.0, restore 1.0, first_step 1.0, recompute 1.0",
        ),
        # Nothing is detected after a new process was met: the shortest of its phases may fall between two looks.
        ("training starting training", None, "detect 1.0, startup 1.0, recompute 1.0"),
        ("training restore training", None, "detect 1.0, restore 1.0, recompute 1.0"),
        ("training restored training", None, "detect 1.0, first_step 1.0, recompute 1.0"),
        # Launchers wait for a node that was taken, until its replacement is there, which then has to start.
        (
            "training exiting rendezvous* rendezvous startup rendezvous",
            None,
            "detect 1.0, teardown 1.0, reschedule 1.0, startup 2.0, rendezvous 1.0",
        ),
    ],
)
def test_an_outage_is_told_in_the_reports_words(words: str, recovered_s: float | None, expected: str) -> None:
    """Each span lasts a second; `*`: a node is missing."""
    recovered_ns = None if recovered_s is None else round(recovered_s * S)
    spans = [Span(word.strip("*"), at * S, (at + 1) * S) for at, word in enumerate(words.split())]
    for span, word in zip(spans, words.split(), strict=True):
        span.missing = "*" in word
    told = phases_of(spans, recovered_ns, node_taken="*" in words)
    assert ", ".join(f"{phase} {took_s}" for phase, took_s in told) == expected
    assert {phase for phase, _ in told} <= {*PHASE_MEANING, "running"}


def progress(phase: str, *workers: Worker, furthest: int = 0, last_step_s: float = 0) -> LiveProgress:
    known = dict(enumerate(workers))
    complete = min((worker.last_step for worker in workers), default=0)
    steps = complete, max(furthest, complete)
    return LiveProgress(known, len(workers), *steps, last_step_ns=round(last_step_s * S), phase=phase)


def worker(last_step: int, restored: int | None, since_s: float = 0) -> Worker:
    return Worker("node0", 1, 7, round(since_s * S), last_step, restored)


def test_a_state_that_every_rank_has_back_is_restored() -> None:
    for restored, word in (
        ([(40, 40), (40, 40)], "restored"),
        ([(40, 40), (0, None)], "restore"),
        ([(55, 40), (55, 40)], "restore"),  # it goes back once more
    ):
        assert newest_word(progress("restore", *(worker(*each) for each in restored))) == word


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
