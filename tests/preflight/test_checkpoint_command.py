"""`chaos checkpoint verify` as scripts and people use it: exit codes, JSON, JUnit, a stored run, a job that is running."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is missing: make setup")
import command_line
import judging
import torch
from checkpoint_files import save
from mutants.bent import JOB
from preflight.damages import STEP, WRITERS, flip, tensors, write_all

from harness.preflight import framework, verifier
from harness.preflight.stored_saves import StoredSaves
from harness.preflight.verification import Place, State
from harness.preflight.verifier import Verifier
from harness.run.stop import StopRequest
from harness.trainers.checkpoints.contract import list_checkpoints
from harness.trainers.checkpoints.shared import digests
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder


def chaos(*words: object, code: int) -> str:
    result = command_line.chaos("checkpoint", "verify", *words)
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def test_exit_codes_tell_whole_damaged_and_unknown(tmp_path: pathlib.Path) -> None:
    place = tmp_path / "checkpoints"
    write_all(place, "megatron")
    assert "4 saves: 4 whole" in chaos(place, code=0)
    os.truncate(place / "iter_0000060" / "mp_rank_00" / "model_optim_rng.pt", 500)
    shown = chaos(place, code=1)
    assert "3 whole, 1 damaged" in shown and "mp_rank_00/model_optim_rng.pt: is cut off" in shown
    (tmp_path / "other").mkdir()
    assert chaos(tmp_path / "other", code=3) == ""  # no table of nothing
    save(tmp_path / "older" / "ckpt_5.pt", 1)
    torch.save({"w": torch.ones(4)}, tmp_path / "older" / "ckpt_6.pt", _use_new_zipfile_serialization=False)
    assert "1 whole, 1 unknown" in chaos(tmp_path / "older", code=3)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere"], "not there"),
        (["fifo"], "neither a folder nor a file"),
        ([".", "--layout", "dpc"], "did you mean dcp?"),
        ([".", "--for", "soon"], "soon"),
        ([".", "--for", "5s"], "--for is for --watch"),
        ([".", "--python", "python3"], "--python for --load"),
        ([".", "--load", "--python", "/nowhere/python"], "--python /nowhere/python: no program that can be run"),
        ([".", "--junit", "nowhere/x.xml"], "--junit nowhere/x.xml: nowhere is no folder"),
        ([".", "--against", "none"], "unknown run 'none'"),
    ],
)
def test_mistakes_are_told(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    assert told in command_line.refused("checkpoint", "verify", *words, "--reports", str(tmp_path))


def test_programs_read_json_and_ci_reads_junit(tmp_path: pathlib.Path) -> None:
    place, file = tmp_path / "checkpoints", tmp_path / "junit.xml"
    write_all(place, "hugging_face")
    (place / "checkpoint-60" / "trainer_state.json").unlink()
    told = json.loads(chaos(place, "--json", "--junit", file, code=1))
    assert (told["schema"], told["verdict"], told["notes"]) == (1, "fail", [])
    one, other = told["saves"][0], told["saves"][2]
    assert (one["step"], one["loss"], one["state"], one["verified_by"]) == (20, 2.25, "whole", "structure")
    (finding,) = other["findings"]
    what = "lacks what is written last: trainer_state.json"
    assert finding == {"state": "damaged", "file": "", "tensor": "", "what": what}
    (suite,) = ElementTree.parse(file).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "1", "0")


def stored(place: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> StoredSaves:
    """A run that saw the saves as they are now."""
    seen, published = CheckpointFolder.look(place.parent, place.name), list[dict[str, Any]]()
    for found in list_checkpoints(seen).checkpoints:
        content = digests.content(seen, found.files)
        event = {"path": f"elsewhere/{found.name}", "step": found.step, "tensors": content.of_tensors}
        published.append(event | {"tensor_digests": content.listed})
    run = replace(judging.fault_free_of(JOB), published=published)
    monkeypatch.setattr("harness.timeline.timeline.load", lambda folder: run)
    return StoredSaves(place)


def test_a_stored_run_tells_the_content_of_safetensors_and_the_loss(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "run"
    write_all(place, "safetensors")
    run = stored(place, monkeypatch)
    saves = list(Verifier(Place(place), against=run).all())
    assert {each.verified_by for each in saves} == {"run run"} and saves[0].loss is not None
    flip(place / "step_60" / "model-00001-of-00002.safetensors", tensors(STEP)["a.weight"].numpy().tobytes())
    saves = list(Verifier(Place(place), against=run).all())
    assert [each.state for each in saves] == [State.WHOLE, State.WHOLE, State.DAMAGED, State.WHOLE]
    assert [(each.tensor, each.file) for each in saves[2].findings] == [
        ("a.weight", "step_60/model-00001-of-00002.safetensors")
    ]
    write_all(tmp_path / "other", "dcp")
    saves = list(Verifier(Place(tmp_path / "other"), against=run).all())
    assert {(each.state, each.loss) for each in saves} == {(State.UNKNOWN, None)}
    assert "was not compared" in saves[0].findings[0].what


def test_each_new_save_is_verified_once_it_is_still(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "LOOK_S", 0.01)
    place, stop = tmp_path / "checkpoints", StopRequest()
    WRITERS["dcp"](place, 20)
    new = Verifier(Place(place)).new(stop, float("inf"))
    assert next(new).step == 20
    WRITERS["dcp"](place, 40)
    metadata = (place / "step-40" / ".metadata").read_bytes()
    (place / "step-40" / ".metadata").unlink()  # it is still being written
    WRITERS["dcp"](place, 60)
    assert next(new).step == 60
    (place / "step-40" / ".metadata").write_bytes(metadata)
    found = next(new)
    assert (found.step, found.state) == (40, State.WHOLE)
    shutil.rmtree(place / "step-60")  # another save of this step, as after a rollback
    WRITERS["dcp"](place, 60)
    assert next(new).step == 60
    stop.ask()
    assert list(new) == []


@pytest.mark.parametrize(("age_s", "state"), [(0, State.UNFINISHED), (900, State.DAMAGED)])
def test_a_watch_tells_of_a_save_that_was_cut_off(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, age_s: int, state: State
) -> None:
    """At its end at the latest; at once where it has lain there for long."""
    monkeypatch.setattr(verifier, "LOOK_S", 0.01)
    write_all(tmp_path, "lightning")
    path, stop = tmp_path / "version_0" / "epoch=0-step=100.ckpt", StopRequest()
    os.truncate(path, 500)
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns - age_s * 10**9))
    found = []
    for each in Verifier(Place(tmp_path)).new(stop, float("inf")):
        found.append(each)
        if len(found) == (4 if age_s else 3):
            stop.ask()
    assert [each.state for each in found] == [State.WHOLE] * 3 + [state]
    assert found[-1].step == 100


def test_a_watch_ends_by_itself_or_by_ctrl_c(tmp_path: pathlib.Path) -> None:
    write_all(tmp_path, "lightning")
    command = [sys.executable, "-m", "harness", "checkpoint", "verify", str(tmp_path), "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        told = [json.loads(process.stdout.readline()) for _ in range(4)]
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    assert [each["step"] for each in told] == [20, 40, 60, 100]
    (tmp_path / "empty").mkdir()
    chaos(tmp_path / "empty", "--watch", "--for", "1ms", code=3)


@pytest.mark.slow
def test_its_own_framework_loads_a_save_or_not(tmp_path: pathlib.Path) -> None:
    save(tmp_path / "ckpt_20.pt", {"w": torch.ones(40), "step": 20})
    save(tmp_path / "ckpt_40.pt", {"w": torch.ones(40), "step": 40, "path": tmp_path})  # loading it would run code
    WRITERS["dcp"](tmp_path, 60)
    saves = json.loads(chaos(tmp_path, "--load", "--json", code=0))["saves"]
    told = {each["step"]: each["loaded"].partition(":")[0] for each in saves}
    assert told == {20: "yes", 40: "not tried", 60: "yes"}


def test_what_a_framework_refuses_is_damaged(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    script.write_text(
        '#!/bin/sh\nwhile read -r job; do echo noise; echo "${job%?}, \\"loaded\\": \\"no\\", \\"why\\": \\"odd\\"}"; done\n'
    )
    script.chmod(0o755)
    save(tmp_path / "saves" / "ckpt_20.pt", {"w": torch.ones(40)})
    (found,) = Verifier(Place(tmp_path / "saves"), python=str(script)).all()
    assert (found.state, found.loaded) == (State.DAMAGED, "no")
    assert found.findings[0].words == "ckpt_20.pt: its own framework does not load it: odd"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(framework, "LIMIT_S", 0.1)
    (found,) = Verifier(Place(tmp_path / "saves"), python=str(script)).all()
    assert (found.state, found.loaded) == (State.UNKNOWN, "not tried: not done after 0.1 s")
    assert found.findings[0].words == "its own framework gave no answer: not done after 0.1 s"
