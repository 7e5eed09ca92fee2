"""Simulated histories with known figures: the timeline and the ledger must find them to the nanosecond."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import load, verdict
from simulator import KINDS, History, Job, Logs, Outage, change, simulate

from harness.evidence import ledger
from harness.evidence.usual import Usual
from harness.judge.thresholds import QUANTILE
from harness.judge.verdict import Verdict
from harness.timeline.timeline import Timeline

JOBS = st.builds(
    Job,
    nodes=st.integers(1, 4),
    ranks_per_node=st.integers(1, 3),
    steps=st.integers(20, 50),
    every=st.integers(3, 12),
    foreign_clocks=st.booleans(),
)
OUTAGES = st.lists(
    st.builds(
        Outage,
        after=st.integers(1, 20),
        kind=st.sampled_from(KINDS),
        victim=st.integers(0, 3),
        again=st.sampled_from([None, None, "startup", "rendezvous", "restore"]),
        regrow_after=st.integers(1, 8),
        torn=st.booleans(),
    ),
    max_size=5,
)


def plain_bands(fault_free: History) -> dict[int, tuple[int, int]]:
    """The band of the fault-free run's steps by its definition, with plain lists."""
    lengths = [(row.end - row.begin - row.data_ns - row.checkpoint_ns, row.warm_up) for row in fault_free.truth.rows]
    usual = sorted(length for length, warm_up in lengths if not warm_up)
    upper = usual[math.ceil(QUANTILE * (len(usual) - 1))]
    world = fault_free.job.nodes * fault_free.job.ranks_per_node
    return {world: (upper, max(upper, *(length for length, warm_up in lengths if warm_up)))}


def joined(intervals: Sequence[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    result: list[tuple[str, int, int]] = []
    for phase, begin, end in intervals:
        if result and result[-1][0] == phase:
            result[-1] = (phase, result[-1][1], end)
        else:
            result.append((phase, begin, end))
    return result


def check(history: History, found: Timeline) -> None:
    truth = history.truth
    assert joined([(segment.phase, segment.begin, segment.end) for segment in found.segments]) == joined(truth.phases)
    assert [(e.t_stop, e.t_first, e.t_regained) for e in found.episodes] == [
        (e.t_stop, e.t_first, e.t_regained) for e in truth.episodes
    ]
    assert [e.phases_ns for e in found.episodes] == [dict(e.phases) for e in truth.episodes]
    assert [set(e.faults) for e in found.episodes] == [set(e.faults) for e in truth.episodes]
    lost = sorted((row.step, row.begin, row.end) for row in truth.rows if not row.survives)
    gone = ~found.steps.survives
    columns = (found.steps.step[gone], found.steps.begin[gone], found.steps.end[gone])
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == lost


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(JOBS, OUTAGES, st.integers(0, 10**6))
def test_any_history_is_read_to_the_nanosecond(job: Job, outages: list[Outage], seed: int) -> None:
    history = simulate(job, outages, seed)
    found = load(history)
    check(history, found)
    fault_free = simulate(Job(**job.__dict__), (), seed + 1)
    bands = Usual([load(fault_free)]).bands
    assert {size: (band.upper, band.first) for size, band in bands.items()} == plain_bands(fault_free)
    booked = ledger.settle(found, bands, [(e.t_stop, e.end) for e in found.episodes])
    assert {name: amount for name, amount in booked.accounts.items() if amount} == history.truth.ledger(
        plain_bands(fault_free)
    )
    assert sum(booked.accounts.values()) == booked.allocated
    assert booked.allocated == sum(released - allocated for allocated, released in history.truth.slots.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("again", [None, "startup", "rendezvous", "restore"])
def test_each_kind_of_outage(kind: str, again: str | None) -> None:
    history = simulate(Job(nodes=3, steps=60), [Outage(23, kind, victim=1, again=again, regrow_after=5)], seed=3)
    assert history.truth.episodes
    check(history, load(history))


def test_a_target_without_an_incarnation_is_the_first_of_its_node() -> None:
    def untold(logs: Logs) -> None:
        change((target for line in logs.harness for target in line.get("targets") or ()), incarnation=None)

    card = verdict(simulate(Job(nodes=2, steps=24, every=6), [Outage(9, "rank", victim=1)], 3), untold)
    assert (card.verdict, len(card.evidence.run.faults)) == (Verdict.PASS, 1), card.reasons
