"""A rank with fewer or duplicate samples: named with its step. Shares that differ by one sample are legal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import EXPECT, Bend, bending, bent, fault_free_of, struck, together, verdict
from mutants.bent import a_rank_has_no_log
from simulator import Job, Logs, Outage, change, clocks, put, simulate, steps

from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict

TWO = Job(nodes=2, steps=40, every=10)


def telling(job: Job, rank: int = -1, at: range = range(0), lost: int = 1) -> Bend:
    """Every rank tells how many samples it had, as equal as possible; one rank had some less in these steps."""
    world = job.nodes

    def bend(logs: Logs) -> None:
        for lines in logs.trainers():
            own = lines[0]["rank"]
            for line in steps(lines):
                line["rank_samples"] = (line["count"] + world - 1 - own) // world
                line["rank_samples"] -= lost * (own == rank and line["step"] in at)

    return bend


def judged(job: Job, *bends: Bend, outages: list[Outage] | None = None) -> Scorecard:
    return verdict(simulate(job, outages or (), 3), together(*bends), EXPECT, fault_free_of(job))


def accused(card: Scorecard) -> list[str]:
    codes = ("result.batches_whole", "result.told_as_usual")
    return [each.text for each in card.findings if each.code in codes]


@settings(max_examples=10, deadline=None)
@given(nodes=st.integers(1, 5))
def test_shares_within_one_sample_of_each_other_are_legal(nodes: int) -> None:
    job = Job(nodes=nodes, steps=20, every=10)
    card = judged(job, telling(job))
    assert not accused(card) and card.metrics["batches_short"] == 0
    assert card.metrics["rank_samples_max"] - card.metrics["rank_samples_min"] <= 20


def test_a_rank_with_fewer_samples_is_named_with_the_first_step() -> None:
    job = Job(nodes=3, steps=40, every=10)
    card = judged(job, telling(job, rank=1, at=range(22, 25)))
    assert card.verdict is Verdict.FAIL
    (reason,) = accused(card)
    assert reason.startswith("at step 22 rank 1 computed with")
    assert reason.endswith("the trainer did not say so")
    assert card.metrics["batches_short"] == 3


def test_a_trainer_that_does_not_tell_or_has_no_sample_in_a_step_is_not_accused() -> None:
    card = judged(Job(nodes=2, steps=20, every=10), lambda logs: None)
    assert "batches_short" not in card.metrics and not accused(card)
    card = judged(TWO, telling(TWO), lambda logs: change(logs.steps(22, 22), count=0, rank_samples=0))
    assert not accused(card) and card.metrics["batches_short"] == 0
    assert card.metrics["rank_samples_min"] == 39 * 8, "of the other steps"


@pytest.mark.parametrize(
    ("suspects", "target", "kind", "accused_rank"),
    [
        ([1], 1, "data_skew", None),
        ([None], 1, "data_skew", None),  # nobody is named
        ([1, 1], 1, "data_skew", None),
        ([0], None, "data_skew", None),  # the whole node
        ([0], 1, "data", None),  # another alarm
        ([0], 1, "data_skew", 0),
        ([1, 0], 1, "data_skew", 0),  # one alarm for each accused rank
        ([7], 1, "data_skew", 7),
    ],
)
def test_an_alarm_about_skewed_samples_names_the_rank_of_the_fault(
    suspects: list[int | None], target: int | None, kind: str, accused_rank: int | None
) -> None:
    def skewed(logs: Logs) -> None:
        at = next(logs.steps(22, 22, rank=1))
        targets = [{"node": "node1", "incarnation": 1, "rank": target}]
        struck(logs, "skew", at["mono_ns"], kind="data_skew", targets=targets, may=["skew", "stop"])
        for suspect in suspects:
            told = {"event": "anomaly", "kind": kind, "at_step": 23, "suspect": suspect}
            put(logs.trainers(rank=0)[0], told | clocks(at, 10**6))

    card = judged(TWO, telling(TWO), skewed, outages=[Outage(27, "rollback")])
    text = f"the trainer named rank {accused_rank}, but fault skew acted on rank 1"
    assert accused(card) == ([] if accused_rank is None else [text])


@pytest.mark.parametrize(
    ("first", "blamed"), [(1, []), (None, ["the trainer named rank 0, but fault skew acted on rank 1"])]
)
def test_an_alarm_long_after_a_fault_that_was_named_is_not_about_it(first: int | None, blamed: list[str]) -> None:
    def skewed(logs: Logs) -> None:
        at = next(logs.steps(22, 22, rank=1))
        targets = [{"node": "node1", "incarnation": 1, "rank": 1}]
        struck(
            logs, "skew", at["mono_ns"], at["mono_ns"] + 10**6, kind="data_skew", targets=targets, may=["skew", "stop"]
        )
        alarm = {"event": "anomaly", "kind": "data_skew"}
        for suspect, line in ((first, at), (0, next(logs.steps(35, 35, rank=1)))):
            put(logs.trainers(rank=0)[0], alarm | {"suspect": suspect} | clocks(line, 10**6))

    assert accused(judged(TWO, telling(TWO), skewed, outages=[Outage(27, "rollback")])) == blamed


def test_steps_that_were_rolled_back_do_not_count() -> None:
    def short(logs: Logs) -> None:
        next(logs.steps(25, 25, rank=1))["rank_samples"] -= 1

    assert not accused(judged(TWO, telling(TWO), short, outages=[Outage(27, "rank", victim=1)]))


@bending
def moved(logs: Logs, amount: int, since: int = 0) -> None:
    """Of two ranks, the first one computes with so many samples of the other one as well."""
    for rank, more in enumerate((amount, -amount)):
        for line in logs.steps(since, rank=rank):
            line["rank_samples"] += more


@pytest.mark.parametrize(
    ("usual", "now", "found", "reason"),
    [
        (0, 0, None, ""),
        (0, 1, Verdict.INCONCLUSIVE, "they have nearly as many"),
        (0, 7, Verdict.INCONCLUSIVE, "they have nearly as many"),
        (0, 8, Verdict.FAIL, "in the fault-free run each rank has some"),
        (3, 3, None, ""),
        (3, 8, Verdict.FAIL, "in the fault-free run each rank has some"),
        (8, 8, None, ""),  # a rank without samples there, too
        (None, 8, Verdict.INCONCLUSIVE, "no fault-free run shows whether that is usual"),
        (None, 7, None, ""),
    ],
)
def test_each_rank_computes_with_its_part(usual: int | None, now: int, found: Verdict | None, reason: str) -> None:
    """Two ranks have 8 of 16 samples each, but for those that one takes over. `usual` `None`: nobody told it there."""
    fault_free = bent(TWO, telling(TWO), moved(usual)) if usual is not None else bent(TWO)
    card = verdict(simulate(TWO, (), 3), together(telling(TWO), moved(now, since=22)), EXPECT, fault_free)
    told = [each for each in card.findings if each.code == "result.batches_whole"]
    assert [each.verdict for each in told] == ([found] if found else [])
    assert all(reason in each.text and "rank 1" in each.text for each in told)


def test_what_is_told_in_some_steps_or_lives_only_may_hide_the_others() -> None:
    card = judged(TWO, telling(TWO), lambda logs: change(logs.steps(22, 24, rank=1), "rank_samples"))
    assert card.verdict is Verdict.INCONCLUSIVE
    assert accused(card) == ["at step 22 rank 1 did not report its samples, but others were reported"]
    job = Job(nodes=3, steps=60, every=10)
    card = judged(job, telling(job), silent_ranks({0, 1, 2}, life=-1), outages=[Outage(25, "rank", victim=1)])
    assert card.verdict is Verdict.INCONCLUSIVE
    assert accused(card) == ["at step 21 rank 0 did not report its samples, but others were reported"]
    card = judged(TWO, telling(TWO), a_rank_has_no_log, outages=[Outage(12, "rank", victim=1)])
    assert card.verdict is Verdict.INCONCLUSIVE and not accused(card), card.reasons


def silent_ranks(ranks: set[int], life: int | None = None) -> Bend:
    return lambda logs: [line.pop("rank_samples") for rank in ranks for line in logs.steps(rank=rank, life=life)]


@settings(max_examples=10, deadline=None)
@given(silent=st.sets(st.integers(0, 2)), usual=st.sets(st.integers(0, 2)))
def test_ranks_are_silent_only_where_they_are_in_the_fault_free_run(silent: set[int], usual: set[int]) -> None:
    job = Job(nodes=3, steps=20, every=10)
    bend, fault_free = together(telling(job), silent_ranks(silent)), bent(job, telling(job), silent_ranks(usual))
    card = verdict(simulate(job, (), 3), bend, EXPECT, fault_free)
    everybody = {0, 1, 2}
    hidden = silent != everybody if usual == everybody else not silent <= usual
    assert bool(accused(card)) == (hidden and bool(silent))
