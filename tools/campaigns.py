"""Is a forecast right? Predicts the goodput of a random campaign from runs with a single fault, then runs the campaign.

    PYTHONPATH=tests:tools python -m campaigns RUN… [--seeds 1 2 3 4 5] [--reports reports] [--backend local]

RUN are stored runs of rank-kill and process-exception. A campaign kills processes, or raises errors in them, at random
steps: 16 on average, 10 at least, drawn by the seed. Goodput is the time of steps that count over the time from the
first step to the last. The forecast knows the law of the campaign and the single runs, and nothing of the campaign.
`test_campaigns.py` holds the same prediction to simulated campaigns.
"""

import argparse
import json
import pathlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.backends.contract import load_backend
from harness.campaign.experiment import new_run_id
from harness.campaign.run_store import Store
from harness.evidence.logs import load_evidence
from harness.forecast.failure_rates import CauseRate, RateTable
from harness.forecast.job_model import DAY_S, Gaps
from harness.forecast.measured_inputs import Measured, job_of, read_runs
from harness.forecast.outcome import Range
from harness.forecast.simulator import simulate
from harness.judge.score import judge
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan
from harness.report import run_report, write_reports
from harness.report.run_report import Report
from harness.run.job import execute
from harness.spec.scenario import parse_scenario

NODES, FAULTS, FAULTS_MIN = 2, 16, 10
KINDS = ("rank_kill", "process_exception")
STEPS, EVERY = 1600, 10
HEAD = f"""version: 1
name: campaign
title: Processes die at random, again and again
workload: {{nodes: {NODES}, steps: {STEPS}, checkpoint: {{every_steps: {EVERY}}}}}
expect: {{loss_continuity: {{against: itself}}}}
abort: {{if_no_step_for: 60s, wall_clock: 15m}}
faults:
"""


@dataclass(frozen=True)
class Campaign:
    """A job of so much work with a checkpoint after each `every_s` of it, and faults at random moments of the work."""

    work_s: float
    every_s: float
    faults: float = FAULTS
    kinds: Sequence[str] = KINDS

    def predicted(self, found: Measured, samples: int = 2000, seed: int = 1) -> Range:
        """The goodput, with the interval of 90 %."""
        rates = [CauseRate(name=kind, per_1000_node_days=1, faults=[kind]) for kind in self.kinds]
        table = RateTable(source="the law of the campaign", causes=rates)
        job = job_of(NODES, self.work_s, table, Gaps(), found)
        job = job.with_setting("checkpoint_every", self.every_s).with_setting("spares", 0)
        exposed_s = self.work_s
        for _ in range(3):  # faults strike in the work alone, those of a forecast at any time
            rate = self.faults * DAY_S / exposed_s / NODES / len(self.kinds)
            causes = tuple(replace(each, per_node_day=rate) for each in job.causes)
            histories = simulate([replace(job, causes=causes)], samples, seed)
            exposed_s = float(histories.time.mean())
        return Range.of(histories.ettr[0])


def struck_steps(dice: np.random.Generator, steps: int, mean: float = FAULTS, least: int = FAULTS_MIN) -> list[int]:
    """Random steps, so many on average."""
    while (many := int(dice.poisson(mean))) < least:
        pass
    return sorted((2 + dice.choice(steps - 3, many, replace=False)).tolist())


def plan_of(seed: int, backend: str) -> Plan:
    dice = np.random.default_rng(seed)
    lines = []
    for number, step in enumerate(struck_steps(dice, STEPS), 1):
        kind, rank = KINDS[int(dice.integers(len(KINDS)))], int(dice.integers(NODES))
        lines.append(f"  - {{id: f{number}, fault: {kind}, when: {{step: {step}}}, target: {{rank: {rank}}}}}\n")
    return make_plan(parse_scenario(HEAD + "".join(lines), "campaign.yaml"), seed, backend, new_run_id("campaign"))


def goodput(report: Report) -> float:
    """Steps that count over the time from the first to the last step, on all GPUs."""
    booked = report.wasted_gpu_hours.accounts
    ettr = report.wasted_gpu_hours.closed_forms.ettr
    assert ettr is not None, "some fault was recovered from"
    worked = sum(booked.get(name, 0.0) for name in ("productive", "data_wait", "straggler_drag"))
    return ettr * worked / booked["productive"]


def step_of(run: pathlib.Path) -> float:
    """Seconds of a usual step."""
    interval_s = run_report.read(run / "report.json").wasted_gpu_hours.closed_forms.interval_s
    assert interval_s is not None, "it was recovered from"
    return interval_s / json.loads((run / "plan.json").read_text())["workload"]["checkpoint"]["every_steps"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--reports", type=pathlib.Path, default=pathlib.Path("reports"))
    parser.add_argument("--backend", default="local")
    given = parser.parse_args()
    found = read_runs(given.runs, given.reports)
    step_s = statistics.mean(map(step_of, (Store(given.reports).find(name) for name in given.runs)))
    wanted = Campaign(STEPS * step_s, EVERY * step_s).predicted(found)
    told = f"{wanted.mean:.1%}, 90 %: {wanted.low:.1%} to {wanted.high:.1%}"
    half = 50 * (wanted.high - wanted.low)
    print(f"predicted from {len(given.runs)} runs: {told}, ± {half:.1f} points", flush=True)
    given.reports.mkdir(parents=True, exist_ok=True)
    for seed in given.seeds:
        plan = plan_of(seed, given.backend)
        folder = given.reports / plan.run_id
        execute(plan, folder, load_backend(given.backend))
        card = judge(load_evidence(folder), folder.name)
        write_reports(card, folder)
        value = goodput(run_report.from_scorecard(card))
        said = "inside" if wanted.low <= value <= wanted.high else "OUTSIDE"
        print(f"seed {seed}: {len(plan.faults)} faults, {value:.1%}, {said}; {card.verdict}: {folder}", flush=True)


if __name__ == "__main__":
    main()
