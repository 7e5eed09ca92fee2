"""Calling the command line as people do, and looking for what it may have left behind."""

import json
import os
import pathlib
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import yaml

from harness.node import processes

ANY_RUN = "any run"
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# Two workers may have such a run at a time, and each looks for what its own has left behind.
NAME = f"short{os.environ.get('PYTEST_XDIST_WORKER', '')}"
SHORT = (
    f"version: 1\nname: {NAME}\n"
    """\
title: A short run for the tests
workload: {nodes: 2, steps: 60, checkpoint: {every_steps: 10}, restore_drill: false,
  args: [--layers, "1", --width, "64", --context, "32", --compute-s, "0"]}
faults:
  - id: kill
    fault: rank_kill
    when: {step: 35}
    target: {rank: 1}
expect:
  recovery_time: {max: 10m}
  wasted_gpu_hours: {max_percent_by_faults: 100}
  loss_continuity: {mode: exact}
  pace: {max_slowdown: 1000}
abort: {if_no_step_for: 10m, wall_clock: 10m}
"""
)  # how fast it is decides nothing: other programs take the cores whenever they like


LARGER = SHORT.replace('[--layers, "1", --width, "64", --context, "32", --compute-s, "0"]', '[--layers, "2"]')
"""The same with a model whose checkpoints fill a disk."""

SLOWER = SHORT.replace('--compute-s, "0"', '--compute-s, "0.04"')
"""The same with steps that take long enough for something to happen between two of them."""

_TRAINER = (
    f"{{env: {{PYTHONPATH: {ROOT}}}, command: ['{{python}}', -S, {ROOT}/tests/faults/light_trainer.py, '60', '2']}}"
)
LIGHT = SHORT.replace(
    SHORT[SHORT.index("workload:") : SHORT.index("faults:")],
    f"workload: {{nodes: 2, steps: 60, trainer: {_TRAINER}}}\n",
)
"""The same with a trainer that needs no torch, and saves nothing."""

_FEWER = "args: [--layers, '1', --width, '64', --context, '32', --compute-s, '0']\n  steps: "
_NO_DRILL = "restore_drill: false\n  " + _FEWER  # double-evict has one
_LIGHTER = {
    "node-loss": {"steps: 240": _NO_DRILL + "80", "step: 70": "step: 35"},
    "double-evict": {"steps: 200": _FEWER + "100", "step: 90": "step: 45"},
}


def lighter(name: str, folder: pathlib.Path) -> pathlib.Path:
    """A shipped scenario with half its steps and a smaller model; `make chaos` and the gate run it whole."""
    text = (ROOT / "scenarios" / f"{name}.yaml").read_text()
    for shipped, less in _LIGHTER[name].items():
        assert shipped in text
        text = text.replace(shipped, less, 1)
    scenario, short = yaml.safe_load(text), yaml.safe_load(SHORT)
    for part in ("recovery_time", "wasted_gpu_hours", "pace"):
        scenario["expect"][part] = short["expect"][part]
    scenario["abort"] = short["abort"]
    if scenario["expect"]["loss_continuity"]["mode"] == "envelope":
        del scenario["expect"]["loss_continuity"]  # it takes five more jobs
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(scenario))
    return path


@dataclass
class Done:
    code: int
    out: str
    reports: pathlib.Path

    @property
    def run_dirs(self) -> list[pathlib.Path]:
        return sorted(path.parent for path in self.reports.glob("*/plan.json"))

    @property
    def report(self) -> dict[str, Any]:
        (run_dir,) = self.run_dirs
        return json.loads((run_dir / "report.json").read_text())


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "harness", *map(str, words)]


def environment(reports: pathlib.Path, **more: str) -> dict[str, str]:
    return {**os.environ, "CHAOS_REPORTS": str(reports), "COLUMNS": "200", **more}


def chaos(reports: pathlib.Path, *words: object, **env: str) -> Done:
    done = subprocess.run(command(*words), env=environment(reports, **env), capture_output=True, text=True, cwd=ROOT)
    return Done(done.returncode, done.stdout + done.stderr, reports)


def leftovers(*scenarios: str) -> list[str]:
    """What is on this machine of runs of these scenarios, their fault-free runs and drills, and any mount of ours, that
    was not there before these tests. Tests beside these have runs of other names."""
    return [what for run_id, what in _marked() if what not in _EARLIER and run_id.startswith(_begins(scenarios))]


def _begins(scenarios: tuple[str, ...]) -> tuple[str, ...]:
    return ANY_RUN, *(f"{name}-2" for name in scenarios)  # a run's id is the scenario's name, then the date


def _marked() -> list[tuple[str, str]]:
    """Everything that carries the harness's marks, behind the id of its run."""
    found = []
    for process in processes.every():
        marks = processes.environment(process.pid)
        if "CHAOS_RUN_ID" in marks and process.running and process.pid != os.getpid() and _ours(process.pid):
            node = f"{marks.get('CHAOS_NODE', '?')}.{marks.get('CHAOS_INCARNATION', '?')}"
            found.append((marks["CHAOS_RUN_ID"], f"process {process.pid} of {node}: {process}"))
    mounts = pathlib.Path("/proc/mounts").read_text().splitlines()
    found += [(ANY_RUN, f"mount {line}") for line in mounts if "chaos" in line.split()[0]]
    groups = pathlib.Path("/sys/fs/cgroup").glob("*/chaos-*@*@*")
    return found + [(path.name.split("@")[1], f"cgroup {path}") for path in groups]


def _ours(pid: int) -> bool:
    """Root sees everybody's: another user of this machine may run these tests too."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()
    except FileNotFoundError:
        return False


_EARLIER = frozenset(what for _, what in _marked())  # of a run that was killed with all that would have undone it
