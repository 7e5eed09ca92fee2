"""Whole reports, figure by figure, as they were when somebody last looked at them; and bugs that show in the log alone.

PYTHONPATH=tests python tests/judge/test_golden.py      writes them anew; look at the difference before you commit it
"""

import json
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from docs.test_metrics_doc import example
from judge.test_slowdown import JOB as SLOW_JOB
from judge.test_slowdown import slowed
from judging import EXPECT, Bend, fault_free_of, verdict
from mutants.bent import BROKEN, JOB, NEIGHBOURS, Bent
from scorecards import assert_verdict
from simulator import Job, Logs, Outage, change, clocks, find, put, simulate, steps

from harness.campaign.fault_free import fault_free_plans
from harness.judge.score import Evidence, Scorecard, judge
from harness.judge.verdict import Verdict
from harness.plan.making import make_plan
from harness.report import run_report
from harness.spec.scenario import parse_scenario
from harness.timeline import timeline

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "reports.json"
EVERYTHING: dict[str, Any] = {
    "recovery_time": {"max": "60s", "first_step_max": "50s", "phases": {"startup": "9s", "recompute": "1ms"}},
    "wasted_gpu_hours": {
        "max_percent": 50,
        "max_percent_by_faults": 99,
        "max_gpu_seconds": 1000,
        "max_gpu_seconds_by_faults": 1,
    },
    "loss_continuity": {"mode": "ulp", "max_ulp": 2, "max_spike": 0.5},
    "metrics": {
        "step_p50_max": "1s",
        "step_p95_max": "1s",
        "step_p99_max": "1ms",
        "detection_max": "10s",
        "checkpoint_success_min": 100,
        "resume_success_min": 100,
        "max_false_alarms": 0,
        "steps_rolled_back_max": 0,
    },
}
BIG = Job(nodes=3, ranks_per_node=2, steps=70, every=7, foreign_clocks=True)
STORY = [
    Outage(12, "rank", victim=1, torn=True),
    Outage(9, "notice", victim=2),
    Outage(8, "node", victim=0, again="restore"),
    Outage(9, "shrink", victim=1, regrow_after=6),
    Outage(6, "rollback"),
    Outage(5, "crash"),
]
SMALL = Job(nodes=2, ranks_per_node=2, steps=70, every=7)


def documented() -> Scorecard:
    with tempfile.TemporaryDirectory() as folder:
        example(pathlib.Path(folder) / "events")
        run = timeline.load(pathlib.Path(folder))
        return judge(Evidence(run, run), "example")


def eventful() -> Scorecard:
    calibration = [fault_free_of(SMALL, seed) for seed in (1, 2)]
    plain = Job(**{**BIG.__dict__, "foreign_clocks": False})
    return verdict(
        simulate(BIG, STORY, 11), expect=EVERYTHING, fault_free=fault_free_of(plain), calibration=calibration
    )


def shrunk() -> Scorecard:
    history = simulate(Job(nodes=2, steps=50, every=10), [Outage(15, "shrink", victim=1, regrow_after=9)], 4)
    calibration = [fault_free_of(Job(nodes=1, steps=50, every=10), seed) for seed in (1, 2)]
    expect = EXPECT | {"loss_continuity": {"mode": "envelope"}}
    return verdict(history, expect=expect, calibration=calibration)


def dragged() -> Scorecard:
    bend: Bend = lambda logs: slowed(logs, 30, 50, 3.0, healed=10**9)  # noqa: E731
    return verdict(simulate(SLOW_JOB, seed=1), bend, EVERYTHING, fault_free=fault_free_of(SLOW_JOB))


def alarmed() -> Scorecard:
    """What trainers tell besides: alarms, failed saves, checkpoints passed over; and what they leave out."""

    def bend(logs: Logs) -> None:
        workers = [lines for name, lines in logs.items() if name.startswith("trainer")]
        stamp = clocks(steps(workers[0], 5, 5)[0])
        put(
            workers[0],
            stamp | {"event": "anomaly", "kind": "straggler", "detail": "rank 1"},
            stamp | {"event": "checkpoint.failed", "step": 4, "kind": "periodic", "error": "disk full"},
        )
        for lines in workers[2:]:
            find(lines, "restored")["fallback"] = [{"path": "checkpoints/step-99", "reason": "checksum"}]
            change(steps(lines), "lr", "count")

    return verdict(simulate(JOB, [Outage(17, "rank", victim=1)], 5), bend, EVERYTHING)


PLANNED = """
version: 1
name: everything
title: Every trigger and every target
tags: [a, b]
price_per_gpu_hour: 2.5
workload: {trainer: reference, nodes: 4, ranks_per_node: 2, min_nodes: 3, steps: 500, checkpoint: {every_steps: 25}}
faults:
  - {id: step, fault: rank_kill, when: {step: 40}, target: {rank: 3}}
  - {id: after, fault: rank_kill, when: {after: 30s}, target: {rank: any}, signal: SIGABRT}
  - {id: phase, fault: node_loss, when: {step: 90, phase: checkpoint.write}, target: {node: {not_rank: 0}}}
  - {id: following, fault: node_loss, when: {following: phase, event: recovered, after: 2s}, target: {node: any}}
  - {id: every, fault: straggler, when: {every: 60s, times: 3}, target: {node: {percent: 50}}}
  - {id: rate, fault: preemption, when: {rate: 20/h, times: 3}, target: {node: {count: 2}}, notice: 3s}
  - {id: all, fault: preemption, when: {following: step}, target: {node: all}, replacement: {after: 5s}}
expect: {recovery_time: {max: 60s}}
abort: {if_no_step_for: 90s, wall_clock: 10m}
"""


def planned() -> dict[str, Any]:
    """No run: what is planned for a scenario, and for its fault-free runs."""
    plan = make_plan(parse_scenario(PLANNED, "everything.yaml"), 7, "local", "run", "cluster")
    whole = plan.to_json()
    for fault in whole["faults"][2:]:
        del fault["parameters"]  # of whatever the faults' own defaults are
    return {
        "plan": whole,
        "fault_free": plan.without_faults("fault_free").to_json()["workload"],
        "smaller": plan.without_faults("smaller", nodes=3).to_json()["workload"],
        "calibration": [
            other.plan.to_json()["workload"]["nodes"] for other in list(fault_free_plans(plan).values())[1:]
        ],
    }


def plain() -> Scorecard:
    return verdict(simulate(JOB, [Outage(17, "rank", victim=1)], 5), expect=EXPECT)


CASES: dict[str, Callable[[], Scorecard]] = {
    case.__name__: case for case in (documented, eventful, shrunk, dragged, alarmed, plain)
}
MUTANTS = {f"broken: {mutant.name}": mutant for mutant in BROKEN}
NAMES = ["planned", *CASES, *MUTANTS]


def report(name: str) -> dict[str, Any]:
    """Of a broken run only what is said of it, which is right: no other report of it is written."""
    if name == "planned":
        return planned()
    card = MUTANTS[name].judge() if name in MUTANTS else CASES[name]()
    whole = run_report.from_scorecard(card).to_json()
    if name in MUTANTS:
        assert_verdict(card, MUTANTS[name].verdict, MUTANTS[name].reason)
        return {key: whole[key] for key in ("verdict", "reasons", "metrics")}
    run = card.evidence.run
    return whole | {"phases": [[s.phase, s.begin - run.begin, s.end - run.begin, s.epoch] for s in run.segments]}


def differences(found: Any, expected: Any, where: str = "") -> list[str]:
    if isinstance(found, dict) and isinstance(expected, dict):
        return [
            line
            for key in expected  # a report may come to hold more
            for line in differences(found.get(key, "no value"), expected[key], f"{where}.{key}")
        ]
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        return [line for n, (one, other) in pairs for line in differences(one, other, f"{where}[{n}]")]
    numbers = isinstance(found, float) and isinstance(expected, int | float)
    same = found == pytest.approx(expected, rel=1e-9, abs=1e-12) if numbers else found == expected
    return [] if same else [f"{where}: {found!r} instead of {expected!r}"]


@pytest.mark.parametrize("name", NAMES)
def test_the_report_is_the_one_looked_at(name: str) -> None:
    expected = json.loads(GOLDEN.read_text())[name]
    assert differences(json.loads(json.dumps(report(name))), expected) == []


@pytest.mark.parametrize("neighbour", NEIGHBOURS, ids=lambda neighbour: neighbour.name)
def test_a_healthy_neighbour_of_a_broken_run_passes(neighbour: Bent) -> None:
    assert_verdict(neighbour.judge(), Verdict.PASS)


def test_no_report_is_left_over() -> None:
    assert sorted(json.loads(GOLDEN.read_text())) == sorted(NAMES)


def test_a_difference_is_found() -> None:
    assert differences({"a": [1.0, {"b": None}], "new": 1}, {"a": [1, {"b": 2}], "c": 0}) == [
        ".a[1].b: None instead of 2",
        ".c: 'no value' instead of 0",
    ]


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    lines = (f"{json.dumps(name)}: {json.dumps(report(name), separators=(',', ':'))}" for name in NAMES)
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
