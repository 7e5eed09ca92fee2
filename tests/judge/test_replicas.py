"""Replicas that drift apart: named with rank and step, unless the trainer said so and went back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from judging import EXPECT, Logs, fault_free_of, steps, trainers, verdict
from simulator import Job, Outage, simulate

from harness.judge.facts import reported
from harness.judge.score import Scorecard, Verdict

JOB = Job(nodes=3, steps=60, every=10)
EVERY = 5
FLIPPED_AT = 22
Bend = Callable[[Logs], object]


def telling(drifted: int | None = None, since: int = FLIPPED_AT, until: int = 10**9) -> Bend:
    """Every rank tells a digest each fifth step; that of one rank is another one from a step on."""

    def bend(logs: Logs) -> None:
        for lines in trainers(logs):
            for line in (line for line in steps(lines) if line["step"] % EVERY == 0):
                apart = lines[0]["rank"] == drifted and since <= line["step"] < until
                line |= {"weights": f"w{line['step']}{'x' * apart}", "weights_ns": 1}

    return bend


def alarmed(logs: Logs, suspect: int | None = 1, step: int = 25) -> None:
    """Rank 0 says it just before it ends this step."""
    lines = trainers(logs, rank=0)[0]
    place = next(n for n, line in enumerate(lines) if line.get("event") == "step" and line["step"] == step)
    stamp = {key: lines[place][key] for key in ("wall_ns", "mono_ns")}
    lines.insert(place, stamp | {"event": "anomaly", "kind": "replica", "at_step": step, "suspect": suspect})


def struck(logs: Logs, rank: int = 1, drifts: bool = True) -> None:
    """A fault changed the weights of a rank at the end of a step."""
    at = next(line for line in steps(trainers(logs, rank=rank)[0]) if line["step"] == FLIPPED_AT)
    stamp = {"wall_ns": at["wall_ns"], "mono_ns": at["mono_ns"], "fault": "flip"}
    targets = [{"node": f"node{rank}", "incarnation": 1, "rank": rank}]
    told = {"kind": "flip", "targets": targets, "kills": False, "stops": True, "drifts": drifts}
    events = [
        stamp | {"event": "fault.injected"} | told,
        stamp | {"event": "fault.effect", "measured": 1, "expected": 1, "unit": "bits flipped", "ok": True},
    ]
    logs["harness"] = sorted([*logs["harness"], *events], key=lambda line: line["mono_ns"])


def judged(*bends: Bend, job: Job = JOB, outages: Any = (), expect: dict[str, Any] | None = None) -> Scorecard:
    def bend(logs: Logs) -> None:
        for each in bends:
            each(logs)

    return verdict(simulate(job, outages, 3), bend, expect or EXPECT, fault_free=fault_free_of(job))


def of_replicas(card: Scorecard) -> list[str]:
    return [reason for reason in card.reasons if reason.startswith("replicas:")]


def test_ranks_that_agree_pass_and_are_counted() -> None:
    card = judged(telling())
    assert of_replicas(card) == []
    assert (card.metrics["replica_checks"], card.metrics["replicas_apart"]) == (60 // EVERY, 0)


def test_a_drift_nobody_told_is_named_with_its_rank_and_step() -> None:
    card = judged(telling(drifted=1))
    assert card.verdict is Verdict.FAIL
    text = "at step 25 rank 1 computed with other weights than the majority, and the trainer did not say so"
    assert of_replicas(card) == [f"replicas: {text}"]
    assert card.reasons[0] == f"replicas: {text}"


def test_two_ranks_cannot_tell_which_one_is_wrong() -> None:
    card = judged(telling(drifted=1), job=Job(nodes=2, steps=60, every=10))
    assert "at step 25 ranks 0, 1 each computed with other weights, and" in of_replicas(card)[0]


def test_a_drift_that_was_told_and_survives_is_a_failure_all_the_same() -> None:
    (text,) = of_replicas(judged(telling(drifted=1), alarmed))
    assert text.endswith("the trainer said so, and went on with these steps")


def test_a_drift_that_was_told_and_rolled_back_passes() -> None:
    def going_back(logs: Logs) -> None:
        for lines in trainers(logs):
            first = next(line for line in steps(lines) if line["step"] == 25)
            first["weights"] = f"w25{'x' * (lines[0]['rank'] == 1)}"

    outages = [Outage(27, "rollback")]
    assert of_replicas(judged(telling(), going_back, alarmed, outages=outages)) == []
    assert "did not say so" in of_replicas(judged(telling(), going_back, outages=outages))[0]


def test_a_fault_that_changed_weights_must_be_answered() -> None:
    (text,) = of_replicas(judged(telling(), struck))
    assert text == (
        "replicas: fault flip changed the weights of rank 1, and the trainer did not say so, "
        "though it took digests at step 25"
    )
    assert of_replicas(judged(telling(), struck, alarmed)) == []
    assert of_replicas(judged(telling(), lambda logs: struck(logs, drifts=False))) == []


def test_the_wrong_rank_is_named() -> None:
    (text,) = of_replicas(judged(telling(), struck, lambda logs: alarmed(logs, suspect=2)))
    assert text == "replicas: the trainer named rank 2, but fault flip changed rank 1"


def test_without_digests_it_is_not_judged_and_said_so() -> None:
    card = judged(struck)
    assert card.not_judged[reported.ITEMS["weights"]] == "the log holds no digest of the weights"
    assert reported.ITEMS["weights"] not in judged().not_judged


@pytest.mark.parametrize("written", ["off"])
def test_it_can_be_switched_off(written: str) -> None:
    card = judged(telling(drifted=1), expect=EXPECT | {"replicas": written})
    assert of_replicas(card) == []
    assert card.not_judged[reported.ITEMS["weights"]] == "the scenario switches it off"


def test_the_evidence_that_a_trainer_declares_must_be_there() -> None:
    def declaring(logs: Logs) -> None:
        for lines in trainers(logs):
            lines[0]["tells"] = ["steps", "weights"]

    card = judged(declaring)
    assert "evidence is missing: agreement of replicas" in card.reasons[0]
