"""The shipped scenarios pass with the reference trainer, and what they leave is what is promised."""

import json
import pathlib
import xml.etree.ElementTree

import pytest
import yaml
from e2e.chaos_cli import NAME, ROOT, chaos, leftovers, lighter


@pytest.mark.healthy
def test_two_evictions_leave_a_whole_report(reports: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """With a restore drill and a second restart."""
    done = chaos(reports, "run", lighter("double-evict", tmp_path))
    assert done.code == 0, done.out
    (run_dir,) = done.run_dirs
    report = done.report
    assert report["verdict"] == "pass" and report["run_id"] == run_dir.name
    assert report["faults"][0]["effect"] and report["faults"][0]["healed"]
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
def test_a_job_that_lost_a_node_goes_on_with_fewer_and_grows_back(
    reports: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    done = chaos(reports, "run", lighter("node-loss", tmp_path))
    assert done.code == 0 and done.report["verdict"] == "pass", done.out
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
