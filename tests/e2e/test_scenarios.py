"""The shipped scenarios pass with the reference trainer, and what they leave is what is promised."""

import json
import pathlib
import shutil
import xml.etree.ElementTree

import pytest
import yaml
from e2e.chaos_cli import NAME, Done, chaos, leftovers, lighter


@pytest.mark.healthy
def test_two_evictions_leave_a_whole_report(main_job: Done) -> None:
    done = main_job
    assert done.code == 0, done.out
    (run_dir,) = done.run_dirs
    report = done.report
    assert report["verdict"] == "pass" and report["run_id"] == run_dir.name
    assert report["faults"][0]["effect"] and report["faults"][0]["healed"]
    assert report["scores"]["loss_continuity"]["max_abs_diff"] == 0
    assert (
        report["scores"]["loss_continuity"]["samples_repeated"]
        == report["scores"]["loss_continuity"]["samples_skipped"]
        == 0
    )
    recovery = report["scores"]["recovery_time"]
    assert sum(recovery["phases"].values()) == pytest.approx(recovery["seconds"], abs=1e-6)
    wasted = report["scores"]["wasted_gpu_hours"]
    assert sum(wasted["accounts"].values()) == pytest.approx(wasted["gpu_seconds_allocated"], abs=1e-6)
    for name in ("report.html", "report.md", "plan.json", "undo.jsonl"):
        assert (run_dir / name).stat().st_size > 0
    page = (pathlib.Path(__file__).resolve().parents[2] / "reports" / "README.md").read_text()
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


def test_a_damaged_log_is_an_error_with_its_place(reports: pathlib.Path, main_job: Done) -> None:
    (whole,) = main_job.run_dirs
    run_dir = shutil.copytree(whole, reports / whole.name)
    log = next((run_dir / "events").glob("*/trainer-*"))
    lines = log.read_text().splitlines()
    lines[3] = lines[3][:30]
    log.write_text("\n".join(lines) + "\n")
    done = chaos(reports, "score", run_dir)
    assert done.code == 3 and f"{log.name}:4" in done.out, done.out
    assert "Traceback" not in done.out


@pytest.mark.healthy
def test_a_job_that_lost_a_node_goes_on_with_fewer_and_grows_back(
    reports: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    done = chaos(reports, "run", lighter("node-loss", tmp_path))
    assert done.code == 0, done.out
    assert done.report["verdict"] == "pass"
    assert leftovers("node-loss") == []


@pytest.mark.healthy
def test_four_ranks_drain_over_a_metadata_notice_and_rank_0_may_die(
    reports: pathlib.Path, larger: pathlib.Path
) -> None:
    """The trainer's client of each cloud, and each cloud's endpoint, have tests of their own."""
    scenario = yaml.safe_load(larger.read_text())
    scenario["workload"] |= {"ranks_per_node": 2, "args": [*scenario["workload"]["args"], "--poll-s", "0.2"]}
    evict = {"id": "evict", "fault": "preemption", "via": "azure", "notice": "15s", "replacement": {"after": "500ms"}}
    kill = {"id": "kill", "fault": "rank_kill", "when": {"step": 45}, "target": {"rank": 0}}
    scenario["faults"] = [evict | {"when": {"step": 15}, "target": {"node": 1}}, kill]
    larger.write_text(yaml.safe_dump(scenario))
    done = chaos(reports, "run", larger)
    assert done.code == 0, done.out
    assert done.report["scores"]["loss_continuity"]["max_abs_diff"] == 0
    events = "".join(path.read_text() for path in (done.run_dirs[0] / "events").glob("*/trainer-*"))
    assert '"event":"notice","source":"azure"' in events
    assert events.count('"reason":"drained"') == 4, "all ranks"
    assert leftovers(NAME) == []
