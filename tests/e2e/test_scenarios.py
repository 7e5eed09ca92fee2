"""The shipped scenarios pass with the reference trainer, and what they leave is what is promised."""

import json
import os
import pathlib
import xml.etree.ElementTree

import pytest
import yaml
from e2e.chaos_cli import ROOT, chaos, leftovers, lighter

from harness.backends.local.backend import BACKEND
from harness.evidence.logs import load_evidence
from harness.judge.score import judge
from harness.judge.verdict import Verdict
from harness.plan.making import make_plan
from harness.run.job import execute
from harness.spec.scenario import load_scenario

# All drain before the next fault strikes: there are some steps between two questions for a notice.
WITH_TIME = ["--compute-s", "0.03", "--poll-s", "0.2"]


@pytest.mark.healthy
def test_two_evictions_of_four_ranks_and_the_death_of_rank_0_leave_a_whole_report(
    reports: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """With a restore drill and a second restart. The first notice comes from a metadata endpoint, and all ranks drain;
    the trainer's client of each cloud, and each cloud's endpoint, have tests of their own."""
    path = lighter("double-evict", tmp_path)
    scenario = yaml.safe_load(path.read_text())
    scenario["workload"] |= {"ranks_per_node": 2, "args": [*scenario["workload"]["args"], *WITH_TIME]}
    scenario["faults"][0] |= {"via": "azure", "notice": "15s"}
    scenario["faults"].append({"id": "kill", "fault": "rank_kill", "when": {"step": 70}, "target": {"rank": 0}})
    path.write_text(yaml.safe_dump(scenario))
    done = chaos(reports, "run", path)
    assert done.code == 0, done.out
    events = "".join(log.read_text() for log in (done.run_dirs[0] / "events").glob("*/trainer-*"))
    assert '"event":"notice","source":"azure"' in events
    assert events.count('"reason":"drained"') == 4, "all ranks"
    (run_dir,) = done.run_dirs
    report = done.report
    assert report["verdict"] == "pass" and report["run_id"] == run_dir.name
    assert len(report["faults"]) == 3 and all(fault["effect"] and fault["healed"] for fault in report["faults"])
    losses, recovery, wasted = (
        report["scores"][name] for name in ("loss_continuity", "recovery_time", "wasted_gpu_hours")
    )
    assert losses["max_abs_diff"] == losses["samples_repeated"] == losses["samples_skipped"] == 0
    assert sum(recovery["phases"].values()) == pytest.approx(recovery["seconds"], abs=1e-6)
    assert sum(wasted["accounts"].values()) == pytest.approx(wasted["gpu_seconds_allocated"], abs=1e-6)
    for name in ("report.html", "report.md", "plan.json", "undo.jsonl"):
        assert (run_dir / name).stat().st_size > 0
    page = (ROOT / "reports" / "README.md").read_text()
    assert [path.name for path in run_dir.iterdir() if f"`{path.name}" not in page] == []
    cases = xml.etree.ElementTree.parse(run_dir / "junit.xml").getroot().iter("testcase")
    assert len(list(cases)) >= 4
    assert '"closed": true' in (run_dir / "undo.jsonl").read_text().splitlines()[-1]
    first = json.loads((run_dir / "events" / "harness.jsonl").read_text().splitlines()[1])
    assert first["event"] == "plan" and first["plan"]["seed"] == 1
    assert leftovers("double-evict") == []
    again = chaos(done.reports, "score", run_dir.name)
    assert again.code == 0
    assert json.loads((run_dir / "report.json").read_text()) == report
    log = next((run_dir / "events").glob("*/trainer-*"))
    lines = log.read_text().splitlines()
    lines[3] = lines[3][:30]
    log.write_text("\n".join(lines) + "\n")
    damaged = chaos(done.reports, "score", run_dir)
    assert damaged.code == 3 and f"{log.name}:4" in damaged.out and "Traceback" not in damaged.out, damaged.out


@pytest.mark.healthy
def test_a_job_that_lost_a_node_goes_on_with_fewer(reports: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """How it grows again: tests/reference_trainer/test_preemption.py. Its losses: `make verdict-matrix`."""
    path = lighter("node-loss", tmp_path)
    plan = make_plan(load_scenario(path), 1, "local", f"node-loss-2-{os.getpid()}")
    assert execute(plan, tmp_path / "run", BACKEND).outcome == "completed"
    card = judge(load_evidence(tmp_path / "run"), plan.run_id)
    assert card.verdict is Verdict.PASS, card.reasons
    assert leftovers("node-loss") == []
