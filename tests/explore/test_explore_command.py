"""`chaos explore checkpoint` on real small jobs: a careful saver, and savers with planted bugs."""

import json
import pathlib
from typing import Any

import pytest
from command_line import chaos, ended, refused

from harness.backends.contract import Verb
from harness.backends.local.backend import BACKEND
from harness.errors import ChaosError

TRAINER = pathlib.Path(__file__).with_name("planted_trainer.py")
SCENARIO = """\
version: 1
name: saves
title: A run that saves
workload:
  trainer:
    command: ["{python}", "-S", "TRAINER", "{checkpoints}", "{steps}", "MANNER"]
    env: {PYTHONPATH: ROOT}
  nodes: 1
  steps: 400
abort: {if_no_step_for: 10m, wall_clock: 10m}
"""
NEEDS_FUSE = pytest.mark.skipif(
    Verb.STORAGE not in BACKEND.probe().verbs, reason=BACKEND.probe().missing.get(Verb.STORAGE, "")
)


def explore(tmp_path: pathlib.Path, manner: str, *options: str) -> tuple[int, dict[str, Any]]:
    root = str(TRAINER.parents[2])
    text = SCENARIO.replace("TRAINER", str(TRAINER)).replace("ROOT", root).replace("MANNER", manner)
    (tmp_path / "saves.yaml").write_text(text)
    result = ended("explore", "checkpoint", tmp_path / "saves.yaml", "--reports", tmp_path / "reports", *options)
    (report,) = (tmp_path / "reports").glob("explore-saves-*/explore.json")
    return result.exit_code, json.loads(report.read_text())


@pytest.mark.slow
@NEEDS_FUSE
def test_a_careful_saver_survives_all_states(tmp_path: pathlib.Path) -> None:
    code, found = explore(tmp_path, "careful", "--profile", "posix", "--profile", "nfs")
    assert (code, found["verdict"], found["complete"]) == (0, "pass", True), found["why"]
    assert found["saves"] == [5, 10, 15] and {each["came"] for each in found["states"]} == {"resumed"}
    assert {each["profile"]: each["tried"] > 5 for each in found["profiles"]} == {"posix": True, "nfs": True}


@pytest.mark.slow
@NEEDS_FUSE
def test_a_saver_that_renames_before_it_flushes_is_found_and_its_state_made_again(tmp_path: pathlib.Path) -> None:
    code, found = explore(tmp_path, "not_flushed", "--profile", "posix")
    assert (code, found["verdict"]) == (1, "fail")
    assert {each["came"] for each in found["states"]} == {"resumed", "loaded silently wrong", "crashed"}
    (crashed,) = [each for each in found["worst"] if "crashed" in str(_answer(found, each["id"]))]
    lost = [line for line in crashed["timeline"] if "  lost  " in line]
    assert len(lost) == 1 and lost[0].endswith("write new")
    words = ["--state", f"{found['run_id']}/{crashed['id']}", "--into", str(tmp_path / "made")]
    result = chaos("explore", "checkpoint", *words, "--reports", str(tmp_path / "reports"))
    assert result.exit_code == 0, result.output
    assert [(path.name, path.stat().st_size) for path in (tmp_path / "made").iterdir()] == [("model", 0)]
    shown = chaos("show", found["run_id"], "--reports", str(tmp_path / "reports"))
    assert "crashed" in shown.output and f"{found['run_id']}/report.md" in shown.output.replace("\n", "")


def _answer(found: dict[str, Any], identity: str) -> str:
    return next(each["came"] for each in found["states"] if each["id"] == identity)


@pytest.mark.slow
@NEEDS_FUSE
def test_a_saver_that_removes_the_old_save_first_is_found_and_an_open_end_is_no_pass(tmp_path: pathlib.Path) -> None:
    code, found = explore(tmp_path, "removed_first", "--profile", "nfs")
    assert (code, found["verdict"]) == (1, "fail")
    assert {each["came"] for each in found["states"]} == {"resumed", "lost durable progress"}


@pytest.mark.slow
@NEEDS_FUSE
def test_a_state_that_was_not_tried_is_no_pass(tmp_path: pathlib.Path) -> None:
    code, found = explore(tmp_path, "careful", "--profile", "nfs", "--states", "2")
    assert (code, found["verdict"], found["complete"], len(found["states"])) == (3, "inconclusive", False, 2)
    assert "not tried" in found["why"]


@pytest.mark.slow
@NEEDS_FUSE
def test_a_saver_that_fails_on_what_a_crash_left_is_found_at_its_next_save(tmp_path: pathlib.Path) -> None:
    code, found = explore(tmp_path, "folder_left", "--profile", "ext4")
    assert (code, found["verdict"]) == (1, "fail") and found["followed"]
    crashed = [each for each in found["states"] if each["came"] == "crashed"]
    assert crashed and all("File exists" in each["detail"] and "next save" in each["detail"] for each in crashed)


@pytest.mark.slow
@NEEDS_FUSE
def test_a_job_that_saves_elsewhere_too_is_no_pass(tmp_path: pathlib.Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    code, found = explore(tmp_path, str(tmp_path / "elsewhere"), "--profile", "nfs")
    assert (code, found["verdict"], found["states"]) == (3, "inconclusive", [])
    assert "it has saves outside of the folder" in found["why"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--profile", "zfs"], "--profile zfs: choose from: posix, ext4, nfs, s3"),
        (["--budget", "soon"], "--budget soon"),
        (["--state", "explore-x/ext4-1"], "belong together"),
        (["--state", "nowhere/ext4-1", "--into", "made"], "no exploration 'nowhere'"),
    ],
)
def test_a_wrong_option_is_a_usage_error(words: list[str], why: str, tmp_path: pathlib.Path) -> None:
    assert why in refused("explore", "checkpoint", *words, "--reports", str(tmp_path))


DEEP = "[" * 100_000


@pytest.mark.parametrize("text", [DEEP, "[1]", "{}", '{"verdict": "pass", "why": [1]}', "\0"])
def test_a_damaged_file_of_a_stored_exploration_is_one_error_with_its_path(text: str, tmp_path: pathlib.Path) -> None:
    base = tmp_path / "explore-x" / "base"
    (base / "recorded").mkdir(parents=True)
    for path in (base / "plan.json", base.parent / "plan.json", base.parent / "explore.json"):
        path.write_text(text)
    words = ("explore", "checkpoint", "--state", "explore-x/ext4-1", "--into", tmp_path / "made")
    assert f"{base}/plan.json:" in refused(*words, "--reports", tmp_path)
    shown = chaos("show", "explore-x", "--reports", tmp_path).exception
    assert isinstance(shown, ChaosError) and f"{base.parent}/explore.json: " in str(shown)
