"""What scores and charts share is computed once, so that they cannot say different things."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from judging import load, verdict
from mutants.bent import JOB
from simulator import Logs, Outage, change, remove, simulate

from harness.evidence import by_time
from harness.judge.facts import analysis
from harness.judge.facts.analysis import Analysis
from harness.judge.score import Evidence
from harness.judge.verdict import Verdict
from harness.report import drawing
from harness.timeline.sorted_events import acted_at


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


def test_the_jumps_of_each_process_are_its_own() -> None:
    history = simulate(JOB, [Outage(17, "rank", victim=1)], 5)
    logs, holes = history.logs(), {(0, 0): {3}, (1, 0): {3, 5, 6}, (1, -1): {20, 22}}
    for (rank, life), lost in holes.items():
        lines = logs.trainers(rank=rank, life=life)[0]
        remove(lines, lambda line, lost=lost: line.get("event") == "step" and line["step"] in lost)  # type: ignore[misc]
    run = load(history, logs)
    lives = sorted(range(len(run.processes)), key=lambda row: (run.processes[row].rank, run.processes[row].started))
    assert analysis.Analysis.of(Evidence(run)).jumps[lives].tolist() == [1, 0, 2, 2]


def test_faults_at_work_leave_out_the_steps_that_a_restart_repeats() -> None:
    run = load(simulate(JOB, [Outage(17, "rank", victim=1)], 5))
    [fault] = run.faults
    run = replace(run, faults=[replace(fault, healed=None)])
    again = next(restart for restart in Analysis.of(Evidence(run)).restarts if restart.number)
    rows = run.steps.epoch == run.epochs.index(again.epoch)
    repeated = rows & (run.steps.step <= 17)

    spans = run.steps.begin[repeated], run.steps.end[repeated]

    def met(windows: Sequence[by_time.Window]) -> list[bool]:
        return [by_time.touches(windows, *span) for span in zip(*spans, strict=True)]

    evidence = Analysis.of(Evidence(run))
    assert all(met(evidence.disturbed)) and len(met([])) > 2 and not any(met(evidence.faults_at_work))
    at = acted_at(fault)
    assert evidence.faults_at_work == [(at, at)]
    slow = replace(fault, may=frozenset(), healed=None)
    assert Analysis.of(Evidence(replace(run, faults=[slow]))).faults_at_work == [(at, run.end)]
    held = replace(fault, injecting=at - 5, healed=at + 7)
    other = Analysis.of(Evidence(replace(run, faults=[held, replace(fault, injected=None, injecting=None)])))
    assert other.faults_at_work == [(at - 5, at + 7)]
