"""The checkpoint matrix on a trainer that trusts its bytes and on one that verifies them, in real restarts."""

import json
import os
import pathlib
import sys
from unittest.mock import Mock

import pytest
from command_line import chaos, ended

from harness.evidence.restarts import Losses, Restart
from harness.matrix.cells import Cell
from harness.matrix.checkpoint_matrix import DamageRow, Matrix, _Matrix
from harness.matrix.restart_log import Answer, Came
from harness.trainers.contract import Checkpoint

TRAINER = pathlib.Path(__file__).with_name("saving_trainer.py")
HEADER = b'{"w": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}'
SAFETENSORS = len(HEADER).to_bytes(8, "little") + HEADER + bytes(8)
SCENARIO = """\
version: 1
name: saves
title: A run that saves
workload:
  trainer:
    command: ["{python}", "-S", "{trainer}", "{{run_dir}}", "{steps}", "{manner}", "10"]
    env: {{PYTHONPATH: {root}}}
  nodes: 1
  steps: {steps}
  checkpoint: {{every_steps: 10}}
abort: {{if_no_step_for: 10m, wall_clock: 10m}}
"""


def run(tmp_path: pathlib.Path, manner: str, *options: str, steps: int = 400) -> tuple[int, str, pathlib.Path]:
    root = TRAINER.parent.parent.parent
    scenario = tmp_path / "saves.yaml"
    scenario.write_text(SCENARIO.format(python=sys.executable, trainer=TRAINER, root=root, manner=manner, steps=steps))
    result = ended("matrix", "checkpoint", scenario, "--reports", tmp_path / "reports", *options)
    (folder,) = (tmp_path / "reports").glob("matrix-saves-*")
    return result.exit_code, result.stdout, folder


@pytest.mark.slow
def test_a_trusting_trainer_loads_damage_silently(tmp_path: pathlib.Path) -> None:
    code, _, folder = run(tmp_path, "trusting")
    assert code == 1
    found = json.loads((folder / "matrix.json").read_text())
    came = {(cell["kind"], cell["part"]): cell for cell in found["cells"]}
    for kind in ("bit_flip", "zero_page", "mixed_steps"):
        assert came[kind, "tensor"]["came"] == "loaded silently wrong", came[kind, "tensor"]
    for kind in ("truncate", "empty", "missing"):
        assert came[kind, "tensor"]["came"] == "crashed", came[kind, "tensor"]
    assert came["dangling_latest", "pointer"]["came"] == "crashed"
    assert came["stale_latest", "pointer"]["came"] == "fell back"
    assert came["stale_latest", "pointer"]["step"] == found["newest_step"] - 10
    assert came["missing", "pointer"]["step"] == 0
    assert (found["verdict"], found["layout"], found["complete"]) == ("fail", "torch_file", True)
    page = (folder / "matrix.md").read_text()
    assert r"| bit\_flip | tensor |" in page and "loaded silently wrong" in page
    assert not list(folder.glob("cells/*/checkpoints")) and not (folder / "base" / "checkpoints").exists()


@pytest.mark.slow
def test_a_careful_trainer_falls_back_each_time(tmp_path: pathlib.Path) -> None:
    """Its last save is of its last step, so that the one before is damaged: there must be steps to do."""
    code, stdout, _ = run(tmp_path, "careful", "--json", steps=30)
    found = json.loads(stdout)
    assert (code, found["verdict"], found["newest_step"], found["complete"]) == (0, "pass", 20, True)
    damaged = [cell for cell in found["cells"] if cell["part"] in ("tensor", "header")]
    assert damaged and {cell["came"] for cell in damaged} == {"fell back"}
    assert {cell["step"] for cell in damaged} == {found["newest_step"] - 10}
    pointers = [cell for cell in found["cells"] if cell["part"] == "pointer"]
    assert pointers and {cell["came"] for cell in pointers} == {"harmless"}


@pytest.mark.parametrize(
    ("answer", "stopped", "code"),
    [
        (Answer(Came.DETECTED, 40), False, 0),
        (Answer(Came.FELL_BACK, 20), False, 0),
        (Answer(Came.FELL_BACK, 20, judged=False), False, 3),
        (Answer(Came.UNKNOWN, 20), False, 3),
        (Answer(Came.WRONG, 40), False, 1),
        (Answer(Came.SCRATCH, 0), False, 1),
        (Answer(Came.SILENT, 20), False, 1),
        (Answer(Came.CRASHED, None, "it crashed"), True, 130),
    ],
)
def test_the_exit_code_is_that_of_the_worst_restart_and_a_matrix_that_was_stopped_is_no_pass(
    answer: Answer, stopped: bool, code: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = DamageRow(Cell("truncate", "tensor", "<b>|a.pt"), answer, 1.0)
    (tmp_path / "matrix-x").mkdir()
    made = Matrix(
        "matrix-x", "torch_file", "train", 40, True, (row,), interrupted=stopped, planned=12 if stopped else 1
    )
    monkeypatch.setattr("harness.matrix.matrix_command.run_matrix", lambda *_: made)
    monkeypatch.setattr("harness.matrix.matrix_command.check_capabilities", lambda *_: None)
    result = chaos("matrix", "checkpoint", "--reports", str(tmp_path))
    assert result.exit_code == code, result.output
    assert ("1 restart reported no loss to compare" in result.stdout) is (not answer.judged)
    assert ("stopped after 1 of 12 damages" in result.stdout) is stopped
    verdict = {0: "pass", 1: "fail"}.get(code, "inconclusive")
    assert json.loads((tmp_path / "matrix-x" / "matrix.json").read_text())["verdict"] == verdict
    assert ("PASS" in result.stdout) is (verdict == "pass")
    assert r"| truncate | tensor | \<b\>\|a.pt |" in (tmp_path / "matrix-x" / "matrix.md").read_text()


@pytest.mark.parametrize(
    ("older", "came"),
    [
        (Restart(20, False, {(0, 21): 9.0}), Came.FELL_BACK),  # each restart from there does so
        (Restart(20, False, {(0, 21): 1.0}), Came.SILENT),
        (Restart(10, False, {(0, 21): 9.0}), Came.UNKNOWN),
    ],
)
def test_other_losses_after_an_older_save_are_held_against_an_undamaged_restart_from_it(
    older: Restart, came: Came, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual: Losses = {(0, 21): 1.0}
    restarts = {"001": Restart(20, False, {(0, 21): 9.0}), "older": older}
    monkeypatch.setattr(_Matrix, "_restart", lambda _, name, change: (restarts[name], Mock(outcome="interrupted")))
    matrix = _Matrix(Mock(run_id="x"), tmp_path, Mock(), Mock(), Mock())
    cell = Cell("truncate", "tensor", "a.pt")
    assert matrix._row("001", cell, 40, usual, 0.0, older=True).answer.came is came


@pytest.mark.parametrize("name", ["model_{:06d}.safetensors", "step-{}.safetensors"])
def test_the_newest_save_is_left_out_even_if_its_name_tells_no_step(name: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for step in (20, 40):
        path = tmp_path / "checkpoints" / name.format(step)
        path.write_bytes(SAFETENSORS)
        os.utime(path, (step, step))
    workload = Mock(checkpoint=Checkpoint())
    matrix = _Matrix(Mock(run_id="x"), tmp_path, Mock(), Mock(), Mock())
    matrix.plan = Mock(workload=workload)
    matrix._leave_out_newest(tmp_path)
    assert [each.name for each in (tmp_path / "checkpoints").iterdir()] == [name.format(20)]
