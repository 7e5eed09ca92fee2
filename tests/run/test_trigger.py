from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.plan.run_plan import Limits, PlannedFault
from harness.run.live_progress import FAILPOINTS_REMEMBERED, NAME_LENGTH_MAX, PHASES_REMEMBERED, LiveProgress
from harness.run.trigger import Firing, obstacle
from harness.run.trigger_holds import TriggerHolds

SECOND = 10**9


def fault(identity: str = "a", kind: str = "rank_kill", on: int = 0, **when: Any) -> PlannedFault:
    target = {"node_index": on, "rank": on if kind == "rank_kill" else None}
    return PlannedFault(id=identity, fault=kind, parameters={}, when=when, targets=(target,))


def trainer(rank: int) -> dict[str, Any]:
    return {"role": "trainer", "rank": rank, "node": f"node{rank}", "incarnation": 1, "pid": 10 + rank}


def job(ranks: int = 2) -> LiveProgress:
    progress = LiveProgress()
    for rank in range(ranks):
        progress.absorb(trainer(rank), {"event": "started"}, 1)
        progress.absorb(trainer(rank), {"event": "rendezvous", "world_size": ranks}, 2)
        progress.absorb(trainer(rank), {"event": "restored", "step": 0}, 3)
    return progress


def step(progress: LiveProgress, rank: int, number: int, now_ns: int = 4) -> None:
    progress.absorb(trainer(rank), {"event": "step", "step": number, "loss": 1.0}, now_ns)


def test_a_step_is_complete_when_every_rank_has_done_it_and_the_newest_save_is_the_furthest() -> None:
    progress = job()
    firing = Firing(fault(step=5), 0)
    step(progress, 0, 5)
    assert not firing.due(progress, {}, 0, 10)
    step(progress, 1, 5)
    assert firing.due(progress, {}, 0, 10)
    for rank, number in ((0, 10), (1, 30), (0, 20)):
        progress.absorb(trainer(rank), {"event": "checkpoint.committed", "step": number}, 5)
    assert progress.committed_step == 30


def test_a_trainer_that_does_not_tell_its_start_is_followed_from_its_first_word_on() -> None:
    progress = LiveProgress()
    for rank in range(2):
        progress.absorb(trainer(rank), {"event": "rendezvous", "world_size": 2}, 1)
        step(progress, rank, 3)
    assert (progress.complete_step, progress.last_step_ns) == (3, 4)
    reborn = trainer(1) | {"pid": 99}
    progress.absorb(reborn, {"event": "rendezvous", "world_size": 2}, 5)
    step(progress, 1, 4)  # a late word of the old process, which is not the newest one of its rank any more
    assert not progress.reborn_since(1) and progress.workers[1].pid == 99


def test_time_counts_from_the_start_or_from_the_followed_event() -> None:
    first = Firing(fault("a", after_ns=5 * SECOND), 0)
    second = Firing(fault("b", following="a", event="injected", after_ns=SECOND), 1)
    others = {"a": first, "b": second}
    assert [first.due(job(), others, 0, at * SECOND) for at in (4, 5)] == [False, True]
    assert not second.due(job(), others, 0, 100 * SECOND)
    first.moments_ns["injected"] = 50 * SECOND
    assert [second.due(job(), others, 0, at * SECOND) for at in (50, 51)] == [False, True]


def test_a_phase_counts_only_once_the_trigger_is_armed() -> None:
    progress = job()
    first = Firing(fault("a", step=1), 0)
    second = Firing(fault("b", phase="restore", following="a", event="injected"), 1)
    others, begins = {"a": first, "b": second}, {"event": "phase", "name": "restore", "edge": "begin"}
    progress.absorb(trainer(0), begins, 5)
    assert not second.due(progress, others, 0, 10)
    first.moments_ns["injected"] = 20
    assert not second.due(progress, others, 0, 21)
    assert second.armed_ns == 21
    progress.absorb(trainer(0), begins, 30)
    assert second.due(progress, others, 0, 31)


def test_a_restart_takes_progress_back_to_the_restored_step() -> None:
    progress = job()
    for rank in (0, 1):
        step(progress, rank, 9)
    assert (progress.complete_step, progress.furthest_step) == (9, 9)
    progress.absorb(trainer(0), {"event": "started"}, 10)
    progress.absorb(trainer(0), {"event": "restored", "step": 5}, 11)
    assert (progress.complete_step, progress.furthest_step) == (5, 9)


def test_a_shrunk_world_completes_steps_without_the_lost_ranks_and_a_huge_one_costs_no_time() -> None:
    progress = job()
    progress.absorb(trainer(0), {"event": "started"}, 10)
    progress.absorb(trainer(0), {"event": "rendezvous", "world_size": 1}, 11)
    step(progress, 0, 3)
    assert progress.complete_step == 3
    progress = job()
    progress.absorb(trainer(0), {"event": "rendezvous", "world_size": 10**9}, 5)
    step(progress, 0, 4)
    assert progress.complete_step == 0 and not progress.reborn_since(0)


STEPS = st.builds(lambda step: {"event": "step", "step": step}, st.integers(1, 9))
OTHERS = st.one_of(
    st.builds(lambda step: {"event": "restored", "step": step}, st.integers(0, 6)),
    st.builds(lambda size: {"event": "rendezvous", "world_size": size}, st.integers(0, 4)),
    st.just({"event": "started"}),
)
WORDS = st.tuples(st.integers(0, 2), st.one_of(STEPS, STEPS, STEPS, OTHERS))


@given(st.lists(WORDS, min_size=10, max_size=60))
@example([(rank, {"event": "step", "step": step}) for rank, step in ((0, 3), (1, 5), (1, 2))])
def test_the_complete_step_is_the_least_of_the_world_at_every_step(words: list[tuple[int, dict[str, Any]]]) -> None:
    """Though most steps need no look at the other ranks."""
    progress, furthest = LiveProgress(), 0
    for now_ns, (rank, event) in enumerate(words, 1):
        progress.absorb(trainer(rank), event, now_ns)
        if event["event"] == "step":
            size = progress.world_size or len(progress.workers)
            done = [progress.workers[each].last_step if each in progress.workers else 0 for each in range(size)]
            furthest = max(furthest, min(done))
            assert (progress.complete_step, progress.furthest_step) == (min(done), furthest)


def test_holds_are_armed_when_their_rehearsal_begins_unless_they_wait_for_something(tmp_path: pathlib.Path) -> None:
    faults = [fault("a", step=5), fault("b", phase="restore"), fault("c", after_ns=1)]
    holds = TriggerHolds(tmp_path, faults)
    assert list((tmp_path / "holds").iterdir()) == []
    holds.begin(faults)
    written = json.loads((tmp_path / "holds.json").read_text())
    assert [hold["match"] for hold in written] == [
        {"event": "step", "step": 5},
        {"event": "phase", "name": "restore", "edge": "begin"},
        {"event": "failpoint", "name": "restore"},
    ]
    assert pathlib.Path(written[0]["armed"]).exists() and not pathlib.Path(written[1]["armed"]).exists()
    holds.arm("b")
    holds.release("b")
    assert pathlib.Path(written[1]["armed"]).exists() and pathlib.Path(written[1]["released"]).exists()


def on_node(index: int, identity: str = "", following: str | None = None, **moments_s: int) -> Firing:
    when = {"step": 1} | ({"following": following} if following else {})
    planned = fault(identity or f"n{index}", "node_loss", index, **when)
    return Firing(planned, 0, {name: at * SECOND for name, at in moments_s.items()}, fired=bool(moments_s))


def test_a_fault_waits_while_it_would_break_too_many_nodes() -> None:
    limits = Limits(nodes_at_once=1)
    due = on_node(1)
    assert obstacle(due, [on_node(0)], limits, 9 * SECOND) is None  # that one has not fired either
    assert obstacle(due, [on_node(0, injected=1)], limits, 9 * SECOND)
    assert obstacle(due, [on_node(0, injected=1, healed=2)], limits, 9 * SECOND)  # the job has not recovered
    assert obstacle(due, [on_node(0, injected=1, recovered=2)], limits, 9 * SECOND)  # it still acts
    assert obstacle(due, [on_node(0, injected=1, healed=2, recovered=3)], limits, 9 * SECOND) is None
    assert obstacle(due, [on_node(0, healed=2)], limits, 9 * SECOND) is None  # it never acted
    assert obstacle(on_node(0), [on_node(0, injected=1)], limits, 9 * SECOND) is None  # the same node is no further one
    assert obstacle(due, [on_node(0, injected=1)], Limits(), 9 * SECOND) is None


def test_a_fault_waits_out_the_pause_after_the_latest_recovery() -> None:
    limits = Limits(cool_down_ns=10 * SECOND)
    over = [on_node(0, injected=1, healed=5, recovered=3), on_node(1, injected=1, healed=2, recovered=7)]
    assert obstacle(on_node(0), over, limits, 17 * SECOND - 1)
    assert obstacle(on_node(0), over, limits, 17 * SECOND) is None
    assert obstacle(on_node(0), [], limits, 0) is None
    assert obstacle(on_node(0), [on_node(0, injected=1)], limits, 0)
    assert obstacle(on_node(1), [on_node(0, injected=1)], limits, 0) is None


def test_a_fault_does_not_rest_from_the_one_that_it_follows() -> None:
    limits, follows = Limits(cool_down_ns=10 * SECOND), on_node(0, "next", following="n0")
    assert obstacle(follows, [on_node(0, injected=1)], limits, 9 * SECOND) is None
    assert obstacle(follows, [on_node(0, injected=1, healed=5, recovered=7)], limits, 9 * SECOND) is None
    assert obstacle(follows, [on_node(0, "stranger", injected=1)], limits, 9 * SECOND)


STEP_7 = {"event": "step", "step": 7}
ODD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({}, STEP_7 | {"step": odd}) for odd in ("7", None, 10**30, True)),
    *(({}, odd) for odd in ({}, {"event": "step"}, {"event": "phase"}, {"event": "phase", "name": 7})),
    ({}, STEP_7 | {"mono_ns": "now"}),
    ({}, {"event": "restored", "step": [1]}),
    ({}, {"event": "restored", "step": 7, "wall_ns": "x", "mono_ns": 1}),
    ({}, {"event": "rendezvous", "world_size": "many"}),
    ({"rank": None}, STEP_7),
    ({"rank": [0]}, {"event": "started"}),
    ({"pid": "x"}, {"event": "started"}),
]


@pytest.mark.parametrize(("header", "event"), ODD, ids=str)
def test_an_odd_event_changes_nothing(header: dict[str, Any], event: dict[str, Any]) -> None:
    progress = job()
    progress.absorb(trainer(0) | header, event, 9)
    for rank in (0, 1):
        step(progress, rank, 3)
    assert (progress.complete_step, progress.world_size) == (3, 2)


def test_what_a_trainer_tells_again_and_again_is_not_kept_for_ever() -> None:
    progress = job()
    for number in range(PHASES_REMEMBERED + 10):
        progress.absorb(trainer(0), {"event": "failpoint", "name": f"{number}" + "x" * 10**3}, 5)
    assert len(progress.phases_seen) == PHASES_REMEMBERED and len(progress.failpoints) == FAILPOINTS_REMEMBERED
    assert len(progress.phase) == NAME_LENGTH_MAX


@pytest.mark.parametrize(
    ("moments_ns", "newest"),
    [
        ({"injected": 1, "recovered": 2, "effect": 3}, "effect"),
        ({"injected": 1, "recovered": 2, "effect": 3, "healed": 4}, "healed"),
        ({"injected": 1, "healed": 1, "effect": 2, "recovered": 3}, "recovered"),
    ],
)
def test_what_still_acts_is_not_told_as_recovered(moments_ns: dict[str, int], newest: str) -> None:
    assert Firing(fault(step=5), 0, moments_ns).newest_moment == newest
