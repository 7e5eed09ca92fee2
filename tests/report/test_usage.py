"""Figures of the job as a whole, and bytes on links and use of GPUs from counters: what was not measured is `None`."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import verdict
from mutants import bent
from simulator import Job, Logs, Outage, clocks, put, simulate

from harness.evidence.logs import Evidence
from harness.judge.facts.analysis import Analysis
from harness.report import usage
from harness.report.figures import metrics

JOB = Job(nodes=2, steps=40, every=10)
SECOND = 10**9


def figures(*samples: dict[str, Any], outages: tuple[Outage, ...] = ()) -> dict[str, Any]:
    """Each sample is told by `rank` in its process `life`, `at` seconds after that process's first line."""

    def bend(logs: Logs) -> None:
        for sample in samples:
            lines = logs.trainers(sample["rank"], sample.get("life", 0))[0]
            after = int(sample["at"] * SECOND)
            stamp = clocks(lines[0], after)
            told = {key: value for key, value in sample.items() if key not in ("rank", "life", "at")}
            put(lines, stamp | {"event": "usage"} | told)

    metrics = usage.figures(verdict(simulate(JOB, list(outages), seed=3), bend).evidence.run)
    return {key: value for key, value in metrics.items() if key.startswith(("network", "gpu_", "nvlink"))}


def eth(received: int, sent: int = 0) -> list[dict[str, Any]]:
    return [{"link": "eth0", "received_bytes": received, "sent_bytes": sent}]


NOTHING = {f"network_bytes_per_second{suffix}": None for suffix in ("", "_max")}
NOTHING |= dict.fromkeys(("gpu_busy_percent", "gpu_memory_bytes_max", "nvlink_bytes_per_second"))


def test_nothing_is_known_of_a_single_sample_and_shared_links_count_once() -> None:
    assert figures() == NOTHING
    assert figures({"rank": 0, "at": 0, "links": eth(10)}) == NOTHING
    told = [{"at": at, "links": eth(int(1000 * at)), "namespace": "m 1"} for at in (0, 0.5)]
    shared = figures(*({"rank": rank} | each for rank in (0, 1) for each in told))
    assert list(shared["network_bytes_per_second"]) == ["node0 eth0"]


def at(rank: int, second: float, received: int, sent: int = 0) -> dict[str, Any]:
    return {"rank": rank, "at": second, "links": eth(received, sent)}


def test_bytes_by_node_and_link_and_a_counter_that_began_again_is_no_traffic() -> None:
    found = figures(at(0, 0, 100, 50), at(0, 0.5, 1100, 550), at(1, 0, 0), at(1, 0.5, 500))
    assert found["network_bytes_per_second"] == {"node0 eth0": 3000, "node1 eth0": 1000}
    assert found["network_bytes_per_second_max"] == 3000
    again = figures(at(0, 0, 10**12), at(0, 0.2, 0), at(0, 0.4, 200))
    assert again["network_bytes_per_second"] == {"node0 eth0": 1000}


def test_gpus() -> None:
    gpu = {"gpu": 0, "memory_bytes": 5, "memory_bytes_total": 10}
    found = figures(
        {"rank": 0, "at": 0, "gpus": [gpu | {"busy_percent": 0, "nvlink_bytes": 0}]},
        {"rank": 0, "at": 0.5, "gpus": [gpu | {"busy_percent": 100, "nvlink_bytes": 50, "memory_bytes": 7}]},
        {"rank": 1, "at": 0, "gpus": [{"gpu": 0}]},
    )
    assert (found["gpu_busy_percent"], found["gpu_memory_bytes_max"], found["nvlink_bytes_per_second"]) == (50, 7, 100)


def test_null_is_what_was_not_told() -> None:
    link = {"link": "eth0", "received_bytes": None, "sent_bytes": None}
    gpu = {"gpu": 0, "busy_percent": None, "memory_bytes": None, "nvlink_bytes": None}
    found = figures(*({"rank": 0, "at": at, "links": [link], "gpus": [gpu]} for at in (0, 0.5)))
    assert found["gpu_busy_percent"] is found["gpu_memory_bytes_max"] is found["nvlink_bytes_per_second"] is None
    assert found["network_bytes_per_second_max"] == 0


@pytest.mark.parametrize("odd", ["nan", "inf", 1e308, -5, 101])
def test_what_is_no_share_of_time_is_left_out(odd: object) -> None:
    samples = [{"rank": 0, "at": at, "gpus": [{"gpu": 0, "busy_percent": busy}]} for at, busy in enumerate([odd, odd])]
    assert figures(*samples)["gpu_busy_percent"] is None
    samples.append({"rank": 1, "at": 0.5, "gpus": [{"gpu": 1, "busy_percent": 40}]})
    assert figures(*samples)["gpu_busy_percent"] == 40


@settings(max_examples=20, deadline=None)
@given(counts=st.lists(st.integers(0, 2**60), min_size=2, max_size=6))
def test_no_counter_is_faster_than_what_it_moved_forwards(counts: list[int]) -> None:
    """Whatever it does: goes back, wraps, jumps. It never decides a verdict."""
    found = figures(*({"rank": 0, "at": 0.1 * n, "links": eth(count)} for n, count in enumerate(counts)))
    rate = found["network_bytes_per_second_max"]
    forwards = [after - before for before, after in itertools.pairwise(counts) if after >= before]
    assert rate == pytest.approx(sum(forwards) / 0.1 / len(forwards)) if forwards else rate is None


def test_time_requeues_and_cost() -> None:
    card = verdict(simulate(bent.JOB, bent.KILL, seed=5))
    run, figures = card.evidence.run, metrics(card)
    assert figures["time_to_complete_seconds"] == (run.end - run.begin) / SECOND
    assert figures["requeues_per_hour"] == 0.0 and figures["dollars_per_million_samples"] is None
    stopped = Analysis.of(Evidence(replace(run, outcome="interrupted")))
    assert metrics(replace(card, evidence=stopped))["time_to_complete_seconds"] is None
    priced = replace(run, plan={**run.plan, "scenario": {**run.plan["scenario"], "price_per_gpu_hour": 3.6}})
    gpu_s = sum(slot.released - slot.allocated for slot in run.slots) / SECOND
    kept = run.steps.survives
    samples = float(sum(dict(zip(run.steps.step[kept].tolist(), run.steps.count[kept].tolist(), strict=True)).values()))
    figures = metrics(replace(card, evidence=Analysis.of(Evidence(priced))))
    assert figures["dollars_per_million_samples"] == pytest.approx(gpu_s * 1000 / samples)
    assert figures["dollars_per_epoch"] is None, "nobody tells how many samples a pass has"
    sized = replace(priced, data_sizes=[5000])
    epoch = metrics(replace(card, evidence=Analysis.of(Evidence(sized))))["dollars_per_epoch"]
    assert epoch == pytest.approx(gpu_s * 1000 / samples * 5000 / 1e6)
