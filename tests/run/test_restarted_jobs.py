"""The second restart after real jobs: trainers that recover once, and save something else than their state."""

import functools
import os
import pathlib
import shutil
import textwrap
import types
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
import small_jobs

from harness.backends.local.backend import BACKEND
from harness.evidence import logs
from harness.judge.score import Scorecard, judge
from harness.judge.verdict import Verdict
from harness.log import files
from harness.plan.run_plan import Plan
from harness.run import job, second_restart, undo
from harness.run.indexes import Indexes
from harness.run.job import execute
from harness.run.second_restart import NothingToShow, last_two, set_back
from harness.trainers.checkpoints.contract import list_checkpoints
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder
from harness.trainers.contract import Checkpoint

pytestmark = pytest.mark.usefixtures("plain")
TRAINER = textwrap.dedent("""
    import json, os, pathlib, random, signal, struct, subprocess, sys, time
    from harness.node.emitter import Emitter
    folder = pathlib.Path(sys.argv[1]) / "checkpoints"
    bug = next(path.read_text() for path in (each / "bug" for each in folder.parents) if path.exists())
    if "WORKER" not in os.environ:  # the launcher: starts the worker again when it was killed
        again = 0
        while (code := subprocess.call([sys.executable, *sys.argv], env=os.environ | {"WORKER": str(again)})) < 0:
            again += 1
        sys.exit(code)
    emit = Emitter.open("trainer", rank=0, local_rank=0, world_size=1)
    emit("started")
    emit("rendezvous", world_size=1)
    folder.mkdir(exist_ok=True)
    saved = sorted(folder.glob("step-*.safetensors"))
    weight, speed, place, step, restarts = 4.0, 0.0, 0, 0, 0
    if saved:
        data = saved[-1].read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        told = json.loads(data[8 : 8 + length])["__metadata__"]
        weight, speed = struct.unpack("<dd", data[8 + length :])
        place, step, restarts = int(told["place"]), int(saved[-1].stem[5:]), int(told["restarts"]) + 1
    if bug == "fails the second time" and restarts == 2:
        raise ValueError("restarted too often")
    if bug == "starts anew the second time" and restarts == 2:
        weight, speed, place, step = 4.0, 0.0, 0, 0
    if bug == "loses its place the second time" and restarts == 2:
        place = 0
    emit("restored", step=step, source="scratch" if not step else str(saved[-1]), fallback=[])
    snapshot = weight, speed
    for step in range(step + 1, 61):
        begin = time.monotonic_ns()
        time.sleep(0.004)
        place += 4
        loss = weight * weight + 0.01 * (place % 7)
        if bug == "never the same":
            loss += random.random() * 1e-9
        speed = 0.9 * speed + 2 * weight
        weight -= 0.01 * speed
        emit("step", step=step, begin_ns=begin, loss=loss, first=place - 4, count=4)
        if step % 10 == 0:
            held = weight, speed
            if restarts and bug == "saves a stale state":
                held = snapshot
            if restarts and bug == "saves an empty optimizer":
                held = weight, 0.0
            header = {"__metadata__": {"place": str(place), "restarts": str(restarts)}}
            header |= {"weight": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}
            header |= {"speed": {"dtype": "F64", "shape": [1], "data_offsets": [8, 16]}}
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            path = folder / f"step-{step:03d}.safetensors"
            emit("checkpoint.started", step=step, kind="periodic")
            path.with_suffix(".tmp").write_bytes(struct.pack("<Q", len(text)) + text + struct.pack("<dd", *held))
            path.with_suffix(".tmp").rename(path)
            emit("checkpoint.committed", step=step, kind="periodic", path=str(path), bytes=1, duration_ns=1)
    for name in ("best.json", f"log-{os.getpid()}.txt") if not (restarts and bug == "exports nothing") else ():
        (folder / name).write_text(str(weight))
    emit("exiting", code=0, reason="completed", step=60)
""")


def plan_of(folder: pathlib.Path, bug: str) -> Plan:
    """A job whose only worker is killed at step 25. Its command is the same whatever its bug is."""
    trainer = folder.parent / "restarted_trainer.py"
    trainer.write_text(TRAINER)
    (folder / "bug").write_text(bug)
    kill = small_jobs.fault("f", "rank_kill", {"step": 25})
    mode = "envelope" if bug == "never the same" else "exact"
    expect: dict[str, Any] = {"loss_continuity": {"mode": mode}, "files_beside_saves": {}}
    expect["pace"] = "off"  # so short a job tells the host's pace, and not its own
    return small_jobs.job("second", ["{python}", "-S", str(trainer), "{run_dir}"], kill, steps=60, expect=expect)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], pathlib.Path]:
    """The folder of a fault-free run and its repeat: without a restart no bug but this one shows."""

    @functools.cache
    def ran(random: bool) -> pathlib.Path:
        folder = tmp_path_factory.mktemp("alone")
        plan = plan_of(folder, "never the same" if random else "none")
        for number in range(2):
            again = plan.without_faults(f"{plan.run_id}-{number}")
            assert execute(again, folder / f"alone{number}", BACKEND).outcome == "completed"
        return folder

    return lambda bug: ran(bug == "never the same")


def judged(folder: pathlib.Path, bug: str, alone: Callable[[str], pathlib.Path]) -> Scorecard:
    """Beside its fault-free run and a repeat of that."""
    plan = plan_of(folder, bug)
    assert execute(plan, folder / "run", BACKEND).outcome == "completed"
    for number, name in enumerate(("fault-free", "calibration-1")):
        files.attach(alone(bug) / f"alone{number}" / "events", folder / "run" / name / "events")
    return judge(logs.load_evidence(folder / "run"), plan.run_id)


@pytest.mark.slow
@pytest.mark.healthy
@pytest.mark.parametrize("bug", ["none", "never the same"])
def test_a_healthy_job_does_the_same_after_a_second_restart(
    tmp_path: pathlib.Path, bug: str, alone: Callable[[str], pathlib.Path]
) -> None:
    card = judged(tmp_path, bug, alone)
    assert card.verdict is Verdict.PASS, card.reasons
    found = card.scores["second_restart"]
    assert (found["outcome"], found["step"], found["steps"]) == ("done", 50, 10), (found, card.not_judged)
    assert "second restart" not in card.not_judged and "did 10 steps once more" in card.reasons[0]
    left = sorted(path.name for path in (tmp_path / "run" / "second-restart").iterdir() if path.is_dir())
    assert left == ["answers", "events", "holds", "logs"]  # the copy of the checkpoints is gone
    assert (tmp_path / "run" / "checkpoints" / "step-060.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "reason"),
    [
        ("saves a stale state", "at step 51 its loss is"),
        ("saves an empty optimizer", "at step 52 its loss is"),
        (
            "fails the second time",
            "from the save of step 50 failed: the command on node0 ended with 1: ValueError: rest",
        ),
        ("starts anew the second time", "it started from scratch, though the save of step 50 was there"),
        ("loses its place the second time", "at step 51 the position of the samples of rank 0 differs"),
    ],
)
def test_what_shows_only_at_the_second_restart_fails(
    tmp_path: pathlib.Path, bug: str, reason: str, alone: Callable[[str], pathlib.Path]
) -> None:
    card = judged(tmp_path, bug, alone)
    told = small_jobs.told(tmp_path / "run", "second_restart.finished")
    assert card.verdict is Verdict.FAIL, (card.reasons, told, card.not_judged)
    assert any(reason in text for text in card.reasons), card.reasons
    assert all(text.startswith(("second restart", "the restore drill", "last_checkpoint")) for text in card.reasons), (
        card.reasons
    )


@pytest.mark.slow
def test_what_only_the_fault_free_run_wrote_beside_its_saves_is_named_from_the_logs_alone(
    tmp_path: pathlib.Path, alone: Callable[[str], pathlib.Path]
) -> None:
    card = judged(tmp_path, "exports nothing", alone)
    assert card.verdict is Verdict.FAIL
    assert card.scores["files_beside_saves"]["names"][0] == "checkpoints/best.json", card.scores
    (reason,) = card.reasons
    assert reason.startswith("files_beside_saves.max_missing: checkpoints/best.json, checkpoints/log-"), reason
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert judge(logs.load_evidence(tmp_path / "run"), card.run_id).reasons == card.reasons


@pytest.mark.slow
def test_one_that_is_killed_leaves_no_copy_behind(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_restart, "set_back", lambda *_: os._exit(9))
    monkeypatch.setattr(job, "start_reverter", lambda _: None)  # it is killed, too
    child = os.fork()
    if child == 0:
        try:
            execute(plan_of(tmp_path, "none"), tmp_path / "run", BACKEND)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    saved = "checkpoints/step-060.safetensors"
    assert (tmp_path / "run" / "second-restart" / saved).exists()
    assert undo.heal(tmp_path) == (["run"], [])
    assert not (tmp_path / "run" / "second-restart" / "checkpoints").exists() and (tmp_path / "run" / saved).exists()


def make_saves(folder: pathlib.Path, *steps: int) -> Checkpoint:
    """Folders of DeepSpeed's kind of names, with a file of one tensor in each."""
    text = b'{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    for step in steps:
        place = folder / "checkpoints" / f"global_step{step}"
        place.mkdir(parents=True)
        (place / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"\1")
    return Checkpoint(layout="safetensors")


@pytest.mark.parametrize("pointer", ["latest", "link", "latest_checkpointed_iteration.txt"])
def test_the_newest_save_is_removed_and_its_pointer_set_back(tmp_path: pathlib.Path, pointer: str) -> None:
    """A file as DeepSpeed has it, a link, and the tracker of Megatron."""
    root, layout = tmp_path / "checkpoints", "megatron" if "iteration" in pointer else "safetensors"
    if layout == "megatron":
        for step in (20, 30):
            place = root / f"iter_{step:07d}" / "mp_rank_00"
            place.mkdir(parents=True)
            with zipfile.ZipFile(place / "model_optim_rng.pt", "w") as archive:
                archive.writestr("archive/version", "3")
        (root / pointer).write_text("30")
    else:
        make_saves(tmp_path, 20, 30)
        (root / pointer).symlink_to("global_step30") if pointer == "link" else (root / pointer).write_text(
            "global_step30\n"
        )
    set_back(tmp_path, Checkpoint(layout=layout))
    left = list_checkpoints(CheckpointFolder.look(tmp_path, "checkpoints"), layout).finished
    assert [each.step for each in left] == [20]
    said = str((root / pointer).readlink()) if pointer == "link" else (root / pointer).read_text().strip()
    assert said == ("20" if layout == "megatron" else "global_step20")


def seen(folder: pathlib.Path, *saves: tuple[int, str]) -> Indexes:
    """Saves each step, writes the list of saves after it, and lets the harness look while that is going on."""
    indexes, listed = Indexes(), folder / "checkpoints" / "index.json"

    def look() -> None:
        place = CheckpointFolder.look(folder, "checkpoints")
        indexes.note(place, list_checkpoints(place, "safetensors"))

    for step, text in saves:
        make_saves(folder, step)
        look()
        for part in (text[: len(text) // 2], text) if text else ():
            listed.write_text(part)
            if step < 20:
                look()
            else:  # the saves take so long to be looked at
                indexes.look_again(CheckpointFolder(folder, "checkpoints"))
    look()
    return indexes


def test_a_list_of_saves_is_set_back_to_its_text_before_the_last_one(tmp_path: pathlib.Path) -> None:
    lists = ['["global_step10"]', '["global_step10", "global_step20"]', '["global_step20", "global_step30"]']
    indexes = seen(tmp_path, *zip((10, 20, 30), lists, strict=True))
    set_back(tmp_path, Checkpoint(layout="safetensors"), indexes)
    assert (tmp_path / "checkpoints" / "index.json").read_text() == lists[1]


@pytest.mark.parametrize(
    ("second", "why"),
    [("", r"index\.json names global_step30"), ('["global_step10", "global_step20"]', "named global_step10 before")],
    ids=["not seen", "a save that is gone"],
)
def test_a_list_that_cannot_be_set_back_shows_nothing(tmp_path: pathlib.Path, second: str, why: str) -> None:
    last = '["global_step20", "global_step30"]'
    indexes = seen(tmp_path, (10, '["global_step10"]'), (20, second), (30, last))
    shutil.rmtree(tmp_path / "checkpoints" / "global_step10")
    with pytest.raises(NothingToShow, match=why):
        set_back(tmp_path, Checkpoint(layout="safetensors"), indexes)


def test_fewer_than_two_saves_or_one_before_the_recovery_show_nothing(tmp_path: pathlib.Path) -> None:
    for steps, why in ((), "no save is left"), ((30,), "only one save is left"):
        make_saves(tmp_path, *steps)
        with pytest.raises(NothingToShow, match=why):
            last_two(list_checkpoints(CheckpointFolder.look(tmp_path, "checkpoints"), "safetensors"))
    workers = {0: types.SimpleNamespace(restored_step=20)}
    again: Any = types.SimpleNamespace(progress=types.SimpleNamespace(workers=workers, furthest_step=30))
    with pytest.raises(NothingToShow, match="only 10 steps and 1 save after the recovery"):
        second_restart._check_recovered(again, 30, 20)
    second_restart._check_recovered(again, 40, 30)


@pytest.mark.parametrize(("ranks", "nodes"), [(4, None), (2, 1), (3, None), (0, None)])
def test_it_has_as_many_nodes_as_the_job_had_in_the_end(ranks: int, nodes: int | None, tmp_path: pathlib.Path) -> None:
    plan = plan_of(tmp_path, "none")
    workload = plan.workload.model_copy(update={"nodes": 2, "min_nodes": 1, "max_nodes": 2, "ranks_per_node": 2})
    again: Any = types.SimpleNamespace(
        plan=plan.model_copy(update={"workload": workload}), progress=types.SimpleNamespace(world_size=ranks)
    )
    assert second_restart._nodes(again) == nodes
