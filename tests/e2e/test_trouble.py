"""What can go wrong around a run: one clear message, the right exit code, nothing left behind, evidence kept."""

import os
import pathlib
import random
import signal
import subprocess
from typing import Any

import pytest
import yaml
from e2e.chaos_cli import LIGHT, NAME, ROOT, SLOWER, chaos, command, environment, leftovers
from waiting import until


def start(reports: pathlib.Path, *words: object, **env: str) -> subprocess.Popen[str]:
    outputs: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command(*words), env=environment(reports, **env), cwd=ROOT, **outputs)


def steps_told(run_dir: pathlib.Path) -> int:
    """How many steps the ranks of a run have written down so far; 120 and those done again, when it has ended."""
    return sum(log.read_text().count('"event":"step"') for log in run_dir.glob("events/*/trainer-*"))


@pytest.mark.parametrize(("mode", "scenario"), [("", SLOWER), ("plain", LIGHT)], ids=["", "plain"])
def test_sigkill_of_the_harness_leaves_nothing_and_no_pass(
    reports: pathlib.Path, short: pathlib.Path, mode: str, scenario: str
) -> None:
    """At another moment each time; tools/kills has more of them."""
    steps = random.randint(0, 110)
    short.write_text(scenario)
    harness = start(reports, "run", short, **({"CHAOS_LOCAL_MODE": mode} if mode else {}))
    (run_dir,) = until(lambda: [*reports.glob(f"{NAME}-*")], "the folder of the run")
    until(lambda: steps_told(run_dir) >= steps, f"{steps} steps")
    harness.kill()
    out, _ = harness.communicate()
    assert harness.returncode == -signal.SIGKILL, out
    until(lambda: leftovers(NAME) == [], lambda: leftovers(NAME))
    assert chaos(reports, "heal").code == 0
    scored = chaos(reports, "score", run_dir)
    assert scored.code in (1, 3), scored.out
    assert "Traceback" not in scored.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_healed_and_scoreable(
    tmp_path: pathlib.Path, short: pathlib.Path, number: signal.Signals
) -> None:
    reports = tmp_path / "fresh"  # else the events of other tests' fault-free runs would be taken for this run's
    short.write_text(LIGHT)
    harness = start(reports, "run", short)
    until(lambda: list(reports.glob(".fault-free/*/events/*/trainer*")), "the trainers")
    harness.send_signal(number)
    out, _ = harness.communicate()
    assert harness.returncode == 130 and "Traceback" not in out, out
    assert leftovers(NAME) == []


@pytest.mark.parametrize(
    ("name", "command", "abort", "code", "said"),
    [
        ("crash", ["{python}", "-c", "raise SystemExit('no such dataset: /data/missing')"], {}, 1, "no such dataset"),
        # It told nothing that could be judged.
        ("hang", ["sleep", "1000"], {"if_not_started_for": "3s"}, 3, "no first step within 3 s"),
        ("absent", ["no-such-program"], {}, 1, "no-such-program"),
    ],
)
def test_a_trainer_that_takes_no_step(
    name: str, command: list[str], abort: dict[str, str], code: int, said: str, reports: pathlib.Path
) -> None:
    scenario: dict[str, Any] = {"version": 1, "name": name, "title": "A trainer that takes no step"}
    scenario["workload"] = {"trainer": {"command": command}, "nodes": 2, "steps": 10}
    scenario["abort"] = {"wall_clock": "10m"} | (abort or {"if_no_step_for": "10m"})
    path = reports.parent / f"{name}.yaml"
    path.write_text(yaml.safe_dump(scenario))
    done = chaos(reports, "run", path)
    assert done.code == code, done.out
    assert said in done.out.lower() and "Traceback" not in done.out
    assert leftovers(name) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a small disk of its own, which only root can mount")
def test_a_full_disk(tmp_path: pathlib.Path, larger: pathlib.Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "small", str(small)], check=True)
    try:
        done = chaos(small, "run", larger)
        assert done.code == 3, done.out
        assert "MiB free" in done.out and "Traceback" not in done.out
        assert leftovers(NAME) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_mistake_is_told_before_anything_runs(reports: pathlib.Path, short: pathlib.Path) -> None:
    done = chaos(reports, "run", short, CHAOS_LOCAL_MODE="nonsense")
    assert done.code in (2, 4) and "nonsense" in done.out and "Traceback" not in done.out, done.out
    short.write_text(short.read_text().replace("step: 35", "stepp: 35"))
    done = chaos(reports, "run", short)
    assert done.code == 2
    assert "short.yaml:9:12" in done.out and "did you mean step?" in done.out
