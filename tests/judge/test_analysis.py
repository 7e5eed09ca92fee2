"""What scores and charts share is computed once, so that they cannot say different things."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
from judging import load, verdict
from mutants.bent import JOB
from simulator import Logs, Outage, change, remove, simulate

from harness.judge.facts import analysis, ledger, losses, usual
from harness.judge.score import Evidence
from harness.judge.verdict import Verdict
from harness.report import drawing


def test_the_chart_draws_the_losses_that_were_judged() -> None:
    card = verdict(simulate(JOB, [Outage(17, "rank", victim=1)], 5), lambda logs: change(logs.steps(rank=0), loss=None))
    ours = drawing.curves(card.evidence).ours
    assert np.isfinite(ours.loss).all() and len(ours.loss) == JOB.steps
    assert ours.loss.tolist() == card.evidence.curve.loss.tolist()
    assert card.scores["loss_continuity"]["steps_compared"] == JOB.steps


def test_the_chart_leaves_out_a_tail_that_was_not_judged() -> None:
    history = simulate(JOB, [], 5)
    card = verdict(history, lambda logs: logs[trainers_last(logs)].pop(), expect={})
    assert card.verdict is not Verdict.PASS
    assert drawing.curves(card.evidence).ours.step.tolist() == card.evidence.curve.step.tolist()


def trainers_last(logs: Logs) -> str:
    name = max(name for name in logs if name.startswith("trainer"))
    while logs[name][-1].get("event") != "step":
        logs[name].pop()
    return name


def test_each_figure_is_worked_out_once() -> None:
    history = simulate(replace(JOB, steps=30), [Outage(17, "rank", victim=1)], 5)
    counted = [(ledger, "settle"), (analysis, "Usual"), (analysis, "Slowed"), (usual, "pace")]
    with mock.patch.object(losses, "surviving", wraps=losses.surviving) as surviving:
        spies = [mock.patch.object(module, name, wraps=getattr(module, name)) for module, name in counted]
        calls = [spy.start() for spy in spies]
        card = verdict(history)
        drawing.curves(card.evidence)
        for spy in spies:
            spy.stop()
    assert [call.call_count for call in calls] == [1, 1, 1, 1]
    assert surviving.call_count == 2, "once for the run, once for its fault-free run"


def test_the_jumps_of_each_process_are_its_own() -> None:
    history = simulate(JOB, [Outage(17, "rank", victim=1)], 5)
    logs, holes = history.logs(), {(0, 0): {3}, (1, 0): {3, 5, 6}, (1, -1): {20, 22}}
    for (rank, life), lost in holes.items():
        lines = logs.trainers(rank=rank, life=life)[0]
        remove(lines, lambda line, lost=lost: line.get("event") == "step" and line["step"] in lost)  # type: ignore[misc]
    run = load(history, logs)
    lives = sorted(range(len(run.processes)), key=lambda row: (run.processes[row].rank, run.processes[row].started))
    assert analysis.Analysis.of(Evidence(run)).jumps[lives].tolist() == [1, 0, 2, 2]
