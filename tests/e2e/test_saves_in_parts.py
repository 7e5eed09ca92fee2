"""A file for each rank, written in place or elsewhere, under names with dates: one script, healthy and broken."""

import json
import pathlib

import pytest
from e2e.chaos_cli import ROOT

from harness.backends.local.backend import BACKEND
from harness.evidence.logs import load_evidence
from harness.judge.score import Scorecard, judge
from harness.judge.verdict import Verdict
from harness.log import files
from harness.plan.making import make_plan
from harness.run.job import execute
from harness.spec.scenario import parse_scenario

SCRIPT = ROOT / "tests" / "trainers" / "sharded_by_hand.py"


def rehearsed(folder: pathlib.Path, *words: str, healthy: bool) -> Scorecard:
    """Rank 1 is killed between two saves. A healthy job has a fault-free run beside it, and is restarted twice more."""
    if not (capability := BACKEND.probe()).available:
        pytest.skip(capability.summary)
    text = f"""\
version: 1
name: parts
title: A rank of a job whose ranks save parts is killed
workload:
  trainer: {{torchrun: {SCRIPT}, args: [--checkpoints, "{{checkpoints}}", {", ".join(words)}]}}
  nodes: 1
  ranks_per_node: 2
  restore_drill: {json.dumps(healthy)}
faults: [{{id: kill, fault: rank_kill, when: {{step: 25}}, target: {{rank: 1}}}}]
expect: {{recovery_time: {{max: 10m}}, loss_continuity: {{mode: exact}}, pace: off}}
abort: {{if_no_step_for: 10m, wall_clock: 10m}}
"""
    plan = make_plan(parse_scenario(text, str(folder / "kill.yaml")), 1, "local", f"parts-{folder.name}")
    for name in ("alone", "run") if healthy else ("run",):
        one = plan if name == "run" else plan.without_faults(f"{plan.run_id}-alone")
        assert execute(one, folder / name, BACKEND).outcome == "completed"
    if healthy:
        files.attach(folder / "alone" / "events", folder / "run" / "fault-free" / "events")
    return judge(load_evidence(folder / "run"), plan.run_id)


@pytest.mark.healthy
def test_each_rank_goes_on_with_its_own_part(tmp_path: pathlib.Path) -> None:
    """The harness knows which steps the saves are of, though their names are dates: it can restart the job from them."""
    card = rehearsed(tmp_path, "--via", "cp", healthy=True)
    assert card.verdict is Verdict.PASS, card.reasons
    unjudged = {each.name for each in card.guarantees if each.state == "not judged"}
    assert not {name for name in unjudged if name.startswith(("drill.", "second."))}, unjudged


def test_a_rank_that_takes_a_wrong_part_fails_for_that(tmp_path: pathlib.Path) -> None:
    card = rehearsed(tmp_path, "--via", "direct", "--broken", "other", healthy=False)
    reason = "rank 1 restored rank 0's part of the checkpoint of step 20"
    assert card.verdict is Verdict.FAIL and any(reason in each for each in card.reasons), card.reasons
