"""Verdicts: of doubtful evidence, of bounds, and of healthy trainers, who are not accused. Broken ones: mutants/."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from judging import EXPECT, Bend, bending, bent, by_a_command, together, verdict
from mutants.bent import JOB, KILL, starts_from_scratch, starts_from_scratch_after_a_hang
from scorecards import assert_verdict
from simulator import KINDS, Job, Line, Logs, Outage, clocks, find, remove, simulate, steps

from harness.judge.guarantees import job_large_enough
from harness.judge.score import Expectation, Scorecard
from harness.judge.verdict import Verdict
from harness.report import figures as figures_of


def judged(*bends: Bend, outages: list[Outage] = KILL, expect: dict[str, Any] | None = None) -> Scorecard:
    return verdict(simulate(JOB, outages, seed=5), together(*bends), expect)


def test_a_fault_that_measured_an_effect_is_not_said_to_have_waited_in_vain() -> None:
    card = judged(lambda logs: logs.harness.remove(logs.told("fault.injected")))
    assert card.verdict is Verdict.INVALID
    assert "fault fault1 measured an effect, but did not report when it began" in card.reasons


@pytest.mark.parametrize(
    "told", [lambda injected: injected.update(spoils=True), lambda injected: injected.pop("spoils")]
)
@pytest.mark.parametrize(("moment", "verdict_"), [("before", Verdict.FAIL), ("meanwhile", Verdict.INCONCLUSIVE)])
def test_a_store_that_a_fault_disturbs_excuses_only_a_restart_that_looks_meanwhile(
    told: Callable[[Line], object], moment: str, verdict_: Verdict
) -> None:
    def over(logs: Logs) -> None:
        injected = logs.told("fault.injected")
        told(injected)
        logs.told("fault.healed").update(clocks(injected) if moment == "before" else {})
        logs.put()

    reason = "resumed from step 0 and gave no reason, though a checkpoint of step 10 had been committed"
    reason += "; a fault disturbed the store while the restart looked" if moment == "meanwhile" else ""
    assert_verdict(judged(starts_from_scratch_after_a_hang, over), verdict_, reason)


@pytest.mark.parametrize(("step", "accused"), [(10, True), (20, False)])
def test_checkpoints_that_were_begun_after_such_a_fault_must_be_taken(step: int, accused: bool) -> None:
    def older(logs: Logs) -> None:
        struck = logs.told("fault.injected")
        struck["spoils"] = True
        logs.told("fault.healed").update(clocks(struck))
        logs.put()
        for lines in logs.last_lives():
            find(lines, "restored")["step"] = step

    reasons = " ".join(judged(older, outages=[Outage(15, "rank", victim=1), *KILL]).reasons)
    assert ("resumed from step 10 and gave no reason, though a checkpoint of step 20" in reasons) is accused
    assert ("and gave no reason" in reasons) is accused


def test_a_process_that_never_restored_hides_none_that_did() -> None:
    def bend(logs: Logs) -> None:
        starts_from_scratch(logs)
        for rank in (0, 1):
            logs.lose("restored", rank=rank, life=0)

    text = "resumed from step 0 and gave no reason, though a checkpoint of step 10"
    assert text in " ".join(judged(bend).reasons)


def test_one_rank_that_passed_a_checkpoint_over_with_a_reason_speaks_for_all() -> None:
    def told(logs: Logs) -> None:
        fallback = [{"path": "checkpoints/step-10", "reason": "checksum"}]
        find(logs.trainers(rank=1, life=-1)[0], "restored")["fallback"] = fallback

    assert "and gave no reason" in " ".join(judged(starts_from_scratch).reasons)
    assert "and gave no reason" not in " ".join(judged(starts_from_scratch, told).reasons)


def test_a_run_of_which_no_step_survived_cannot_be_compared() -> None:
    line = asked(judged(lambda logs: logs.lose("step")), "loss_continuity.mode")
    told = (Verdict.INCONCLUSIVE, "no surviving step can be compared with the fault-free run")
    assert (line.verdict, line.reason) == told


@pytest.mark.parametrize(
    ("numbers", "text", "lost"),
    [
        ([10], "step 10", "; its event was lost when its workers died"),  # the job goes on from its checkpoint
        ([9, 10], "steps 9, 10 (2)", ""),
        ([5], "step 5", ""),
        ([39], "step 39", ""),
        ([5, 10], "steps 5, 10 (2)", ""),
    ],
)
def test_a_step_at_the_seam_may_have_lost_its_event_and_no_other(numbers: list[int], text: str, lost: str) -> None:
    card = judged(lambda logs: logs.lose("step", step=numbers))
    assert card.verdict is (Verdict.INCONCLUSIVE if lost else Verdict.FAIL)
    assert card.scores["loss_continuity"]["steps_missing"] == len(numbers)
    assert f"{text}: never done in the surviving history, though later steps were{lost}" in card.reasons


def test_the_largest_spike_of_all_resumes_counts() -> None:
    """From the first resume on, and more from the second one."""
    card = judged(moved(0.5, 11), moved(0.25, 21), outages=[Outage(15, "rank"), Outage(18, "rank", victim=1)])
    values = card.scores["loss_continuity"]
    assert [n for r in values["resumes"] for n in (r["step"], r["spike"])] == pytest.approx([11, 0.5, 21, 0.25])
    assert values["spike_max"] == pytest.approx(0.5)


def asked(card: Scorecard, score: str) -> Expectation:
    [line] = [line for line in card.expectations if line.name.startswith(score)]
    return line


def test_without_a_fault_there_was_nothing_to_recover_from() -> None:
    card = verdict(simulate(JOB, seed=5), expect={"recovery_time": {"max": "60s"}})
    assert card.verdict is Verdict.INCONCLUSIVE
    assert card.reasons == ["recovery_time.max: no fault struck, so there was nothing to recover from"]
    line = asked(card, "recovery_time")
    assert (line.bound, line.observed) == ("≤ 60.00 s", "—")


def test_a_recovery_that_never_came_is_the_longest() -> None:
    def stops_again(logs: Logs) -> None:
        last = max(line["mono_ns"] for line in logs.steps(38, 38))
        for lines in logs.trainers():
            remove(lines, lambda line: line["mono_ns"] > last)
        logs.harness[-1].update(outcome="aborted", reason="no step")

    values = figures_of.scores(judged(stops_again))["recovery_time"]
    first, second = values["episodes"]
    assert first["seconds"] > 1 and second["seconds"] is None
    assert values["seconds"] is None and values["phases"] == second["phases"]


def test_the_longest_checkpoint_counts() -> None:
    def took(logs: Logs) -> None:
        for line in logs.all("checkpoint.committed"):
            line["duration_ns"] = line["step"] * 10**8

    found = figures_of.metrics(judged(took))
    assert (found["checkpoint_seconds_p50"], found["checkpoint_seconds_max"]) == (2.5, 4.0)


def test_a_checkpoint_that_a_living_trainer_never_finished_has_failed() -> None:
    def killed_while_saving(logs: Logs) -> None:
        lines = logs.trainers(rank=0, life=0)[0]
        lines.insert(-1, steps(lines)[-1] | {"event": "checkpoint.started", "step": 17, "kind": "periodic"})

    killed = [Outage(17, "rank", victim=0)]
    found = judged(lambda logs: logs.lose("checkpoint.committed", step=(30, 40)), outages=killed).metrics
    assert (found["checkpoints_committed"], found["checkpoints_failed"]) == (2, 2)
    assert found["checkpoint_success_percent"] == 50
    found = judged(killed_while_saving, outages=killed).metrics
    assert (found["checkpoints_committed"], found["checkpoints_failed"]) == (4, 0)


def test_who_went_on_alone_is_named_from_the_second_step_on() -> None:
    """One step more than the others may be the one in which they died."""

    def alone(logs: Logs, upto: int) -> None:
        remove(logs.trainers(rank=0, life=-1)[0], lambda line: line.get("step", 0) > upto)
        remove(logs.trainers(rank=1, life=-1)[0], lambda line: line.get("step", 0) > 20)

    def told(upto: int) -> list[str]:
        card = verdict(simulate(JOB, KILL, seed=5), lambda logs: alone(logs, upto))
        return [text for text in card.reasons if "the others stopped" in text]

    assert told(21) == []
    assert told(22) == ["rank 0 (of 2) went on to step 22 alone; the others stopped at step 20"]


def test_a_world_that_formed_and_did_no_step_is_not_too_small() -> None:
    """The second one waited for the third, and the fourth is as large as it must be."""
    sizes, stepped = (4, 1, 3, 2, 1), np.array([0, 0, 2, 3], np.int64)
    run: Any = SimpleNamespace(
        planned_size=SimpleNamespace(min_world_size=3),
        progress=SimpleNamespace(epoch=stepped),
        epochs=[SimpleNamespace(size=size) for size in sizes],
    )
    evidence: Any = SimpleNamespace(run=run)
    told = [each.words for each in job_large_enough.breaches(evidence)]
    assert told == ["the job went on with 2 ranks; it needs at least 3"]


@bending
def moved(logs: Logs, by: float, first: int, last: int = 10**9) -> None:
    for line in logs.steps(first, last):
        line["loss"] += by


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (moved(2.9e-3, 25, 27), Verdict.PASS),
        (moved(3.1e-3, 25, 27), Verdict.FAIL),
        (moved(2.9e-3, 18, 20), Verdict.PASS),  # a run may drift somewhat sooner or later
        (moved(2.9e-3, 5, 5), Verdict.INCONCLUSIVE),  # but not here, where only rounding is allowed, before any fault
        (moved(-2.9e-3, 31), Verdict.FAIL),  # for longer than any of them did
        (moved(1e-6, 5, 5), Verdict.PASS),
        (moved(1e-3, 5, 5), Verdict.INCONCLUSIVE),
    ],
)
def test_the_envelope_is_three_times_what_calibration_runs_drift(run: Bend, found: Verdict) -> None:
    drifted = [bent(JOB, moved(1e-3, 25, 27), seed=1), bent(JOB, moved(5e-4, 22, 30), seed=2), bent(JOB, seed=3)]
    expect = {"loss_continuity": {"mode": "envelope"}}
    card = verdict(simulate(JOB, KILL, seed=5), run, expect=expect, calibration=drifted)
    assert card.verdict is found, card.reasons
    assert "3 × the spread of 3 other fault-free runs (ranks: 2)" in card.expectations[0].bound


def test_a_trainer_that_does_not_tell_its_samples() -> None:
    """Losses that are the fault-free run's bit for bit speak for the samples, too; a band around them does not."""

    def silent(logs: Logs) -> None:
        by_a_command(logs)
        for line in logs.steps():
            del line["first"], line["count"], line["digest"]

    history = simulate(JOB, KILL, seed=5)
    exact = verdict(history, silent)
    assert exact.verdict is Verdict.PASS, "digests that one of two runs does not report differ from nothing"
    told = {line.name: line.observed for line in exact.expectations}
    assert told["loss_continuity.max_samples_skipped"] == "the losses equal the fault-free run's, bit for bit"
    expect = {"loss_continuity": {"mode": "ulp"}}
    card = verdict(history, silent, expect=expect)
    assert_verdict(card, Verdict.INCONCLUSIVE, first="the trainer does not report which samples a step consumed")


FINAL = EXPECT | {"loss_continuity": {"mode": "final", "max_final_gap": "1%", "max_nonfinite_steps": 1}}


@bending
def of_losses(logs: Logs, change: Callable[[int, float], object]) -> None:
    for line in logs.steps():
        line["loss"] = change(line["step"], line["loss"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda step, loss: loss * (1.25 if step <= 32 else 1.0099), ""),  # 40 steps, of which the last 8 count
        (lambda step, loss: "nan" if step == 20 else loss * 0.9901, ""),
        (lambda step, loss: loss * (1.0101 if step > 32 else 1), "the final loss is +1 % off the fault-free run"),
        (lambda step, loss: loss * (0.98 if step > 32 else 1), "the final loss is -2 % off the fault-free run"),
        (lambda step, loss: "nan" if step in (20, 21) else loss, "2 is more than 1"),
        (lambda step, loss: "inf" if step == 40 else loss, "the final loss is +inf % off the fault-free run"),
        (lambda step, loss: "nan" if step == 40 else loss, "one of the last losses is no number"),
    ],
)
def test_the_final_gap_counts_after_what_changes_losses(change: Callable[[int, float], object], reason: str) -> None:
    assert_verdict(judged(of_losses(change), expect=FINAL), Verdict.FAIL if reason else Verdict.PASS, reason)


def test_the_final_gap_excuses_no_other_learning_rate_and_no_other_samples() -> None:
    def slower(logs: Logs) -> None:
        steps(logs.trainers(life=-1)[0])[-1]["lr"] = 1e-9

    def elsewhere(logs: Logs) -> None:
        for line in logs.steps(30, 30):
            line["digest"] = "other"

    for bend, reason in ((slower, "learning rate"), (elsewhere, "consumed other samples")):
        assert_verdict(judged(bend, expect=FINAL), Verdict.FAIL, reason)


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


@pytest.mark.parametrize(
    ("expect", "reason"),
    [
        ({"recovery_time": {"max": "60"}}, "its bounds cannot be read"),
        ({"loss_continuity": {"mode": "ulp", "max_ulp": float("nan")}}, "finite number"),
        ({"loss_continuity": {"max_spike": float("inf")}}, "finite number"),
        ({"speed": {}}, "unknown score 'speed'"),
        ({"loss_continuity": {"mode": "envelope"}}, "needs fault-free runs to calibrate"),
    ],
)
def test_a_bound_that_nothing_can_be_held_against(expect: dict[str, Any], reason: str) -> None:
    assert_verdict(judged(expect=expect), Verdict.INCONCLUSIVE, first=reason)


def test_a_scorer_that_crashes_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.judge.questions import recovery_time

    monkeypatch.setattr(recovery_time, "_unmeasured", Mock(side_effect=ZeroDivisionError("oh")))
    card = verdict(simulate(JOB, KILL, seed=5))
    assert card.verdict is Verdict.INCONCLUSIVE
    assert card.reasons == ["recovery_time: the scorer crashed: ZeroDivisionError: oh"]


def test_the_clock_decides_when_it_matters() -> None:
    history = simulate(Job(nodes=2, steps=40, every=10, foreign_clocks=True), KILL, seed=5)
    took = history.truth.episodes[0].t_regained - history.truth.episodes[0].t_stop
    for off in (-1999, 500, 1999):
        near = verdict(history, expect={"recovery_time": {"max": f"{took + off}ns"}})
        assert_verdict(near, Verdict.INCONCLUSIVE, first="clocks")
    assert verdict(history, expect={"recovery_time": {"max": f"{took + 2000}ns"}}).verdict is Verdict.PASS
    assert verdict(history, expect={"recovery_time": {"max": f"{took - 2000}ns"}}).verdict is Verdict.FAIL


def test_the_clocks_decide_about_waste_when_it_matters() -> None:
    history = simulate(Job(nodes=2, steps=40, every=10, foreign_clocks=True), KILL, seed=5)
    wasted_s = verdict(history).scores["wasted_gpu_hours"]["gpu_seconds_wasted_by_faults"]

    def judged(bound_s: float) -> Verdict:
        return verdict(history, expect={"wasted_gpu_hours": {"max_gpu_seconds_by_faults": bound_s}}).verdict

    assert judged(wasted_s + 1e-6) is judged(wasted_s - 1e-6) is Verdict.INCONCLUSIVE
    assert judged(wasted_s + 1e-4) is Verdict.PASS and judged(wasted_s - 1e-4) is Verdict.FAIL


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
@example(
    1, 1, [Outage(1, "rank"), Outage(6, "rollback"), Outage(1, "rank")], 0, False
)  # back to the start, by decision
def test_the_healthy_are_never_accused(nodes: int, ranks: int, outages: list[Outage], seed: int, foreign: bool) -> None:
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
