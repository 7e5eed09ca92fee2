"""How a restore from a crash state is classified, and the verdict on all of them. No job is started."""

import json
import pathlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from small_jobs import job

from harness.evidence.restarts import Losses, Restart
from harness.explore import explore_report, recorded_job
from harness.explore.answers import Answer, Came, End, Usual, answer
from harness.explore.exploration import Exploration, Profile, Tried, states_of
from harness.explore.operations import Kind, Operation
from harness.explore.recorded_job import Recorded, Save
from harness.judge.verdict import Verdict
from harness.run.job import Outcome
from harness.run.stop import StopRequest

RUN: Losses = {(rank, step): 1.0 * step for rank in (0, 1) for step in range(1, 40)}
USUAL = Usual(RUN, {10: {}, 20: {}})


def losses(step: int, factor: float = 1.0) -> Losses:
    return {(0, step + 1): factor * (step + 1), (1, step + 1): factor * (step + 1)}


@pytest.mark.parametrize(
    ("found", "ended", "came"),
    [
        (Restart(20, False, losses(20)), "", Came.RESUMED),
        (Restart(30, False, losses(30)), "", Came.RESUMED),  # a save that was not finished yet
        (Restart(20, False, losses(20)), "it failed later", Came.UNKNOWN),
        (Restart(20, True, losses(20)), "", Came.RESUMED),  # it said that it passed over a torn later one
        (Restart(10, True, losses(10), passed_over=[{"step": 20}]), "", Came.FELL_BACK),
        (Restart(10, True, losses(10), passed_over=[{"step": 30}]), "", Came.LOST),  # no word of the save that is due
        (Restart(10, True, losses(10), passed_over=[{}]), "", Came.LOST),
        (Restart(0, True, losses(0), passed_over=[{"step": 20}]), "", Came.LOST),  # with a word, and yet all is gone
        (Restart(10, False, losses(10)), "", Came.LOST),
        (Restart(0, False, losses(0)), "", Came.LOST),
        (Restart(0, False, losses(0, 2.0)), "", Came.LOST),  # two runs from scratch may differ
        (Restart(0, False), "", Came.LOST),
        (Restart(10, False, losses(10), tells=False), "", Came.UNKNOWN),
        (Restart(20, False, losses(20, 1.01)), "", Came.SILENT),
        (Restart(20, True, losses(20, 1.01)), "", Came.SILENT),
        (Restart(20, False, losses(20, float("nan"))), "", Came.SILENT),
        (Restart(30, False, losses(30, 1.01)), "", Came.UNKNOWN),  # no healthy restart from there
        (Restart(20, False), "", Came.UNKNOWN),
        (Restart(20, False), "rank 1 ended with 1", Came.CRASHED),
        (Restart(None, False), "rank 1 ended with 1", Came.CRASHED),
        (Restart(None, False, failed_workers=True), "", Came.CRASHED),
        (Restart(None, False), "", Came.STALLED),
        (Restart(None, False, losses(10)), "", Came.UNKNOWN),  # its ranks told different steps
    ],
)
def test_a_restore_is_classified(found: Restart, ended: str, came: Came) -> None:
    assert answer(found, End(ended), 20, USUAL).came is came


@pytest.mark.parametrize(
    ("source", "came"),
    [
        ("saves/step-20", Came.FELL_BACK),
        ("saves/step-20/rank1.pt", Came.FELL_BACK),
        ("saves/.tmp-30", Came.LOST),
        ("saves/step-2", Came.LOST),
    ],
)
def test_a_fallback_counts_only_if_it_names_the_save_that_is_due(source: str, came: Came) -> None:
    usual = Usual(RUN, {10: {}, 20: {}}, {20: ["saves/step-20"]})
    found = Restart(10, True, losses(10), passed_over=[{"step": None, "source": source}])
    assert answer(found, End(), 20, usual).came is came


@pytest.mark.parametrize(
    ("found", "end", "came"),
    [
        (Restart(20, False, losses(20)), End(followed=True), Came.RESUMED),
        (Restart(20, False, losses(20)), End("mkdir: File exists", followed=True), Came.CRASHED),
        (Restart(20, False, losses(20)), End(followed=True, late=True), Came.STALLED),
        (Restart(10, False, losses(10)), End(followed=True, late=True), Came.LOST),
    ],
)
def test_a_restore_counts_once_the_next_save_is_finished(found: Restart, end: End, came: Came) -> None:
    assert answer(found, end, 20, USUAL).came is came


def test_a_job_that_does_not_repeat_itself_may_differ_as_much_as_its_healthy_restarts_do() -> None:
    usual = Usual(RUN, {20: losses(20, 1.001)})
    assert answer(Restart(20, False, losses(20, 1.005)), End(), 20, usual).came is Came.RESUMED
    assert answer(Restart(20, False, losses(20, 1.05)), End(), 20, usual).came is Came.SILENT


NAN: Losses = dict.fromkeys(RUN, float("nan"))
SAME: Losses = dict.fromkeys(RUN, 1.0)


@pytest.mark.parametrize(
    ("usual", "found"),
    [
        (Usual(NAN, {20: NAN}), NAN),  # no loss was told
        (Usual(SAME, {20: SAME}), SAME),
        (Usual(RUN, {20: losses(20, 1.2)}), losses(20, 1.2)),  # an undamaged save does not bring the run's losses back
        (Usual(RUN, {20: losses(20, float("nan"))}), losses(20)),
    ],
    ids=["untold", "constant", "not restored", "not finite"],
)
def test_losses_that_cannot_tell_right_from_wrong_show_nothing(usual: Usual, found: Losses) -> None:
    assert answer(Restart(20, False, found), End(), 20, usual).came is Came.UNKNOWN
    assert answer(Restart(10, False, {}), End(), 20, usual).came is Came.LOST, "the step alone shows it"


def saved() -> Recorded:
    """Two saves: each is a new file that is renamed over the old one, without a flush."""
    operations = list[Operation]()
    for number, step in enumerate((1, 2), 1):
        operations += [
            Operation(Kind.CREATE, "new", number),
            Operation(Kind.WRITE, "new", number, size=4, data=4 * (step - 1)),
            Operation(Kind.CLOSE, "new", number),
            Operation(Kind.RENAME, "new", number, other="model"),
        ]
    return Recorded(operations, pathlib.Path("none"), [Save(1, 4), Save(2, 8)], {}, 1)


def explored(came: list[Came], left: int = 0, **more: Any) -> Exploration:
    recorded = saved()
    profile = states_of(recorded, "posix")
    states = profile.states[: len(came) + left]
    told = [Tried(state, Answer(each, 2, "why"), 0.1) for state, each in zip(states, came, strict=False)]
    counted = Profile("posix", profile.changes, profile.open_changes, profile.moments, states, len(states), 0)
    return Exploration("explore-x", "a trainer", "forked", recorded, [counted], told, **more)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (explored([Came.RESUMED, Came.FELL_BACK]), Verdict.PASS),
        (explored([Came.RESUMED], left=1), Verdict.INCONCLUSIVE),
        (explored([]), Verdict.INCONCLUSIVE),
        (explored([Came.RESUMED], why="the undamaged save was not restored"), Verdict.INCONCLUSIVE),
        (explored([Came.RESUMED], interrupted=True), Verdict.INCONCLUSIVE),
        (explored([Came.RESUMED, Came.STALLED]), Verdict.INCONCLUSIVE),
        (explored([Came.RESUMED, Came.UNKNOWN]), Verdict.INCONCLUSIVE),
        (explored([Came.RESUMED, Came.CRASHED]), Verdict.FAIL),
        (explored([Came.LOST], left=1), Verdict.FAIL),
        (explored([Came.SILENT, Came.UNKNOWN]), Verdict.FAIL),
    ],
)
def test_the_verdict_is_never_pass_for_want_of_evidence(found: Exploration, verdict: Verdict) -> None:
    assert found.verdict is verdict
    assert f"Verdict: **{verdict.value}**" in explore_report.page(found)
    assert json.loads(json.dumps(explore_report.plain(found)))["verdict"] == verdict.value


def test_saves_that_are_told_together_are_no_pass() -> None:
    told_late = replace(saved(), saves=[Save(1, 8), Save(2, 8)])
    profile = states_of(told_late, "posix")
    tried = [Tried(state, Answer(Came.RESUMED, 2), 0.1) for state in profile.states]
    found = Exploration("explore-x", "a trainer", "forked", told_late, [profile], tried)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "saves of steps 1 and 2 finished with no change between" in explore_report.reason(found)
    assert not states_of(saved(), "posix").together


def test_a_save_is_finished_when_the_last_rank_told_it_first() -> None:
    def writer(rank: int, *told: tuple[int, int]) -> Any:
        events = [{"event": "checkpoint.committed", "step": step, "wall_ns": at} for step, at in told]
        return SimpleNamespace(header={"rank": rank}, events=events)

    log: Any = SimpleNamespace(writers=[writer(0, (5, 10), (5, 90)), writer(1, (5, 20)), writer(0, (5, 80), (10, 99))])
    assert recorded_job._finished(log) == {5: 20, 10: 99}


@pytest.mark.parametrize(("removal", "explored"), [(11, [5, 10, 15]), (25, [10, 15, 20]), (33, [15, 20, 25])])
def test_the_saves_around_a_removal_are_explored(removal: int, explored: list[int]) -> None:
    saves = [Save(step, 2 * step) for step in (5, 10, 15, 20, 25)]
    assert [save.step for save in recorded_job._around(saves, removal)] == explored


def test_a_stop_while_the_job_is_recorded_says_so(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = StopRequest()
    monkeypatch.setattr(recorded_job, "Recording", lambda folder: None)
    monkeypatch.setattr(recorded_job, "execute", lambda *_: stop.ask() or Outcome("interrupted", "stopped"))
    with pytest.raises(KeyboardInterrupt):
        recorded_job.record(job("stopped", ["true"]), tmp_path, stop)


def test_the_smallest_bad_state_is_shown_as_a_timeline() -> None:
    found = explored([Came.RESUMED] * 99)
    states = found.profiles[0].states
    smallest = min((state for state in states if state.crash.lost), key=lambda state: len(state.crash.lost))
    found.tried = [Tried(state, Answer(Came.SILENT, 2, "why ```"), 0.1) for state in states if state.crash.lost]
    (worst,) = found.worst()
    assert len(worst.state.crash.lost) == len(smallest.crash.lost) == 1
    ((words, lines),) = explore_report.bad_states(found)
    assert f"{worst.state.id} is the smallest" in words and lines[-1].endswith(
        f"--state explore-x/{worst.state.id} --into FOLDER"
    )
    assert explore_report.page(found).count("```") == 2, "what a trainer says does not end the block"
    fates = {line.split()[1] for line in lines if line.strip()[:1].isdigit() and "operations" not in line}
    assert fates & {"lost", "in"} and "kept" in " ".join(lines)


def test_a_save_counts_as_due_only_after_the_job_called_it_finished() -> None:
    recorded = saved()
    assert [recorded.due(during) for during in (4, 7, 8)] == [1, 1, 2]
    due = {state.crash.during: state.due for state in states_of(recorded, "ext4").states}
    assert due == {during: recorded.due(during) for during in due} and 8 in due


def test_states_with_the_same_files_are_tried_once() -> None:
    profile = states_of(saved(), "posix")
    assert profile.chosen == len(profile.states) + profile.equal
    assert len({state.id for state in profile.states}) == len(profile.states)
    assert not any(state.crash.during < 4 for state in profile.states)
