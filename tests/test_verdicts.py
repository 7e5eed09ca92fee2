"""Broken trainers and broken runs get the right verdict for the right reason; healthy ones are not accused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import EXPECT, Logs, remove, steps, trainers, twin_of, verdict
from simulator import KINDS, Job, Outage, simulate

from harness.score import Verdict, to_report_json

JOB = Job(nodes=2, steps=40, every=10)
KILL = [Outage(17, "rank", victim=1)]  # furthest step 17, back to 10


def after_resume(logs: Logs, change: Callable[[dict[str, Any]], object], ranks: tuple[int, ...] = (0, 1)) -> None:
    for rank in ranks:
        for line in steps(trainers(logs, rank=rank, life=-1)[0]):
            change(line)


def skips_a_batch(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(first=line["first"] + 16, digest=f"other {line['step']}"))


def replays_a_batch(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(first=line["first"] - 16, digest=f"other {line['step']}"))


def shuffles_differently(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(digest=f"other {line['step']}"))


def schedule_restarts(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(lr=1e-3 * min(1.0, (line["step"] - 10) / 10)))


def optimizer_lost(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(loss=line["loss"] + 1e-12 * (line["step"] > 11)))


def loss_is_nan(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(loss="nan") if line["step"] > 30 else None)


def gradient_not_averaged(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(loss=line["loss"] * 1.01), ranks=(1,))


def lies_about_restore(logs: Logs) -> None:
    for rank in (0, 1):
        lines = trainers(logs, rank=rank, life=-1)[0]
        next(line for line in lines if line.get("event") == "restored")["step"] = 17


def one_rank_restores_another_step(logs: Logs) -> None:
    lines = trainers(logs, rank=1, life=-1)[0]
    next(line for line in lines if line.get("event") == "restored")["step"] = 5
    for line in steps(lines):
        line["step"] -= 5


def skips_the_recompute(logs: Logs) -> None:
    for rank in (0, 1):
        remove(trainers(logs, rank=rank, life=-1)[0], lambda line: line.get("event") == "step" and line["step"] <= 17)


def goes_on_without_a_rank(logs: Logs) -> None:
    remove(trainers(logs, rank=1, life=-1)[0], lambda line: line.get("event") == "step" and line["step"] > 20)


def stops_early(logs: Logs) -> None:
    for lines in trainers(logs, life=None):
        remove(lines, lambda line: line.get("event") == "step" and line["step"] > 35)


def no_effect_measured(logs: Logs) -> None:
    remove(logs["harness"], lambda line: line.get("event") == "fault.effect")


def effect_too_small(logs: Logs) -> None:
    for line in logs["harness"]:
        if line.get("event") == "fault.effect":
            line.update(measured=0, ok=False)


def fault_broke(logs: Logs) -> None:
    logs["harness"].append(
        logs["harness"][-1] | {"event": "fault.failed", "fault": "fault1", "error": "no such process"}
    )


def never_injected(logs: Logs) -> None:
    plan = next(line for line in logs["harness"] if line.get("event") == "plan")["plan"]
    plan["faults"] = [*plan["faults"], {"id": "second", "fault": "rank_kill", "targets": []}]


def victim_lives(logs: Logs) -> None:
    victim = trainers(logs, rank=1, life=0)[0]
    last = steps(victim)[-1]
    victim.append(last | {"step": 18, "begin_ns": last["mono_ns"] + 10**9, "mono_ns": last["mono_ns"] + 2 * 10**9})


def harness_killed(logs: Logs) -> None:
    remove(logs["harness"], lambda line: line.get("event") == "run.finished")


def interrupted(logs: Logs) -> None:
    stops_early(logs)
    logs["harness"][-1].update(outcome="interrupted", reason="stopped by the user")


def command_failed(logs: Logs) -> None:
    logs["harness"][-1].update(outcome="failed", reason="the command on node0 ended with 1: KeyError")


def stuck(logs: Logs) -> None:
    """After the restart nothing more is heard than the launchers' rendezvous; then the harness gives up."""
    begin = trainers(logs, life=-1)[0][0]["mono_ns"]
    for lines in logs.values():
        remove(lines, lambda line: line["mono_ns"] >= begin and line.get("event") != "run.finished")
    for name in [name for name, lines in logs.items() if not lines]:
        del logs[name]
    end = logs["harness"][-1]
    end.update(outcome="aborted", reason="no step for 120 s", mono_ns=end["mono_ns"] + 10**10)
    logs["harness"].insert(-1, end | {"event": "abort"})


def a_rank_has_no_log(logs: Logs) -> None:
    del logs[next(name for name, lines in logs.items() if lines is trainers(logs, rank=1, life=-1)[0])]


def full_disk(logs: Logs) -> None:
    for rank in (0, 1):
        lines = trainers(logs, rank=rank, life=-1)[0]
        remove(lines, lambda line: line.get("event") == "step" and 20 <= line["step"] <= 25)
        steps(lines, 26)[0]["dropped"] = 6


BROKEN = [
    (skips_a_batch, Verdict.FAIL, "16 samples were skipped, first at step 11"),
    (replays_a_batch, Verdict.FAIL, "16 samples were repeated, first at step 11"),
    (shuffles_differently, Verdict.FAIL, "consumed other samples than the twin's, the first is step 11"),
    (schedule_restarts, Verdict.FAIL, "learning rate differs from the twin's: at step 11"),
    (optimizer_lost, Verdict.FAIL, "loss differs from the twin's: at step 12"),
    (loss_is_nan, Verdict.FAIL, "at step 31 loss nan instead of"),
    (gradient_not_averaged, Verdict.FAIL, "at step 11 ranks 0 and 1 disagree on the loss"),
    (lies_about_restore, Verdict.FAIL, "said it restored step 17, but went on with step 11"),
    (one_rank_restores_another_step, Verdict.FAIL, "ranks of one world restored different steps: 5, 10"),
    (skips_the_recompute, Verdict.FAIL, "said it restored step 10, but went on with step 18"),
    (goes_on_without_a_rank, Verdict.FAIL, "ranks [0] of 2 went on to step 40 without the others, left at step 20"),
    (stops_early, Verdict.FAIL, "ended without an error at step 35 of 40"),
    (command_failed, Verdict.FAIL, "KeyError"),
    (stuck, Verdict.FAIL, "stuck in rendezvous"),
    (no_effect_measured, Verdict.INVALID, "fault1 was injected, but no effect of it was measured"),
    (effect_too_small, Verdict.INVALID, "fault1 did not act as meant: 0 deaths measured, 1 expected"),
    (fault_broke, Verdict.INVALID, "fault1 failed: no such process"),
    (never_injected, Verdict.INVALID, "fault second never struck"),
    (victim_lives, Verdict.INVALID, "killed rank 1, which yet went on stepping"),
    (harness_killed, Verdict.INCONCLUSIVE, "the harness's own log has no end"),
    (interrupted, Verdict.INCONCLUSIVE, "the run was interrupted at step 35 of 40: stopped by the user"),
    (full_disk, Verdict.INCONCLUSIVE, "(6) left no event; 12 were lost to a full disk"),
]


@pytest.mark.parametrize(("bend", "expected", "reason"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_what_is_broken_is_named(bend: Callable[[Logs], None], expected: Verdict, reason: str) -> None:
    card = verdict(simulate(JOB, KILL, seed=5), bend)
    assert card.verdict is expected, card.reasons
    assert any(reason in text for text in card.reasons), card.reasons


def test_a_death_that_no_fault_explains() -> None:
    card = verdict(simulate(JOB, [*KILL, Outage(9, "crash")], seed=5))
    assert card.verdict is Verdict.INCONCLUSIVE
    assert "unexplained death: rank" in card.reasons[0]
    assert "and no fault did that" in card.reasons[0]


def test_a_rank_without_a_log_never_passes() -> None:
    assert verdict(simulate(JOB, KILL, seed=5), a_rank_has_no_log).verdict is not Verdict.PASS


def test_a_cut_log_of_a_process_that_nothing_killed() -> None:
    history = simulate(JOB, KILL, seed=5)
    next(w for w in history.writers if w.name.startswith("trainer")).torn = True
    survivor = verdict(history)
    assert survivor.verdict is Verdict.PASS, "its peer was killed and it went down with it"
    history = simulate(JOB, KILL, seed=5)
    [w for w in history.writers if w.name.startswith("trainer")][-1].torn = True
    assert "is cut, though nothing killed it" in verdict(history).reasons[0]


def test_a_smaller_world_must_keep_the_global_batch() -> None:
    job = Job(nodes=2, steps=60, every=10)
    small = twin_of(Job(nodes=1, steps=60, every=10), seed=4)
    history = simulate(job, [Outage(25, "shrink", victim=1, regrow_after=12)], seed=2)
    expect = EXPECT | {"loss_continuity": {"mode": "envelope"}}
    healthy = verdict(history, expect=expect, calibration=[small])
    assert healthy.verdict is Verdict.PASS, healthy.reasons

    def halve(logs: Logs) -> None:
        for lines in trainers(logs):
            if lines[0]["world_size"] == 1:
                for line in steps(lines):
                    line["count"] = 8

    broken = verdict(history, halve, expect=expect, calibration=[small])
    assert broken.verdict is Verdict.FAIL
    assert any("samples were skipped" in text for text in broken.reasons)


def test_a_world_smaller_than_allowed() -> None:
    job = Job(nodes=2, steps=60, every=10, min_nodes=2)
    card = verdict(simulate(job, [Outage(25, "shrink", victim=1, regrow_after=12)], seed=2))
    assert card.verdict is Verdict.FAIL
    assert any("went on with 1 ranks; it needs at least 2" in text for text in card.reasons)


def test_an_envelope_without_calibration_says_nothing() -> None:
    expect = EXPECT | {"loss_continuity": {"mode": "envelope"}}
    card = verdict(simulate(JOB, KILL, seed=5), expect=expect)
    assert card.verdict is Verdict.INCONCLUSIVE
    assert "needs fault-free runs to calibrate" in card.reasons[0]


def test_bounds_decide() -> None:
    history = simulate(JOB, KILL, seed=5)
    tight = {"recovery_time": {"max": "10ms", "phases": {"startup": "1ms"}}, "wasted_gpu_hours": {"max_percent": 1}}
    card = verdict(history, expect=tight)
    assert card.verdict is Verdict.FAIL
    assert [e.name for e in card.expectations if e.verdict is Verdict.FAIL] == [
        "recovery_time.max",
        "recovery_time.phases.startup",
        "wasted_gpu_hours.max_percent",
    ]
    assert "more than 10 ms" in card.reasons[0]


def test_a_bound_that_cannot_be_read_and_a_score_that_is_not_there() -> None:
    history = simulate(JOB, KILL, seed=5)
    assert "its bounds cannot be read" in verdict(history, expect={"recovery_time": {"max": "60"}}).reasons[0]
    assert "there is no score 'speed'" in verdict(history, expect={"speed": {}}).reasons[0]


def test_a_scorer_that_crashes_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.scores import recovery_time

    def crash(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(recovery_time.RecoveryTime, "score", crash)
    card = verdict(simulate(JOB, KILL, seed=5))
    assert card.verdict is Verdict.INCONCLUSIVE
    assert card.reasons == ["recovery_time: the scorer crashed: ZeroDivisionError: oh"]


def test_the_clock_decides_when_it_matters() -> None:
    history = simulate(Job(nodes=2, steps=40, every=10, foreign_clocks=True), KILL, seed=5)
    took = history.truth.episodes[0].t_regained - history.truth.episodes[0].t_stop
    near = verdict(history, expect={"recovery_time": {"max": f"{took + 500}ns"}})
    assert near.verdict is Verdict.INCONCLUSIVE
    assert "clocks" in near.reasons[0]
    assert verdict(history, expect={"recovery_time": {"max": f"{took + 1001}ns"}}).verdict is Verdict.PASS
    assert verdict(history, expect={"recovery_time": {"max": f"{took - 1001}ns"}}).verdict is Verdict.FAIL


def test_report_json_is_what_the_contract_says() -> None:
    report = to_report_json(verdict(simulate(JOB, KILL, seed=5), loss_is_nan))
    assert list(report) == [
        *("schema", "run_id", "scenario", "backend", "seed", "verdict", "reasons", "faults", "scores", "metrics"),
        *("expectations", "environment"),
    ]
    assert set(report["scores"]) == {"recovery_time", "wasted_gpu_hours", "loss_continuity"}
    assert report["scores"]["loss_continuity"]["max_abs_diff"] is None, "infinite: JSON has no such number"
    assert report["faults"][0] | {"t_injected": 0} == {
        "id": "fault1",
        "kind": "rank_kill",
        "target": [{"node": "node1", "incarnation": 1, "rank": 1}],
        "t_injected": 0,
        "effect": {"measured": 1, "expected": 1, "unit": "deaths"},
        "healed": True,
    }


HEALTHY = st.lists(
    st.builds(
        Outage,
        after=st.integers(1, 20),
        kind=st.sampled_from([kind for kind in KINDS if kind != "crash"]),
        victim=st.integers(0, 3),
        again=st.sampled_from([None, None, "startup", "rendezvous", "restore"]),
        regrow_after=st.integers(1, 8),
        torn=st.booleans(),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 2), HEALTHY, st.integers(0, 10**6), st.booleans())
def test_healthy_trainers_are_never_accused(
    nodes: int, ranks: int, outages: list[Outage], seed: int, foreign: bool
) -> None:
    job = Job(nodes=nodes, ranks_per_node=ranks, steps=40, every=6, foreign_clocks=foreign)
    card = verdict(simulate(job, outages, seed))
    if card.evidence.run.episodes:
        assert card.verdict is Verdict.PASS, card.reasons


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.data())
def test_a_log_that_lost_its_tail_neither_crashes_nor_passes(seed: int, data: st.DataObject) -> None:
    """Cut one writer's log at any step or before, as a lost disk would: something needed is missing."""
    history = simulate(JOB, KILL, seed)
    names = sorted(name for name in history.logs() if name.startswith(("trainer", "harness")))
    name = data.draw(st.sampled_from([n for n in names if n == "harness" or steps(history.logs()[n], 40)]))

    def cut(logs: Logs) -> None:
        needed = [i for i, line in enumerate(logs[name]) if line.get("event") in ("step", "run.finished")]
        del logs[name][data.draw(st.integers(1, needed[-1])) :]

    assert verdict(history, cut).verdict is not Verdict.PASS
