"""Does a gate with a memory tell a slower recovery from chance? Real gates, five repeats each, against one baseline.

    python benches/gates.py [--gates 20] [--slower 1.5]

The trainer is the reference trainer. Its slower form waits after each restore, so that its recovery takes so many times
the baseline's median. Healthy and slower gates take turns. What each one said is kept in docs/gates.json, and a bench
that was interrupted goes on where it ended.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
from collections import Counter
from typing import Any

import yaml

from harness.plan.making import make_plan
from harness.spec.scenario import parse_scenario

ROOT = pathlib.Path(__file__).resolve().parents[1]
PLACE = ROOT / "reports" / "gates"
KEPT = ROOT / "docs" / "gates.json"
BASELINE = "bench"
REPEATS = 5
GATE_LIMIT_S = 1800
SLOWER = """\
'''The reference trainer; after each restore it waits for so many seconds.'''
from reference_trainer import preemption

if __name__ == "__main__":
    preemption.before_torch()

import os
import sys
import time

from reference_trainer import launch
from reference_trainer.train import Worker

restore_at_once = Worker.restore


def restore(self):
    if restore_at_once(self):
        time.sleep(float(sys.argv[1]))
    return self.step


Worker.restore = restore
if __name__ == "__main__":
    code = launch.main(sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
"""
SCENARIO = """\
version: 1
name: rank-kill
title: A rank is killed
workload: {nodes: 2, steps: 60, checkpoint: {every_steps: 10}, restore_drill: false}
faults: [{id: kill, fault: rank_kill, when: {step: 35}, target: {rank: 1}}]
expect:
  recovery_time: {max: 60s}
  wasted_gpu_hours: {max_percent_by_faults: 95}
  loss_continuity: {mode: exact}
"""
SUITE = "version: 1\nname: gates\ntitle: One scenario\nscenarios: [rank-kill.yaml]\n"


def suite(seconds: float) -> pathlib.Path:
    """One scenario and its suite: the job's restores take this much longer."""
    PLACE.mkdir(parents=True, exist_ok=True)
    (PLACE / "slower.py").write_text(SLOWER)
    healthy = make_plan(parse_scenario(SCENARIO, "rank-kill"), 1, "local", "rank-kill").launch()
    command = ["{python}", "{scenario_dir}/slower.py", f"{seconds:.3f}", *healthy.command[3:]]
    data = yaml.safe_load(SCENARIO)
    data["workload"]["trainer"] = {"command": command, "control": healthy.control}
    (PLACE / "rank-kill.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    path = PLACE / "suite.yaml"
    path.write_text(SUITE)
    return path


def chaos(*arguments: object) -> str:
    command = [sys.executable, "-m", "harness", *map(str, arguments), "--reports", str(PLACE)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=GATE_LIMIT_S, check=False)
    if done.returncode in (2, 4):
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def gate(seconds: float, against: bool) -> dict[str, Any]:
    """`suite.json` of the gate, with the recovery times of its runs."""
    before = set(PLACE.glob("gates-*/suite.json"))
    chaos("gate", suite(seconds), "--repeat", REPEATS, *(("--against", BASELINE) if against else ()))
    new = set(PLACE.glob("gates-*/suite.json")) - before
    if len(new) != 1:
        sys.exit(f"the gate left {len(new)} answers in {PLACE}")
    (path,) = new
    figures = json.loads((path.parent / "figures.json").read_text())
    found: dict[str, Any] = json.loads(path.read_text())
    return found | {"recovery_s": recoveries(figures)}


def recoveries(figures: dict[str, Any]) -> list[float]:
    """Recovery times in a gate's `figures.json`, in seconds, of the runs that have one."""
    runs = (run for each in figures["scenarios"] for run in each["runs"])
    return [run["recovery_time"] for run in runs if run["recovery_time"] is not None]


def kept() -> dict[str, Any]:
    """What each gate answered, from docs/gates.json."""
    return json.loads(KEPT.read_text())


def table(answers: dict[str, Any]) -> str:
    """How many gates gave each answer, for docs/gate-statistic.md."""
    lines = ["| trainer | green | red | inconclusive |", "|---|---|---|---|"]
    for slower, name in ((False, "the same"), (True, f"recovery {answers['slower']:g} × slower")):
        count = Counter(each["verdict"] for each in answers["gates"] if each["slower"] is slower)
        lines.append(f"| {name} | {count['pass']} | {count['fail']} | {count['inconclusive']} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=20, help="half of them on the slower trainer")
    parser.add_argument("--slower", type=float, default=1.5, help="times the baseline's median recovery")
    given = parser.parse_args()
    answers = kept() if KEPT.exists() else {"slower": given.slower, "gates": []}
    if not (PLACE / ".baselines" / f"{BASELINE}.json").exists():
        first = gate(0, against=False)
        chaos("baseline", "set", BASELINE)
        (PLACE / "usual.json").write_text(json.dumps(first["recovery_s"]))
    usual = statistics.median(json.loads((PLACE / "usual.json").read_text()))
    for number in range(len(answers["gates"]), given.gates):
        slower = number % 2 == 1
        answer = gate(usual * (given.slower - 1) if slower else 0, against=True)
        one = {"slower": slower, **{name: answer[name] for name in ("verdict", "reason", "recovery_s")}}
        answers["gates"].append(one)
        KEPT.write_text(json.dumps(answers, indent=1) + "\n")
        which = "slower" if slower else "the same"
        print(f"gate {number + 1}, {which} trainer: {one['verdict']}: {one['reason']}", flush=True)
    print(table(answers))


if __name__ == "__main__":
    main()
