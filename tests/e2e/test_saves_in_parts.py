"""A file for each rank, written in place or elsewhere, under names with dates: one script, healthy and broken."""

import pathlib
from typing import Any

import pytest
from e2e.chaos_cli import ROOT, chaos

from harness.backends.contract import load_backend

SCRIPT = ROOT / "tests" / "trainers" / "sharded_by_hand.py"


def rehearsed(folder: pathlib.Path, *words: str, drill: str = "false") -> dict[str, Any]:
    """Rank 1 is killed between two saves."""
    if not (capability := load_backend("local").probe()).available:
        pytest.skip(capability.summary)
    path = folder / "kill.yaml"
    path.write_text(
        f"""\
version: 1
name: parts
title: A rank of a job whose ranks save parts is killed
workload:
  trainer: {{torchrun: {SCRIPT}, args: [--checkpoints, "{{checkpoints}}", {", ".join(words)}]}}
  nodes: 1
  ranks_per_node: 2
  restore_drill: {drill}
faults: [{{id: kill, fault: rank_kill, when: {{step: 25}}, target: {{rank: 1}}}}]
expect: {{recovery_time: {{max: 10m}}, loss_continuity: {{mode: exact}}, pace: off}}
abort: {{if_no_step_for: 10m, wall_clock: 10m}}
"""
    )
    done = chaos(folder / "reports", "run", path)
    print(done.out)
    return done.report


@pytest.mark.healthy
def test_each_rank_goes_on_with_its_own_part(tmp_path: pathlib.Path) -> None:
    """The harness knows which steps the saves are of, though their names are dates: it can restart the job from them."""
    report = rehearsed(tmp_path, "--via", "cp", drill="true")
    assert report["verdict"] == "pass", report["reasons"]
    unjudged = {each["name"] for each in report["guarantees"] if each["state"] == "not judged"}
    assert not {name for name in unjudged if name.startswith(("drill.", "second."))}, unjudged


def test_a_rank_that_takes_a_wrong_part_fails_for_that(tmp_path: pathlib.Path) -> None:
    report = rehearsed(tmp_path, "--via", "direct", "--broken", "other")
    reason = "rank 1 restored rank 0's part of the checkpoint of step 20"
    assert report["verdict"] == "fail" and any(reason in each for each in report["reasons"]), report["reasons"]
