"""What ranks consumed, against the fault-free run: histories as an observer of an unchanged trainer tells them."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import EXACT, bending, bent, expecting, verdict
from scorecards import assert_verdict
from simulator import Job, Logs, Outage, change, simulate, steps

from harness.evidence import samples
from harness.evidence.samples import Consumed
from harness.judge.score import Evidence, Scorecard, judge
from harness.judge.verdict import Verdict
from harness.timeline.timeline import Timeline

JOB = Job(nodes=2, steps=40, every=10)
KILL = [Outage(17, "rank", victim=1)]  # step 18 is not done, and the job goes on from step 10
SIZE, BATCH = 256, 16  # 8 steps of 2 ranks are one pass
Told = Callable[[int, int, int], tuple[int, list[list[int]]]]  # step, rank, ranks → pass, runs


def order(data_pass: int, padded: int, seed: int = 0, size: int = SIZE) -> list[int]:
    """As a DistributedSampler has it: shuffled for each pass, and filled up with its first ones."""
    shuffled = list(range(size))
    random.Random(1000 * seed + data_pass).shuffle(shuffled)
    return shuffled + shuffled[: padded - size]


def sampler(seed: int = 0, shift: Callable[[int], int] = int, size: int = SIZE) -> Told:
    """`shift`: the step that the sampler believes to be at."""

    def told(step: int, rank: int, ranks: int) -> tuple[int, list[list[int]]]:
        per_pass = -(-size // (BATCH * ranks))
        data_pass, place = divmod(shift(step) - 1, per_pass)
        mine = order(data_pass, per_pass * BATCH * ranks, seed, size)[rank::ranks][place * BATCH : (place + 1) * BATCH]
        return data_pass, [[index, 1] for index in mine]

    return told


def in_order(step: int, rank: int, ranks: int) -> tuple[int, list[list[int]]]:
    """Without shuffling: one run with the stride of a DistributedSampler."""
    return 0, [[(step - 1) * BATCH * ranks + rank, BATCH, ranks]]


@bending
def telling(logs: Logs, told: Told, last_lives: Told | None = None) -> None:
    """The logs of an observed trainer: it tells indices, and no place in a shuffled order that it does not know."""
    for lines in logs.trainers():
        chosen = last_lives if last_lives and lines in logs.last_lives() else told
        for line in steps(lines):
            for field in ("first", "count", "digest"):
                line.pop(field, None)
            line["epoch"], line["samples"] = chosen(line["step"], lines[0]["rank"], lines[0]["world_size"])


def run_of(told: Told, after: Told | None = None, outages: list[Outage] = KILL, expect: Any = EXACT) -> Timeline:
    return bent(JOB, telling(told, after), lambda logs: expecting(logs, expect), outages=outages, seed=5)


def fault_free_of(told: Told, seed: int = 99) -> Timeline:
    return bent(JOB, telling(told), seed=seed)


def found(run: Timeline, fault_free: Timeline, *calibration: Timeline) -> Consumed:
    result = samples.consumed(Evidence(run, fault_free, calibration))
    assert result is not None
    return result


def card(run: Timeline, fault_free: Timeline, *calibration: Timeline) -> Scorecard:
    return judge(Evidence(run, fault_free, calibration), "observed")


def late(step: int, rank: int, ranks: int) -> tuple[int, list[list[int]]]:
    """The batch before the resume comes again, and everything after it comes one step late."""
    return in_order(step - 1, rank, ranks)


@pytest.mark.parametrize("told", [sampler(), in_order], ids=["shuffled", "in order"])
def test_a_healthy_run_passes_and_says_what_was_not_judged(told: Told) -> None:
    judged = card(run_of(told), fault_free_of(told))
    assert judged.verdict is Verdict.PASS, judged.reasons
    assert judged.scores["loss_continuity"]["samples_repeated"] == 0
    assert judged.scores["loss_continuity"]["samples_skipped"] == 0
    assert "sample order" not in judged.not_judged and "sample contents" in judged.not_judged


def test_a_batch_that_is_repeated_after_the_resume_is_named_with_what_is_never_seen() -> None:
    """As of Lightning 2.6."""
    judged = card(run_of(in_order, late), fault_free_of(in_order))
    assert judged.verdict is Verdict.FAIL
    values = judged.scores["loss_continuity"]
    assert (values["samples_repeated"], values["samples_skipped"]) == (32, 32)
    reasons = "\n".join(judged.reasons)
    assert "consumed other samples than the fault-free run" in judged.reasons[0], "the cause is named first"
    assert "max_samples_repeated: 32 repeated (16 per rank): 288–319" in reasons
    assert "max_samples_skipped: 32 never seen (16 per rank): 1248–1279" in reasons


def test_other_samples_are_named_before_the_losses_that_they_give() -> None:
    def rank_1s_own(logs: Logs, after: float = 1) -> None:
        for lines in logs.trainers():
            change(steps(lines) * (lines[0]["rank"] == 1), loss=lambda line: 2 * line["loss"])
        change(logs.steps(rank=1, life=-1), loss=lambda line: after * line["loss"])

    bends = telling(in_order, late), lambda logs: rank_1s_own(logs, 1.5), lambda logs: expecting(logs, EXACT)
    reasons = card(bent(JOB, *bends, outages=KILL, seed=5), bent(JOB, telling(in_order), rank_1s_own, seed=99)).reasons
    assert "consumed other samples" in reasons[0] and "the loss of rank 1 differs" in reasons[1], reasons


def test_the_same_defect_is_told_where_nobody_expects_anything_of_it() -> None:
    judged = card(run_of(in_order, late, expect={"recovery_time": {"max": "60s"}}), fault_free_of(in_order))
    assert judged.verdict is Verdict.PASS
    assert "32 repeated (16 per rank)" in judged.not_judged["sample order"]


def test_samples_that_are_only_to_be_reported_fail_nothing() -> None:
    expect = {"loss_continuity": {"mode": "final", "samples": "reported"}}
    judged = card(run_of(in_order, late, expect=expect), fault_free_of(in_order))
    assert judged.verdict is Verdict.PASS, judged.reasons
    assert "32 repeated (16 per rank)" in judged.not_judged["sample order"]
    clash = {"loss_continuity": {"mode": "final", "samples": "reported", "max_samples_repeated": 1}}
    wrong = card(run_of(in_order, late, expect=clash), fault_free_of(in_order))
    assert wrong.verdict is Verdict.INCONCLUSIVE and "samples: reported sets no bound" in wrong.reasons[0]


@pytest.mark.parametrize(
    ("odd", "where"),
    [({12}, " (16 per rank): "), ({12, 20}, " (32 per rank) in 2 passes over the data, 5 % of the 1280 consumed: ")],
)
def test_samples_of_several_passes_are_told_with_their_share(odd: set[int], where: str) -> None:
    again = sampler(shift=lambda step: step - (step in odd))
    result = found(run_of(sampler(), again), fault_free_of(sampler()))
    assert result.repeated == 32 * len(odd)
    assert result.repeated_where.startswith(where)


def test_padding_is_legal_as_the_fault_free_run_has_it() -> None:
    told = sampler(size=SIZE - 11)
    run = run_of(told)
    assert len(set(in_pass(run, 0))) < len(in_pass(run, 0)), "nothing is repeated: the test shows nothing"
    result = found(run, fault_free_of(told))
    assert (result.repeated, result.skipped, result.moved) == (0, 0, 0)


def in_pass(run: Timeline, data_pass: int) -> list[int]:
    rows = np.flatnonzero((run.steps.data_pass == data_pass) & run.steps.survives)
    return list(run.samples.expanded(run.steps.samples[rows]).tolist())


def test_passes_counted_anew_in_each_life_and_ranks_that_changed_places_are_not_accused() -> None:
    def from_zero(step: int, rank: int, ranks: int) -> tuple[int, list[list[int]]]:
        return 0, sampler()(step, rank, ranks)[1]

    assert card(run_of(sampler(), from_zero), fault_free_of(sampler())).verdict is Verdict.PASS

    def swapped(step: int, rank: int, ranks: int) -> tuple[int, list[list[int]]]:
        return sampler()(step, ranks - 1 - rank, ranks)

    assert card(run_of(sampler(), swapped), fault_free_of(sampler())).verdict is Verdict.PASS


def test_the_same_samples_in_another_order_are_seen() -> None:
    swapped = sampler(shift=lambda step: {21: 22, 22: 21}.get(step, step))
    run, fault_free = run_of(sampler(), swapped), fault_free_of(sampler())
    result = found(run, fault_free)
    assert (result.repeated, result.skipped, result.moved, result.first_moved) == (0, 0, 2, 21)
    judged = card(run, fault_free)
    assert judged.verdict is Verdict.FAIL
    assert "2 steps consumed other samples than the fault-free run, first at step 21" in judged.reasons[0]


def drawn(size: int, seed: int = 0) -> Told:
    """Samples of one pass that never ends, each drawn by chance from all."""

    def told(step: int, rank: int, ranks: int) -> tuple[int, list[list[int]]]:
        chance = random.Random(f"{seed} {step} {rank}")
        return 0, [[chance.randrange(size), 1] for _ in range(BATCH)]

    return told


@pytest.mark.parametrize(
    ("now", "after", "repeated"),
    [
        (sampler(seed=1), sampler(seed=1), 0),
        (sampler(seed=1), sampler(seed=2), 44),  # the rest of the pass, which began before the restart, is another's
        (sampler(seed=1), sampler(seed=1, shift=lambda step: step - 1), 32),
        (sampler(seed=1), sampler(seed=1, shift=lambda step: step - 2 * (step == 12)), 32),
        (sampler(seed=1), sampler(seed=1, shift=lambda step: step - (step == 9)), 0),  # before the restart
        (sampler(seed=1, shift=lambda step: step - (step == 6)), sampler(seed=2), None),  # it did so before, too
        (drawn(500, seed=1), drawn(500, seed=2), None),
        (drawn(10**5, seed=1), drawn(10**5, seed=2), 0),
    ],
)
def test_an_order_of_its_own_repeats_no_sample_of_a_pass(now: Told, after: Told, repeated: int | None) -> None:
    fault_free = fault_free_of(sampler(seed=3) if now.__qualname__ == sampler().__qualname__ else drawn(10**5, 3))
    judged = card(run_of(now, after), fault_free)
    assert judged.verdict is (Verdict.FAIL if repeated else Verdict.PASS), judged.reasons
    assert judged.scores["loss_continuity"]["samples_repeated"] == repeated
    assert "not comparable" in judged.not_judged["sample order"]
    (state,) = [each for each in judged.guarantees if each.name == "result.samples_in_order"]
    assert state.state == "not judged" and "not comparable" in state.why


def test_fault_free_repeats_that_differ_among_each_other_accuse_nobody_either() -> None:
    run, fault_free = run_of(sampler(), sampler(seed=2)), fault_free_of(sampler())
    assert found(run, fault_free).repeated
    assert found(run, fault_free, fault_free_of(sampler(), seed=7)).repeated
    other = found(run, fault_free, fault_free_of(sampler(seed=4), seed=7))
    assert not other.comparable and "differs between fault-free runs" in other.why


def test_a_fault_before_the_first_step_proves_no_order() -> None:
    early = [Outage(0, "rank", victim=1)]
    judged = card(run_of(sampler(seed=1), outages=early), fault_free_of(sampler()))
    assert_verdict(judged, Verdict.INCONCLUSIVE, "nothing shows that the order is the same in every run")


@pytest.mark.parametrize("defect", [False, True])
def test_with_another_number_of_ranks_whole_passes_are_compared(defect: bool) -> None:
    """One rank consumes half as much in a step: its passes take twice as many."""

    def global_place(step: int, rank: int, ranks: int) -> tuple[int, list[list[int]]]:
        """Goes on where the two ranks stood after step 10: 320 samples, pass 1 at 64."""
        if ranks == 2:
            return sampler()(step, rank, ranks)
        place = 320 + (step - 11) * BATCH
        data_pass, first = divmod(place, SIZE)
        if defect and data_pass == 1 and first >= 128:
            first -= 16
        return data_pass, [[index, 1] for index in order(data_pass, SIZE)[first : first + BATCH]]

    outages = [Outage(17, "shrink", victim=1)]
    run = run_of(global_place, outages=outages)
    assert {epoch.size for epoch in run.epochs} == {1, 2}
    result = found(run, fault_free_of(sampler()))
    assert not result.why
    assert (result.repeated, result.skipped, result.others) == ((16, 16, 0) if defect else (0, 0, 0))


@pytest.mark.parametrize("asked", [False, True])
def test_with_another_number_of_ranks_and_no_passes_the_order_is_not_judged(asked: bool) -> None:
    """A sampler whose epoch is never set: in a smaller world nothing shows what should have been consumed."""

    def without_passes(logs: Logs) -> None:
        telling(sampler())(logs)
        change(logs.steps(), "epoch")

    expect = {"loss_continuity": {"mode": "final"} | ({"max_samples_repeated": 0} if asked else {})}
    shrunk = simulate(JOB, [Outage(17, "shrink", victim=1)], seed=5)
    judged = verdict(shrunk, without_passes, expect, bent(JOB, without_passes))
    text = "the trainer does not report where a pass over the data begins"
    assert text in judged.not_judged["sample order"]
    lines = {each.name: each for each in judged.expectations if "samples" in each.name}
    assert bool(lines) is asked and all(each.verdict is Verdict.INCONCLUSIVE for each in lines.values())


def test_a_step_that_tells_no_samples_makes_the_rest_no_proof() -> None:
    def hole(logs: Logs) -> None:
        next(logs.steps(30, 30, rank=1, life=-1)).pop("samples")

    run = bent(JOB, telling(sampler()), hole, outages=KILL, seed=5)
    result = found(run, fault_free_of(sampler()))
    assert result.repeated is None and "1 step of a rank without a report" in result.why


@bending
def digests(logs: Logs, shift: int = 0, seed: str = "") -> None:
    """Only the inputs' digests are told, each rank's own; `shift`: of how many steps earlier they are at last."""
    for lines in logs.trainers():
        moved = shift if lines in logs.last_lives() else 0
        for line in steps(lines):
            del line["first"], line["count"]
            line["digest"] = f"{seed}{line['step'] - moved}/{lines[0]['rank']}"


def test_digests_of_inputs_are_held_against_those_of_the_fault_free_run() -> None:
    history, fault_free = simulate(JOB, KILL, seed=5), bent(JOB, digests())
    assert verdict(history, digests(), EXACT, fault_free).verdict is Verdict.PASS
    assert_verdict(verdict(history, digests(shift=1), EXACT, fault_free), Verdict.FAIL, "2 inputs of steps repeated")
    other = verdict(history, digests(seed="x"), EXACT, fault_free)
    assert other.verdict is Verdict.PASS and "not comparable" in other.not_judged["sample order"]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(11, 40), st.integers(0, 1), st.integers(0, 2000)), max_size=4))
def test_amounts_are_those_of_plain_multisets(changes: list[tuple[int, int, int]]) -> None:
    changed = {(step, rank): index for step, rank, index in changes}

    def odd(step: int, rank: int, ranks: int) -> tuple[int, list[list[int]]]:
        data_pass, runs = in_order(step, rank, ranks)
        if (step, rank) not in changed:
            return data_pass, runs
        first, count, stride = runs[0]
        return data_pass, [[changed[step, rank], 1], [first + stride, count - 1, stride]]

    run, fault_free = run_of(in_order, odd), fault_free_of(in_order)
    ours, usual = Counter(in_pass(run, 0)), Counter(in_pass(fault_free, 0))
    extra, lacking = list((ours - usual).elements()), list((usual - ours).elements())
    result = found(run, fault_free)
    assert (result.repeated or 0) + result.others == len(extra)
    assert result.repeated == sum(ours[index] > 1 for index in extra)
    assert result.skipped == len(lacking)


def test_what_is_named_is_short() -> None:
    assert samples.named(np.array([128, 129, 130, 7, 130])) == "7, 128–130"
    assert samples.named(np.arange(0, 100, 2)) == "0, 2, 4, 6, 8, 10, …"


def one_batch(step: int, rank: int, ranks: int) -> tuple[int, list[list[int]]]:
    return in_order(min(step, 20), rank, ranks)


def of_rank_0(step: int, rank: int, ranks: int) -> tuple[int, list[list[int]]]:
    return in_order(step, 0, ranks)


def behind_rank_0(step: int, rank: int, ranks: int) -> tuple[int, list[list[int]]]:
    """From step 18 on, rank 1 takes what rank 0 took a step ago."""
    late = rank == 1 and step >= 18
    return in_order(step - late, rank - late, ranks)


def each_pass_alike(step: int, rank: int, ranks: int) -> tuple[int, list[list[int]]]:
    """Without `set_epoch`."""
    return in_order((step - 1) % 8 + 1, rank, ranks)


def anew(*who: int, told: Told = in_order, since: int = 18) -> Told:
    """These ranks start their data again."""
    return lambda step, rank, ranks: told(step - (since - 1) * (step >= since and rank in who), rank, ranks)


def without(*who: int, since: int = 18) -> Told:
    return lambda step, rank, ranks: (0, []) if step >= since and rank in who else in_order(step, rank, ranks)


@pytest.mark.parametrize(
    ("kind", "usual", "now", "odd"),
    [
        ("rank", in_order, in_order, ""),
        ("rank", in_order, late, ""),  # other samples, but not three steps in a row
        ("rank", in_order, one_batch, "at step 21 rank 0 processed the samples of step 20 again"),
        ("rank", one_batch, one_batch, ""),
        ("rank", in_order, of_rank_0, "processed another rank's samples of step"),
        ("rank", in_order, behind_rank_0, "at step 18 rank 1 processed another rank's samples of step 17"),
        ("replica", in_order, behind_rank_0, "at step 18 rank 1 processed another rank's samples of step 17"),
        ("rank", of_rank_0, of_rank_0, ""),  # as ranks do that share a model's layers
        ("rank", in_order, anew(0, 1, since=11), ""),  # new processes may, as `loss_continuity` says
        ("rank", in_order, without(1), "at step 18 rank 1 processed no samples"),
        ("rank", without(1), without(1), ""),
        ("replica", in_order, anew(1), ""),
        ("replica", in_order, anew(0), "at step 18 rank 0 processed the samples of step 1 again"),
        ("replica", each_pass_alike, anew(1, told=each_pass_alike, since=22), ""),
        ("replica", each_pass_alike, anew(0, told=each_pass_alike, since=22), "samples of step 17 again"),
        ("replica", in_order, without(0), "at step 18 rank 0 processed no samples"),
    ],
)
def test_no_rank_repeats_a_batch_takes_another_ranks_or_has_none(kind: str, usual: Told, now: Told, odd: str) -> None:
    outages = [Outage(17 if usual is in_order else 21, kind, victim=1)] if kind == "replica" else KILL
    run = run_of(usual, now, outages, expect={"recovery_time": {"max": "60s"}})
    judged = card(run, fault_free_of(usual))
    assert judged.verdict is (Verdict.FAIL if odd else Verdict.PASS), judged.reasons
    assert odd in "".join(each.text for each in judged.findings if each.code == "result.batches_whole")
