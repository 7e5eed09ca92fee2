"""A trainer's alarm is false where no fault is at work and its own steps show nothing of what it says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from judging import Logs, steps, trainers, verdict
from simulator import Job, simulate

from harness.judge.facts.alarms import Said
from harness.judge.score import Verdict

QUIET = Job(nodes=2, ranks_per_node=2, steps=60, every=8)
NONE_FALSE = {"metrics": {"max_false_alarms": 0}}
SLOW = 1


def shape(logs: Logs, factor: float, alarm: dict[str, Any]) -> None:
    """The peers of one rank wait, so that they work `1 / factor` of each step; that rank sounds the alarm."""
    for lines in trainers(logs):
        for step in steps(lines):
            length = step["mono_ns"] - step["begin_ns"]
            waits = 0 if lines[0]["rank"] == SLOW else round(length * (1 - 1 / factor))
            step |= {"sync_ns": waits, "data_ns": 0, "checkpoint_ns": 0}
    (lines,) = trainers(logs, rank=SLOW)
    at = lines.index(steps(lines, 30, 30)[0])
    times = {key: lines[at][key] for key in ("mono_ns", "wall_ns")}
    lines.insert(at + 1, {"event": "anomaly", "detail": "slow"} | alarm | times)


@pytest.mark.parametrize(
    ("factor", "alarm", "false"),
    [
        (2, {"kind": "straggler", "slowdown": 2.0}, 0),
        (1.6, {"kind": "straggler", "slowdown": 2.0}, 0),
        (1.2, {"kind": "straggler", "slowdown": 2.0}, 1),
        (1, {"kind": "straggler", "slowdown": 2.0}, 1),
        (1.2, {"kind": "straggler", "slowdown": 2.0, "excess_ns": 1_000_000}, 0),
        (1.05, {"kind": "straggler", "slowdown": 2.0, "excess_ns": 1}, 1),
        (2, {"kind": "straggler", "slowdown": 2.0, "excess_ns": 10**12}, 1),
        (1.05, {"kind": "straggler", "slowdown": 1.001}, 1),
        (2, {"kind": "straggler", "slowdown": 1.0}, 1),
        (2, {"kind": "straggler"}, 1),
        (2, {"kind": "straggler", "slowdown": "much"}, 1),
        (2, {"kind": "hang", "slowdown": 2.0}, 1),
    ],
)
def test_an_alarm_is_false_unless_the_steps_bear_it_out(factor: float, alarm: dict[str, Any], false: int) -> None:
    card = verdict(simulate(QUIET, [], 3), lambda logs: shape(logs, factor, alarm), expect=NONE_FALSE)
    assert card.metrics["anomalies"] == 1
    assert card.metrics["false_alarms"] == false
    assert card.verdict is (Verdict.FAIL if false else Verdict.PASS), card.reasons


def test_a_trainer_that_does_not_tell_its_waits_bears_nothing_out() -> None:
    def silent(logs: Logs) -> None:
        shape(logs, 2, {"kind": "straggler", "slowdown": 2.0})
        for lines in trainers(logs):
            for step in steps(lines):
                del step["sync_ns"]

    card = verdict(simulate(QUIET, [], 3), silent, expect=NONE_FALSE)
    assert card.metrics["false_alarms"] == 1


@pytest.mark.parametrize(("suspect", "false"), [(SLOW, 0), (None, 1), (2, 1), (99, 1)])
def test_a_peer_may_tell_of_another_rank(suspect: int | None, false: int) -> None:
    def told_by_rank_0(logs: Logs) -> None:
        shape(logs, 2, {"kind": "straggler", "slowdown": 2.0, "suspect": suspect})
        (told,) = (line for lines in trainers(logs, rank=SLOW) for line in lines if line.get("event") == "anomaly")
        trainers(logs, rank=SLOW)[0].remove(told)
        trainers(logs, rank=0)[0].append(told)

    card = verdict(simulate(QUIET, [], 3), told_by_rank_0, expect=NONE_FALSE)
    assert card.metrics["false_alarms"] == false


@pytest.mark.parametrize(("late", "false"), [(0, 0), (3, 0), (5, 1)])
def test_a_fault_may_be_told_some_steps_after_it_was_healed(late: int, false: int) -> None:
    def told(logs: Logs) -> None:
        done = steps(trainers(logs, rank=0)[0])
        begin, end, at = (line["mono_ns"] for line in (done[25], done[30], done[30 + late]))
        common = {"fault": "slow", "wall_ns": done[0]["wall_ns"]}
        target = [{"node": "node1", "incarnation": 1, "rank": None}]
        logs["harness"] += [
            common | {"event": "fault.injected", "kind": "straggler", "targets": target, "may": [], "mono_ns": begin},
            common | {"event": "fault.healed", "mono_ns": end},
        ]
        trainers(logs, rank=0)[0].append(common | {"event": "anomaly", "kind": "hang", "mono_ns": at + 1})

    card = verdict(simulate(QUIET, [], 3), told, expect=NONE_FALSE)
    assert card.metrics["false_alarms"] == false


@pytest.mark.parametrize(("named", "false"), [(None, 1), (40, 0), (39, 1)])
def test_an_alarm_is_about_the_step_that_it_names(named: int | None, false: int) -> None:
    """It is told two steps later."""

    def spike(logs: Logs) -> None:
        for lines in trainers(logs):
            for step in steps(lines):
                step["grad_norm"] = 50.0 if step["step"] == 40 else 1.0
        (lines,) = trainers(logs, rank=0)
        at = lines.index(steps(lines, 42, 42)[0])
        times = {key: lines[at][key] for key in ("mono_ns", "wall_ns")}
        lines.insert(at + 1, {"event": "anomaly", "kind": "gradient", "at_step": named} | times)

    card = verdict(simulate(QUIET, [], 3), spike, expect=NONE_FALSE)
    assert card.metrics["false_alarms"] == false


@pytest.mark.parametrize(("norm", "kind", "false"), [(50.0, "gradient", 0), (2.0, "gradient", 1), (50.0, "slow", 1)])
def test_an_alarm_by_a_rule_is_held_against_the_same_rule(norm: float, kind: str, false: int) -> None:
    """The trainer and the judge read the same steps by one module."""

    def spike(logs: Logs) -> None:
        for lines in trainers(logs):
            for step in steps(lines):
                step["grad_norm"] = norm if step["step"] == 40 else 1.0
        (lines,) = trainers(logs, rank=0)
        at = lines.index(steps(lines, 40, 40)[0])
        times = {key: lines[at][key] for key in ("mono_ns", "wall_ns")}
        lines.insert(at + 1, {"event": "anomaly", "kind": kind} | times)

    card = verdict(simulate(QUIET, [], 3), spike, expect=NONE_FALSE)
    assert (card.metrics["anomalies"], card.metrics["false_alarms"]) == (1, false)


@pytest.mark.parametrize(("rank", "at", "false"), [(0, 260, 0), (0, 261, 1), (1, 260, 0)])
def test_an_alarm_late_in_a_long_life_is_about_its_own_process(rank: int, at: int, false: int) -> None:
    """The rules are applied to the last of its steps, not to all."""

    def spike(logs: Logs) -> None:
        (lines,) = trainers(logs, rank=rank)
        for step in steps(lines):
            step["grad_norm"] = 50.0 if step["step"] == 260 else 1.0
        told = steps(lines, at, at)[0]
        times = {key: told[key] for key in ("mono_ns", "wall_ns")}
        lines.insert(lines.index(told) + 1, {"event": "anomaly", "kind": "gradient"} | times)

    card = verdict(simulate(Job(nodes=2, steps=270, every=90), [], 3), spike, expect=NONE_FALSE)
    assert (card.metrics["anomalies"], card.metrics["false_alarms"]) == (1, false)


def test_what_was_never_said_answers_nothing_however_early_it_was() -> None:
    run: Any = SimpleNamespace(anomalies=[], uncertainty_ns=100)
    assert not Said(run, "divergence").of(0, (1, 3)) and not Said(run, "replica").of(0, None)
    run.anomalies = [{"kind": "divergence", "at": 5, "at_step": 9}]
    said = Said(run, "divergence")
    assert said.of(105, None) and not said.of(106, None)
    assert said.of(0, (7, 9)) and not said.of(0, (7, 8)) and not said.of(106, (7, 9))
    run.anomalies.append({"kind": "divergence", "at": 50})
    assert Said(run, "divergence").of(150, (7, 8)), "of any step"
