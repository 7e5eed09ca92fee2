"""What must hold for any history: the names of files and ranks and the origin of clocks change nothing."""

import hashlib
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import EXPECT, fault_free_of, load, verdict
from simulator import KINDS, History, Job, Logs, Outage, change, simulate, steps

from harness.evidence import ledger
from harness.judge.verdict import Verdict
from harness.report import run_report
from harness.timeline.timeline import Timeline

pytestmark = pytest.mark.slow  # hundreds of histories
OUTAGES = st.lists(
    st.builds(
        Outage,
        after=st.integers(2, 15),
        kind=st.sampled_from(KINDS),
        victim=st.integers(0, 2),
        again=st.sampled_from([None, "startup", "rendezvous", "restore"]),
        regrow_after=st.integers(1, 6),
    ),
    min_size=1,
    max_size=3,
)
HISTORIES = st.builds(
    simulate,
    st.builds(
        Job, nodes=st.integers(1, 3), ranks_per_node=st.integers(1, 2), steps=st.just(30), every=st.integers(3, 9)
    ),
    OUTAGES,
    st.integers(0, 10**6),
)


def times(episodes: Iterable[Any]) -> list[tuple[int | None, ...]]:
    return [(each.t_stop, each.t_first, each.t_regained) for each in episodes]


def figures(run: Timeline) -> dict[str, Any]:
    """All that the scores are made of, with times from the run's begin."""
    booked = ledger.settle(run, {}, [(e.t_stop, e.end) for e in run.episodes])
    return {
        "segments": [(s.phase, s.begin - run.begin, s.end - run.begin) for s in run.segments],
        "episodes": [(e.t_stop - run.begin, e.end - run.begin, e.furthest_step, e.faults) for e in run.episodes],
        "accounts": booked.accounts,
        "by_faults": booked.by_faults,
        "lost": int((~run.steps.survives).sum()),
    }


@settings(max_examples=25, deadline=None)
@given(HISTORIES, st.integers(-(10**9), 10**15), st.integers(-(10**9), 10**15))
def test_the_origin_of_the_clocks_does_not_matter(history: History, wall: int, mono: int) -> None:
    logs = history.logs()
    for line in (line for lines in logs.values() for line in lines):
        line["wall_ns"] += wall
        line["mono_ns"] += mono
        if "begin_ns" in line:
            line["begin_ns"] += mono
    assert figures(load(history, logs)) == figures(load(history))


@settings(max_examples=25, deadline=None)
@given(HISTORIES, st.integers(0, 100))
def test_the_order_of_the_files_does_not_matter(history: History, salt: int) -> None:
    def scrambled(name: str) -> str:
        return name if name == "harness" else hashlib.sha256(f"{salt} {name}".encode()).hexdigest()

    assert figures(load(history, rename=scrambled)) == figures(load(history))


@settings(max_examples=25, deadline=None)
@given(HISTORIES, st.sampled_from([16, 48, 100]))
def test_coarse_clocks_lose_no_step_and_no_time(history: History, grain_ms: int) -> None:
    """A step takes 48 ms: much happens at the same moment."""

    def coarsen(logs: Logs) -> Logs:
        for line in (line for lines in logs.values() for line in lines):
            times = {key: line[key] for key in ("mono_ns", "wall_ns", "begin_ns") if key in line}
            line |= {key: at - at % (grain_ms * 10**6) for key, at in times.items()}
        return logs

    run = load(history, coarsen(history.logs()))
    assert sorted(run.steps.step.tolist()) == sorted(load(history).steps.step.tolist())
    booked = ledger.settle(run, {}, [(e.t_stop, e.end) for e in run.episodes])
    assert sum(booked.accounts.values()) == booked.allocated
    assert not [text for text in verdict(history, coarsen, EXPECT).reasons if "crashed" in text]


@settings(max_examples=25, deadline=None)
@given(HISTORIES, st.randoms())
def test_the_numbers_of_the_ranks_do_not_matter(history: History, random: Any) -> None:
    logs = history.logs()
    other = list(range(100))
    random.shuffle(other)
    for line in (line for lines in logs.values() for line in lines):
        if line.get("rank") is not None:
            line["rank"] = other[line["rank"]]
        change(line.get("targets", ()), rank=lambda target: None if target["rank"] is None else other[target["rank"]])
    assert figures(load(history, logs)) == figures(load(history))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(21, 60))
def test_more_healthy_steps_never_lower_goodput(seed: int, steps: int) -> None:
    def goodput(count: int) -> float:
        run = load(simulate(Job(steps=count), [Outage(15, "rank")], seed))
        booked = ledger.settle(run, {}, [])
        finish = sum(s.end - s.begin for s in run.segments if s.phase == "finish") * len(run.slots)
        return booked.accounts["productive"] / (booked.allocated - finish)

    assert goodput(steps) >= goodput(20)


@settings(max_examples=15, deadline=None)
@given(HISTORIES, st.integers(1, 10**11), st.integers(1, 10**11))
def test_a_stricter_bound_never_turns_a_failure_into_a_pass(history: History, one: int, other: int) -> None:
    strict, lax = sorted((one, other))
    ranks = [Verdict.FAIL, Verdict.INVALID, Verdict.INCONCLUSIVE, Verdict.PASS]
    found = [verdict(history, expect={"recovery_time": {"max": f"{b}ns"}}).verdict for b in (strict, lax)]
    assert ranks.index(found[0]) <= ranks.index(found[1])


@settings(max_examples=15, deadline=None)
@given(HISTORIES)
def test_the_recovery_is_the_sum_of_its_phases(history: History) -> None:
    report = run_report.from_scorecard(verdict(history, expect=EXPECT, fault_free=fault_free_of(history.job))).to_json()
    for episode in report["scores"]["recovery_time"]["episodes"]:
        assert sum(episode["phases"].values()) == pytest.approx(episode["seconds"], abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), OUTAGES, st.integers(0, 10**6))
def test_a_trainer_without_a_launcher_of_ours(nodes: int, outages: list[Outage], seed: int) -> None:
    """Anybody's trainer: no launcher events. Phases are coarser, episodes and lost steps are the same."""
    history = simulate(Job(nodes=nodes, steps=30, every=5, agents=False), outages, seed)
    run = load(history)
    assert times(run.episodes) == times(history.truth.episodes)
    lost = sum(not row.survives for row in history.truth.rows)
    assert int((~run.steps.survives).sum()) == lost
    booked = ledger.settle(run, {}, [])
    assert sum(booked.accounts.values()) == booked.allocated


@settings(max_examples=30, deadline=None)
@given(HISTORIES)
def test_steps_alone_give_the_same_recovery_time(history: History) -> None:
    # All that a trainer which logs nothing but steps leaves behind.
    logs = history.logs()
    for lines in logs.trainers():
        lines[1:] = steps(lines)
    run = load(history, Logs({name: lines for name, lines in logs.items() if not name.startswith("agent")}))
    assert times(run.episodes) == times(history.truth.episodes)
