"""Loss continuity, part by part: which row stands for a step, what is compared, and when nothing follows from it."""

import dataclasses
import pathlib
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from judging import EXACT, Bend, bent, fault_free_of, verdict
from scorecards import assert_verdict
from simulator import Job, Logs, Outage, change, find, simulate

from harness.evidence import losses, samples
from harness.evidence.logs import Evidence, no_comparison
from harness.evidence.losses import Curve, compare, surviving
from harness.judge.bounds import ContinuityBounds
from harness.judge.facts import tellers
from harness.judge.facts.alarms import LeftOut
from harness.judge.guarantee import breach
from harness.judge.guarantees import result_samples_in_order, steps_all
from harness.judge.guarantees.result_told_as_usual import never_changing
from harness.judge.questions import loss_continuity
from harness.judge.verdict import Verdict
from harness.log.reading import is_told
from harness.timeline import timeline
from harness.timeline.lineage import Epoch
from harness.timeline.timeline import Steps

JOB = Job(nodes=2, steps=40, every=10)
KILL = [Outage(17, "rank", victim=1)]


def level(loss: Callable[[int], float]) -> Bend:
    return lambda logs: [line.update(loss=loss(line["step"])) for line in logs.steps()]


def curve(first: list[int], count: list[int], step: list[int] | None = None, **columns: list[Any]) -> Curve:
    step = step or list(range(1, len(first) + 1))
    usual = {
        "loss": [1.0] * len(step),
        "grad_norm": [1.0] * len(step),
        "lr": [0.1] * len(step),
        "digest": [0] * len(step),
        "applied": [1] * len(step),
        "sync_ns": [0] * len(step),
        "took_ns": [1] * len(step),
    }
    told = {"step": step, "first": first, "count": count} | usual | columns
    return Curve(**{name: np.array(values) for name, values in told.items()})


def table(*rows: tuple[int, float]) -> Steps:
    """Step 1 by each (rank, loss), all of which survived."""
    columns: dict[str, Any] = {each.name: np.zeros(len(rows), np.int64) for each in dataclasses.fields(Steps)}
    columns |= dict.fromkeys(("survives", "complete"), np.ones(len(rows), np.bool_))
    columns |= {"rank": np.array([rank for rank, _ in rows]), "loss": np.array([loss for _, loss in rows])}
    return Steps(**columns | {"step": np.ones(len(rows), np.int64)})


@pytest.mark.parametrize("far", [2**15 - 1, 2**15, 40_000, 2**16])
def test_a_step_is_told_by_the_lowest_rank_that_tells_a_loss_else_by_the_lowest(far: int) -> None:
    told = losses.surviving(table((far, 2.0), (5, np.nan), (7, 3.0)))
    assert told.loss.tolist() == [3.0]
    assert losses.surviving(table((7, np.nan), (far, 2.0), (5, np.nan))).loss.tolist() == [2.0]
    steps_of = table((far, np.nan), (5, np.nan))
    steps_of.lr[:] = [1, 2]
    assert losses.surviving(steps_of).lr.tolist() == [2]


def test_samples_are_followed_from_step_to_step() -> None:
    whole = samples.by_places(curve([0, 16, 32], [16, 16, 16]))
    assert (whole.repeated, whole.skipped, whole.where) == (0, 0, "")
    broken = samples.by_places(curve([0, 8, 32], [16, 16, 16]))
    assert (broken.repeated, broken.skipped, broken.where) == (8, 8, "at step 2")
    gap = samples.by_places(curve([0, 99], [16, 16], [1, 3]))
    assert (gap.repeated, gap.skipped) == (0, 0), "what lies between is not known"
    untold = samples.by_places(curve([0, -1], [16, 16]))
    assert (untold.repeated, untold.skipped, untold.where) == (None, None, "")


def test_only_what_lies_between_two_steps_was_left_out_between_them() -> None:
    """What was told to be left out goes on over the samples of the next step, which were consumed."""
    told = samples.by_places(curve([0, 32, 64], [16, 16, 16]), LeftOut([(16, 56)]))
    assert (told.repeated, told.skipped, told.others, told.where) == (0, 8, 0, "at step 3")


@pytest.mark.parametrize(("mine", "other"), [([0, 16], [5, 16]), ([5, 16], [0, 16])])
def test_position_0_is_a_position_too(mine: list[int], other: list[int]) -> None:

    def found(first: list[int], count: int = 16, **allowed: int) -> list[str]:
        comparison = losses.compare(curve(first, [count, 16]), curve(other, [count, 16]))
        told = {"same_work": comparison, "consumed": None, "left_out": LeftOut()}
        evidence: Any = SimpleNamespace(**told, continuity=ContinuityBounds(**allowed))
        return [each.words for each in result_samples_in_order.breaches(evidence)]

    one = ["1 step consumed other samples than the fault-free run, first at step 1"]
    assert found(mine) == one
    for allowed in ({"max_samples_repeated": 1}, {"max_samples_skipped": 1}):
        assert found(mine, **allowed) == [], "positions may well be others"
    assert found(mine, count=0) == one, "no sample is told"
    assert found([-1, 16]) == []


@pytest.mark.parametrize(("gap", "expected"), [("25%", Verdict.PASS), ("24.9%", Verdict.FAIL)])
def test_the_final_gap_may_be_as_large_as_its_bound(gap: str, expected: Verdict) -> None:
    flat = bent(JOB, level(lambda step: 1.0))
    expect = {"loss_continuity": {"mode": "final", "max_final_gap": gap}}
    card = verdict(simulate(JOB, KILL, seed=5), level(lambda step: 1.25), expect, flat)
    assert card.verdict is expected, card.reasons
    told = "final loss +25 % off the fault-free run; not judged: checkpoints in their store, last checkpoint"
    headline = f"{told}, second restart"
    assert (card.reasons == [headline]) is (expected is Verdict.PASS)


@pytest.mark.parametrize("hole", [False, True])
def test_a_hole_in_the_fault_free_run_excuses_no_false_restore(hole: bool) -> None:
    def restored_7(logs: Logs) -> None:
        change((find(lines, "restored") for lines in logs.last_lives()), step=7)

    def begins_with_2(logs: Logs) -> None:
        next(logs.steps(rank=1))["step"] = 2

    fault_free = bent(JOB, begins_with_2) if hole else None
    card = verdict(simulate(JOB, KILL, seed=5), restored_7, EXACT, fault_free)
    assert "rank 1 said it restored step 7, but went on with step 11" in " ".join(card.reasons)


def test_every_resume_that_something_was_built_upon_is_told_with_its_spike() -> None:
    """The second kept one step, the third was lost whole: nothing of it shows in the curve."""
    starts = [(1, 5), (6, 6), (7, -1), (7, 2**62), (90, 2**62)]
    epochs = [Epoch(n, 2, (0, 1), first, first, 0, kept) for n, (first, kept) in enumerate(starts)]
    mine = curve([0] * 8, [1] * 8, loss=[8.0, 7.0, 6.0, 5.0, 4.0, 4.5, 3.0, np.nan])
    fault_free = curve([0] * 8, [1] * 8, loss=[8.0, 7.0, 6.0, 5.0, 4.0, 3.5, 3.0, 2.0])
    run = dataclasses.replace(fault_free_of(JOB), epochs=epochs)
    told = list(loss_continuity._resumes(run, mine, losses.compare(mine, fault_free)))
    assert told == [{"step": 6, "rise": 0.5, "spike": 1.0}, {"step": 7, "rise": -1.5, "spike": -1.0}]
    assert [each["spike"] for each in loss_continuity._resumes(run, mine, None)] == [None, None], "nothing to compare"
    into_nan = dataclasses.replace(run, epochs=[Epoch(0, 2, (0, 1), 8, 8, 0, 8)])
    (told_of_nan,) = loss_continuity._resumes(into_nan, mine, losses.compare(mine, fault_free))
    assert told_of_nan == {"step": 8, "rise": None, "spike": None}


def test_a_copy_of_the_run_is_no_fault_free_run() -> None:
    run = fault_free_of(JOB)
    comparison = losses.compare(losses.surviving(run.steps), losses.surviving(run.steps))
    assert no_comparison(run, run, comparison) == "the fault-free run cannot be compared: it is a copy of this run"
    assert no_comparison(run, fault_free_of(JOB, 2), comparison) == ""
    assert Evidence(run).flaw(run) == "it is a copy of this run" and not Evidence(run).flaw(fault_free_of(JOB, 2))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("silent", [0, 1, 2, 3, 4])
def test_a_fault_free_run_that_falls_silent_before_the_end_is_no_measure(silent: int, first: int) -> None:
    """Who reports its loss now and then may be silent at the end for as long as ever before: for one step here, or two
    where the first told none."""
    told = [np.nan] * first + [1.0 + n for n in range(8 - first - silent)] + [np.nan] * silent
    comparison = losses.compare(curve([0] * 8, [1] * 8), curve([0] * 8, [1] * 8, loss=told))
    found = no_comparison(fault_free_of(JOB), fault_free_of(JOB, 2), comparison)
    doubted = silent > first + 1
    assert found == (f"the fault-free run reports no finite loss after step {8 - silent}" if doubted else "")


def test_steps_after_the_last_that_was_kept_whole_are_its_tail() -> None:
    """Step 9 was done by all and rolled back; of those done again, only step 5 was done by all."""
    rows = table((0, 1.0), (0, 1.0), (0, 1.0), (0, 1.0))
    rows.step[:] = [5, 9, 5, 6]
    complete, survives = np.array([True, True, True, False]), np.array([False, False, True, True])
    rows = dataclasses.replace(rows, complete=complete, survives=survives)
    assert losses.counted(rows).tolist() == [False, False, True, False]


def test_a_step_of_any_number_costs_no_memory() -> None:
    """A log may claim step 10^9: the steps before it are named as far as they are counted, and never enumerated."""
    forged = curve([0, 16, 32], [16, 16, 16], [1, 2, 10**9])
    tracemalloc.start()
    missing = losses.missing(forged, None, 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * 2**20
    assert (missing[0], len(missing)) == (3, losses.MISSING_MAX)
    assert steps_all.named(missing) == f"steps 3, 4, 5, 6, 7, … ({losses.MISSING_MAX} or more)"
    assert losses.missing(forged, np.array([1, 2, 4, 10**9, 10**9 + 1]), 1).tolist() == [4]
    assert losses.missing(curve([0, 16], [16, 16], [5, 15]), None, 5).tolist() == [10]


def test_samples_that_are_skipped_are_counted_whatever_their_number() -> None:
    """Eight jumps of 2^61 are more than 64 bits hold; a sum that overflows would be none at all."""
    first = [0, 2**60] * 8
    told = samples.by_places(curve(first, [0] * 16))
    assert (told.skipped, told.repeated) == (8 * 2**60, 7 * 2**60)
    many = samples.by_places(curve([0, 2**60] * 64, [0] * 128))
    assert many.skipped == 64 * 2**60 > 0


def scattered(seed: int, level: float, steps: int = 400) -> Curve:
    noise = np.random.default_rng(seed).normal(0, 0.1, steps)
    alike = np.convolve(noise, np.ones(4) / 2, "same")
    none = np.zeros(steps, np.int64)
    return Curve(np.arange(steps), level + alike, alike, none.astype(float), *[none] * 6)


def test_chance_alone_is_seldom_taken_for_a_gap() -> None:
    """About 1 of 100 gaps between two runs of the same level is larger than its scatter; a real one is found."""
    pairs = [(scattered(2 * seed, 1.0), scattered(2 * seed + 1, 1.0)) for seed in range(400)]
    found = [compare(run, fault_free) for run, fault_free in pairs]
    wrong = sum(abs(each.final_gap_percent or 0) > each.final_scatter_percent for each in found)
    assert wrong <= 16
    shifted = [compare(scattered(2 * seed, 1.3), scattered(2 * seed + 1, 1.0)) for seed in range(400)]
    assert sum((each.final_gap_percent or 0) > each.final_scatter_percent for each in shifted) >= 396


@pytest.mark.parametrize(("scatter", "found"), [(0.0, Verdict.FAIL), (2.0, Verdict.INCONCLUSIVE)])
def test_a_gap_that_may_be_chance_is_not_judged(scatter: float, found: Verdict) -> None:
    noise, job = np.random.default_rng(7).normal(0, 1, 1000), Job(steps=200)
    expect = {"loss_continuity": {"mode": "final", "max_final_gap": "5%"}}
    noisy, flat = level(lambda step: 1.2 + scatter * noise[step]), bent(job, level(lambda step: 1.0))
    card = verdict(simulate(job, KILL, seed=5), noisy, expect, flat)
    assert card.verdict is found, card.reasons
    assert ("such gaps scatter by ±" in card.reasons[-1]) is bool(scatter)


@pytest.mark.parametrize(("factor", "found"), [(1.0, Verdict.PASS), (4.0, Verdict.FAIL)])
def test_a_rank_whose_own_loss_diverged_does_not_pass_for_its_peer(factor: float, found: Verdict) -> None:
    def own(logs: Logs) -> None:
        change(logs.steps(rank=1), loss=lambda line: line["loss"] * 1.01)

    def diverged(logs: Logs) -> None:
        own(logs)
        change(logs.steps(rank=1, life=-1), loss=lambda line: line["loss"] * factor)

    expect = {"loss_continuity": {"mode": "final", "max_final_gap": "25%"}}
    card = verdict(simulate(JOB, KILL, seed=5), diverged, expect, bent(JOB, own))
    assert_verdict(card, found, "" if found is Verdict.PASS else "the final loss is +1.5e+02 %")


@pytest.mark.parametrize("wrong", [False, True])
def test_a_rank_that_tells_two_losses_hides_no_other_rank(wrong: bool) -> None:
    """Rank 0 tells its loss at the two ends only, also without a fault; rank 1 tells it in each step."""

    def seldom(logs: Logs) -> None:
        change(logs.steps(2, 39, rank=0), "loss", "grad_norm")

    def bend(logs: Logs) -> None:
        seldom(logs)
        change(logs.steps(rank=1, life=-1) if wrong else (), loss=lambda line: line["loss"] * 1.2)

    card = verdict(simulate(JOB, KILL, 3), bend, EXACT, bent(JOB, seldom))
    told = [each.text.partition(" differs")[0] for each in card.findings if each.code == "result.ranks_agree"]
    assert told == ["at step 11 the loss of rank 1"] * wrong


@pytest.mark.parametrize(
    ("first", "last", "usual", "claims"),
    [(5, 15, None, 1), (0, 29, None, 1), (19, 29, None, 1), (5, 14, None, 0), (5, 15, (14, 15), 0), (0, -1, None, 0)],
)
def test_a_norm_that_never_changes_is_none(first: int, last: int, usual: tuple[int, int] | None, claims: int) -> None:
    """Ten times in a row; but for a trainer that tells one number twice at these steps without a fault, too."""
    count, numbers = 30, list(range(30))

    def told(first: int, last: int) -> Curve:
        norms = [1.5 if first <= number <= last else 2 + 0.1 * number for number in numbers]
        return curve(numbers, [1] * count, numbers, grad_norm=norms)

    found = [*never_changing(compare(told(first, last), told(*(usual or (0, -1)))), resized=False)]
    text = f"the gradient norm is 1.5 in all steps {first} to {last}, and changes at each of them without a fault"
    assert found == [breach(text, tellers.OWN_FIGURES)] * claims


def test_what_was_left_out_moves_the_fault_free_run_on() -> None:
    """Samples are shuffled within the run; what it never came to has no digest."""
    fault_free = curve([16, 0, 48, 32], [16] * 4, digest=[11, 10, 13, 12])
    moved = result_samples_in_order.moved_on(fault_free, LeftOut(accepted=[(16, 32)]))
    assert (moved.first.tolist(), moved.digest.tolist()) == ([32, 0, 64, 48], [12, 10, 0, 13])
    assert result_samples_in_order.moved_on(fault_free, LeftOut()) is fault_free
    untold = curve([16, -1], [16] * 2)
    assert result_samples_in_order.moved_on(untold, LeftOut(accepted=[(16, 32)])) is untold


@pytest.mark.parametrize(
    ("mine", "fault_free"),
    [(curve([0], [1]), curve([0, 1], [1, 1])), (curve([0], [1], loss=[1.0]), curve([0], [1], loss=[np.nan]))],
)
def test_a_final_gap_that_nothing_tells_is_shown_as_none(mine: Curve, fault_free: Curve) -> None:
    bounds = ContinuityBounds(mode="final", max_final_gap="3%")
    found = loss_continuity._final(bounds, compare(mine, fault_free))
    assert (found.bound, found.observed, found.verdict) == ("final, within 3 %", "—", Verdict.INCONCLUSIVE)
    assert found.reason == "the last steps cannot be compared with the fault-free run"


def test_a_loss_of_all_ranks_is_their_mean_by_samples(tmp_path: pathlib.Path) -> None:
    simulate(Job(nodes=2, ranks_per_node=2, steps=6)).write(tmp_path)
    steps = timeline.load(tmp_path).steps
    of_all = dataclasses.replace(steps, loss=steps.rank.astype(float) + 1, rank_samples=np.where(steps.rank == 3, 5, 1))
    assert surviving(of_all, of_all=True).loss.tolist() == [(1 + 2 + 3 + 4 * 5) / 8] * 6
    silent = dataclasses.replace(of_all, loss=np.where(steps.rank > 1, np.copysign(np.nan, -1), of_all.loss))
    assert surviving(silent, of_all=True).loss.tolist() == [1.5] * 6
    untold = dataclasses.replace(of_all, loss=np.full(len(steps), np.copysign(np.nan, -1)))
    assert not is_told(surviving(untold, of_all=True).loss).any()
