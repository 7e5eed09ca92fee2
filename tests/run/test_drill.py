"""The restore drill after real jobs of a trainer that saves; also where its checkpoints cannot be restored."""

import os
import pathlib
import textwrap
import typing
from typing import Any
from unittest.mock import Mock

import pytest
import small_jobs
from event_files import read_log
from waiting import HANG_S

from harness.backends.local.backend import BACKEND
from harness.errors import FaultError
from harness.log.event_log import Tail
from harness.node.observer import checkpoint_ledger
from harness.plan.run_plan import Plan
from harness.run import drill, job, undo
from harness.run.job import execute
from harness.run.observers import SILENT, Observer, Silent, Status
from harness.run.stop import StopRequest
from harness.timeline import timeline

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain")]  # real jobs
STATUS = Status("x", 0.0, "training", 1, 30, None, [], [])
TRAINER = textwrap.dedent("""
    import json, os, pathlib, sys, time
    from harness.node.emitter import Emitter
    bug, folder = sys.argv[1], pathlib.Path(sys.argv[2]) / "checkpoints"
    emit = Emitter.open("trainer", rank=0, local_rank=0, world_size=1)
    emit("started")
    emit("rendezvous", world_size=1)
    folder.mkdir(exist_ok=True)
    saved = sorted(folder.glob("*.json"))
    in_drill = pathlib.Path(sys.argv[2]).name == "drill"
    if bug == "hangs" and in_drill:
        emit("phase", name="restore", edge="begin")
        time.sleep(1000)
    if bug == "crashes" and in_drill:
        raise ValueError("the checkpoint is damaged")
    step = json.loads(saved[-1].read_text())["step"] if saved and not (bug == "forgets" and in_drill) else 0
    if not bug.startswith("tells no restore"):
        emit("restored", step=step, source="x", fallback=[])
    for step in range(step + 1, 31):
        begin = time.monotonic_ns()
        time.sleep(0.005)
        emit("step", step=step, begin_ns=begin, loss=1.0)
        if step % 10 == 0 and bug != "never saves" and (step < 30 or "at the end" not in bug):
            (folder / f"{step:03d}.json").write_text(json.dumps({"step": step}))
            emit("checkpoint.committed", step=step, kind="periodic", path="", bytes=1, duration_ns=1)
    emit("exiting", code=0, reason="completed", step=30)
""")


def plan_of(folder: pathlib.Path, bug: str = "none", asked: bool | None = True) -> Plan:
    trainer = folder / "trainer.py"
    trainer.write_text(TRAINER)
    command = ["{python}", "-S", str(trainer), bug, "{run_dir}"]
    freeze = small_jobs.fault("f", "hang", {"step": 5}, how="freeze_rank", duration="100ms")
    return small_jobs.job("drill", command, freeze, steps=30, restore_drill=asked)


class Heard(Silent):
    """An observer that remembers what follows on the job."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def starts_again(self, why: str, about_s: float) -> None:
        assert 0 <= about_s < HANG_S
        self.told.append(why)


def drilled(plan: Plan, run_dir: pathlib.Path, observer: Observer = SILENT) -> list[dict[str, Any]]:
    """What the run's own log says of the drill. The run completes whatever the drill says."""
    assert execute(plan, run_dir, BACKEND, observer).outcome == "completed"
    (finished,) = small_jobs.told(run_dir, "run.finished")
    assert timeline.load(run_dir).end == finished["mono_ns"]
    return small_jobs.told(run_dir, "drill.started", "drill.finished")


class Late(Tail):
    """Sees the last checkpoint only when all is over."""

    held: typing.ClassVar[list[Any]] = []

    def poll(self) -> list[Any]:
        found = super().poll()
        late = [each for each in found if each[1]["event"] == "checkpoint.committed" and each[1]["step"] == 30]
        self.held.extend(late)
        return [each for each in found if each not in late]

    def rest(self) -> list[Any]:
        return super().rest() + self.held


def test_the_newest_checkpoint_is_restored_outside_the_scored_log(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its commit is read in the last moment."""
    monkeypatch.setattr(job, "Tail", Late)
    heard = Heard()
    started, finished = drilled(plan_of(tmp_path), tmp_path / "run", heard)
    assert started["step"] == 30 and heard.told[0] == "restore drill: the job must restore its last save"
    assert (finished["outcome"], finished["step"], finished["restored_step"]) == ("restored", 30, 30)
    assert len(read_log(tmp_path / "run" / "events")) == 2  # the harness and one trainer
    roles = sorted(log.header["role"] for log in read_log(tmp_path / "run" / "drill" / "events"))
    assert roles == ["harness", "trainer"]
    left = sorted(path.name for path in (tmp_path / "run" / "drill").iterdir() if path.is_dir())
    assert left == ["answers", "events", "holds", "logs"]  # the copy of the checkpoints is gone
    assert 0 < finished["seconds"] < HANG_S and finished["gpu_seconds"] == finished["seconds"]  # of one GPU


@pytest.mark.parametrize(
    ("bug", "outcome", "restored", "reason"),
    [
        ("crashes", "failed", None, "ValueError: the checkpoint is damaged"),
        ("forgets", "scratch", 0, ""),
        ("hangs", "timeout", None, "nothing was restored within"),
        # The first step tells it:
        ("tells no restore, saves nothing at the end", "restored", 20, ""),
        ("tells no restore", "untold", None, "no multiple of its interval"),
    ],
)
def test_what_a_restore_came_to_is_told(
    tmp_path: pathlib.Path, bug: str, outcome: str, restored: int | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drill, "LIMIT_S", 10.0 if bug == "hangs" else HANG_S)
    _, finished = drilled(plan_of(tmp_path, bug), tmp_path / "run")
    assert (finished["outcome"], finished.get("restored_step")) == (outcome, restored), finished
    assert reason in finished.get("reason", "") and bool(reason) == bool(finished.get("reason")), finished


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("copy_saved", Mock(side_effect=OSError(28, "No space left on device")), "No space left on device"),
        ("FREE_BYTES_MIN", 2**60, "not enough room: a copy of the checkpoints takes"),
    ],
)
def test_trouble_of_the_drill_itself_never_hides_the_result(
    tmp_path: pathlib.Path, name: str, value: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drill, name, value)
    _, finished = drilled(plan_of(tmp_path), tmp_path / "run")
    assert finished["outcome"] == "error" and reason in finished["reason"]
    assert not (tmp_path / "run" / "drill" / "checkpoints").exists()


def test_the_room_of_a_copy_counts_each_file_once_and_holes_not_at_all(tmp_path: pathlib.Path) -> None:
    saved = tmp_path / "checkpoints" / "one"
    saved.mkdir(parents=True)
    (saved / "a").write_bytes(b"x" * 2**20)
    os.link(saved / "a", saved / "b")
    (saved / "link").symlink_to("/")
    with (saved / "hole").open("wb") as hole:
        hole.truncate(2**40)
    assert 2**20 <= drill._blocks(tmp_path, "checkpoints") < 2 * 2**20
    assert drill._blocks(tmp_path, "nothing") == 0
    ledger = pathlib.Path("events", "node0", checkpoint_ledger.NAME)  # of the observer, which is copied, too
    for folder in (tmp_path / ledger.parent, tmp_path / "drill"):
        folder.mkdir(parents=True)
    (tmp_path / ledger).write_text("known")
    drill.copy_ledgers(tmp_path, tmp_path / "drill")
    assert (tmp_path / "drill" / ledger).read_text() == "known"


def test_a_drill_that_is_killed_leaves_no_copy_behind(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tmp_path / "run"
    copy = drill.copy_saved

    def killed(*arguments: Any) -> None:
        copy(*arguments)
        os._exit(9)

    monkeypatch.setattr(drill, "copy_saved", killed)
    monkeypatch.setattr(job, "start_reverter", lambda _: None)  # it is killed, too
    child = os.fork()
    if child == 0:
        execute(plan_of(tmp_path), run_dir, BACKEND)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert (run_dir / "drill" / "checkpoints" / "030.json").exists()
    assert undo.heal(tmp_path) == (["run"], [])
    assert not (run_dir / "drill" / "checkpoints").exists() and (run_dir / "checkpoints" / "030.json").exists()


@pytest.mark.parametrize("name", ["../checkpoints", "/etc", "x/../../checkpoints"])
def test_nothing_but_the_copies_is_removed(tmp_path: pathlib.Path, name: str) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "drill").symlink_to(tmp_path)
    with pytest.raises((FaultError, ValueError)):
        drill._undo(tmp_path, [name])
    with pytest.raises(FaultError, match="not a plain folder"):
        drill._undo(tmp_path, ["checkpoints"])
    assert (tmp_path / "checkpoints").exists()


def test_by_default_where_the_harness_sees_what_was_saved(tmp_path: pathlib.Path) -> None:
    assert drill.is_wanted(plan_of(tmp_path, asked=True), 30)
    assert drill.is_wanted(plan_of(tmp_path, asked=None), 30)
    assert not drill.is_wanted(plan_of(tmp_path, asked=False), 30)
    assert not drill.is_wanted(plan_of(tmp_path, asked=None), 0)
    assert not drill.is_wanted(plan_of(tmp_path).without_faults("x"), 30)
    elsewhere = plan_of(tmp_path).model_copy(update={"backend": "kubernetes"})
    assert not drill.is_wanted(elsewhere, 30)
    assert drilled(plan_of(tmp_path, "never saves"), tmp_path / "never") == []


def test_a_stop_request_ends_the_drill_and_ranks_that_restore_different_steps_have_not_restored() -> None:
    users = StopRequest()
    watch = drill.Watch(users, lambda _: False)
    watch.status(STATUS)
    assert not watch.end.asked
    users.ask()
    watch.status(STATUS)
    assert watch.end.asked and watch.end.reason == "stopped by the user"
    found = drill.DrillOutcome("timeout", 30)
    assert drill._restored(found, [30, 30]).outcome == "restored"
    different = "the ranks restored different steps: [20, 30]"
    assert drill._restored(found, [30, 20]) == drill.DrillOutcome("failed", 30, None, different)


def test_what_was_restored_is_told_or_seen_by_the_first_step() -> None:
    watch = drill.Watch(StopRequest(), lambda _: False)
    header = {"role": "trainer", "node": "node0", "incarnation": 1, "pid": 5, "world_size": 2}
    watch.new_events([(header | {"rank": 0}, {"event": "restored", "step": 80})])
    watch.new_events(
        [(header | {"rank": 1}, {"event": "started"}), (header | {"rank": 1}, {"event": "step", "step": 81})]
    )
    watch.new_events([(header | {"rank": 1}, {"event": "step", "step": 82})])
    assert watch.restored(80) == {0: 80, 1: 80}
    watch.new_events([(header | {"rank": 1, "pid": 6}, {"event": "step", "step": 61})])  # another process
    assert watch.restored(80) == {0: 80, 1: 60}
    watch.new_events([(header | {"rank": 2}, {"event": "step", "step": 1})])
    assert 2 not in watch.restored(80)  # it may count its own steps
