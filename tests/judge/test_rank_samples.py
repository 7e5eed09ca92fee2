"""A rank with fewer or duplicate samples: named with its step. Shares that differ by one sample are legal."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from judging import EXPECT, Logs, fault_free_of, steps, trainers, verdict

from harness.judge.score import Scorecard, Verdict
from harness.theory.simulator import Job, Outage, simulate

Bend = Callable[[Logs], object]


def telling(job: Job, rank: int = -1, at: range = range(0), lost: int = 1) -> Bend:
    """Every rank tells how many samples it had, as equal as possible; one rank had some less in these steps."""
    world = job.nodes

    def bend(logs: Logs) -> None:
        for lines in trainers(logs):
            own = lines[0]["rank"]
            for line in steps(lines):
                line["rank_samples"] = (line["count"] + world - 1 - own) // world
                line["rank_samples"] -= lost * (own == rank and line["step"] in at)

    return bend


def judged(job: Job, bend: Bend) -> Scorecard:
    return verdict(simulate(job, (), 3), bend, EXPECT, fault_free=fault_free_of(job))


def accused(card: Scorecard) -> list[str]:
    return [text for text in card.reasons if text.startswith("rank_samples")]


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
    assert reason.startswith("rank_samples: at step 22 rank 1 computed with")
    assert reason.endswith("the trainer did not say so")
    assert card.metrics["batches_short"] == 3


def test_steps_that_were_rolled_back_do_not_count() -> None:
    job = Job(nodes=2, steps=40, every=10)
    history = simulate(job, [Outage(27, "rank", victim=1)], 5)

    def bend(logs: Logs) -> None:
        for name, lines in logs.items():
            for line in steps(lines) if name != "harness" else ():
                line["rank_samples"] = line["count"] // 2
        first = next(line for line in steps(trainers(logs, rank=1)[0]) if line["step"] == 25)
        first["rank_samples"] -= 1

    card = verdict(history, bend, EXPECT, fault_free=fault_free_of(job))
    assert not accused(card)


def test_a_trainer_that_does_not_tell_is_not_judged() -> None:
    card = judged(Job(nodes=2, steps=20, every=10), lambda logs: None)
    assert "batches_short" not in card.metrics and not accused(card)


def test_what_is_told_in_some_steps_only_may_hide_the_others() -> None:
    job = Job(nodes=2, steps=40, every=10)

    def hiding(logs: Logs) -> None:
        telling(job, rank=1, at=range(22, 25))(logs)
        for line in (line for lines in trainers(logs, rank=1) for line in steps(lines, 22, 24)):
            del line["rank_samples"]

    card = judged(job, hiding)
    assert card.verdict is Verdict.INCONCLUSIVE
    assert accused(card) == ["rank_samples: at step 22 rank 1 did not report its samples, but in other steps it did"]
