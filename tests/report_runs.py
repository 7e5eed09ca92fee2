"""Runs of every kind, for tests of reports: simulated and judged, so that nothing has to be launched."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from judging import EXPECT, SAVES, Bend, expecting, fault_free_of, load, together
from mutants.bent import stuck
from simulator import Job, Logs, Outage, change, simulate

from harness.judge.score import Evidence, Expectation, Scorecard, judge
from harness.judge.verdict import Verdict

JOB = Job(nodes=2, steps=300, every=20)
LOST = Outage(90, "node", victim=1)  # the job goes on from step 80


def judged(job: Job, outages: Sequence[Outage], *bends: Bend, alone: bool = False) -> Scorecard:
    """`alone`: without a fault-free run to compare with."""
    history = simulate(job, outages, seed=5)
    logs = expecting(history.logs(), EXPECT | {"wasted_gpu_hours": {"max_percent_by_faults": 25}})
    together(*bends)(logs)
    logs.plan["scenario"] |= {"name": "spot-evict", "title": "A spot node is reclaimed and a replacement arrives"}
    return judge(Evidence(load(history, logs), None if alone else fault_free_of(job)), "spot-evict-7")


@functools.cache
def spot_evict() -> Scorecard:
    return judged(JOB, [LOST])


@functools.cache
def double_evict() -> Scorecard:
    return judged(Job(nodes=4, steps=900, every=20), [LOST, Outage(50, "node", victim=0)])


@functools.cache
def never_recovered() -> Scorecard:
    """It stood still in its rendezvous when the harness gave up."""
    return judged(JOB, [LOST], stuck)


@functools.cache
def thousand_ranks() -> Scorecard:
    """One of them is killed."""
    return judged(Job(nodes=125, ranks_per_node=8, steps=12, every=5), [Outage(7, "rank", victim=77)], alone=True)


@functools.cache
def meshed() -> Scorecard:
    """One of 64 ranks is killed, and each tells its place."""
    job = Job(nodes=8, ranks_per_node=8, steps=60, mesh=(("pp", 4), ("dp", 4), ("tp", 4)))
    return judged(job, [Outage(37, "rank", victim=5)])


@functools.cache
def long_run() -> Scorecard:
    """10,000 steps, losses that differ after the second fault, and some that are not numbers."""

    def astray(logs: Logs) -> None:
        change(logs.steps(6481), loss=lambda line: line["loss"] * (1 + 1e-6 * (line["step"] - 6480)))
        change(logs.steps(8001, 8039), loss="nan")

    outages = [Outage(after, "rank", victim=victim) for after, victim in ((3000, 1), (3520, 0), (50, 1))]
    return judged(Job(nodes=2, steps=10_000, every=20), outages, astray)


@functools.cache
def empty() -> Scorecard:
    """The trainer never did a step."""

    def fails(logs: Logs) -> None:
        logs.lose("step", "restored", *SAVES)
        logs.harness[-1].update(outcome="failed", reason="the command on node0 ended with 1")

    return judged(JOB, [], fails)


@functools.cache
def no_outage() -> Scorecard:
    """A run without any fault, and nothing to compare it with."""
    return replace(judged(Job(nodes=1, steps=40), [], alone=True), expectations=[])


def with_run(card: Scorecard, **changes: Any) -> Scorecard:
    """The card of a run that differs so."""
    return replace(card, evidence=replace(card.evidence, run=replace(card.evidence.run, **changes)))


def hostile() -> Scorecard:
    """Names and reasons that try to be markup."""
    evil = '<script>alert("x")</script>|`*_\x1b[31m\u202e\x9b2J[red]'
    card = replace(spot_evict(), run_id=evil, scenario=evil, title=evil, backend=evil)
    run, effects = card.evidence.run, ({"measured": evil, "unit": evil},)
    fault = replace(run.faults[0], id=evil, kind=evil, error=evil, targets=({"node": evil},), effects=effects)
    card = with_run(
        card,
        plan={"scenario": {"name": evil}},
        processes=[replace(p, node=evil, source=evil, exit_reason=evil) for p in run.processes],
        faults=[fault],
        notices=[{"at": run.begin, "node": evil, "source": evil}],
        anomalies=[{"at": run.begin, "kind": evil, "detail": evil}],
        problems=[evil],
        torn=[evil],
    )
    lines = [Expectation(evil, evil, evil, Verdict.FAIL, evil)]
    return replace(card, reasons=[evil, evil], environment={evil: evil}, metrics={evil: evil}, expectations=lines)
