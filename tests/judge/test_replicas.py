"""Replicas that drift apart: named with rank and step, unless the trainer said so and went back."""

from collections.abc import Callable
from typing import Any

import judging
import pytest
from judging import EXPECT, Bend, bending, bent, fault_free_of, together, verdict
from simulator import Job, Logs, Outage, change, clocks, simulate, steps

from harness.evidence import reported
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict

JOB = Job(nodes=3, steps=60, every=10)
EVERY = 5
FLIPPED_AT = 22


@bending
def telling(logs: Logs, drifted: int | None = None, since: int = FLIPPED_AT, until: int = 10**9) -> None:
    """Every rank tells a digest each fifth step; that of one rank is another one from a step on."""
    for lines in logs.trainers():
        for line in (line for line in steps(lines) if line["step"] % EVERY == 0):
            apart = lines[0]["rank"] == drifted and since <= line["step"] < until
            line |= {"weights": f"w{line['step']}{'x' * apart}", "weights_ns": 1}


def alarmed(logs: Logs, suspect: int | None = 1, step: int = 25) -> None:
    """Rank 0 says it just before it ends this step."""
    lines, done = logs.trainers(rank=0)[0], next(logs.steps(step, step, rank=0))
    alarm = {"event": "anomaly", "kind": "replica", "at_step": step, "suspect": suspect}
    lines.insert(lines.index(done), alarm | clocks(done))


def struck(logs: Logs, rank: int = 1, drifts: bool = True, life: int | None = None) -> None:
    """A fault changed the weights of a rank at the end of a step."""
    at = next(logs.steps(FLIPPED_AT, FLIPPED_AT, rank=rank, life=life))["mono_ns"]
    targets = [{"node": f"node{rank}", "incarnation": 1, "rank": rank}]
    judging.struck(logs, "flip", at, kind="flip", targets=targets, stops=True, drifts=drifts)


def judged(*bends: Bend, job: Job = JOB, outages: Any = (), expect: dict[str, Any] | None = None) -> Scorecard:
    return verdict(simulate(job, outages, 3), together(*bends), expect, fault_free_of(job))


def of_replicas(card: Scorecard) -> list[str]:
    return [each.text for each in card.findings if each.code == "result.replicas_together"]


def test_ranks_that_agree_pass_and_are_counted() -> None:
    card = judged(telling())
    assert of_replicas(card) == []
    assert (card.metrics["replica_checks"], card.metrics["replicas_apart"]) == (60 // EVERY, 0)
    alone: Bend = lambda logs: change((*logs.steps(rank=0), *logs.steps(rank=2)), "weights")  # noqa: E731
    assert judged(telling(), alone).metrics["replica_checks"] == 0, "it agrees with nobody"


def test_a_drift_nobody_told_is_named_with_its_rank_and_step() -> None:
    card = judged(telling(drifted=1))
    assert card.verdict is Verdict.FAIL
    text = "at step 25 rank 1 computed with other weights than the majority, and the trainer did not say so"
    assert of_replicas(card) == [text] == card.reasons[:1]


def test_each_step_at_which_they_differ_is_told_by_itself() -> None:
    card = judged(telling(drifted=1, until=37))
    found = [each.words for each in card.evidence.weights_apart[1]]
    assert found == [f"at step {n} rank 1 computed with other weights than the majority" for n in (25, 30, 35)]
    assert card.metrics["replicas_apart"] == 3
    of_two = judged(telling(drifted=1), job=Job(nodes=2, steps=60, every=10))
    assert "at step 25 ranks 0, 1 each computed with other weights, and" in of_replicas(of_two)[0]
    (text,) = of_replicas(judged(telling(drifted=1), alarmed))
    assert text.endswith("the trainer said so, and went on with these steps")


def test_a_drift_that_was_told_and_rolled_back_passes() -> None:
    def going_back(logs: Logs) -> None:
        next(logs.steps(25, 25, rank=1))["weights"] = "w25x"

    outages = [Outage(27, "rollback")]
    assert of_replicas(judged(telling(), going_back, alarmed, outages=outages)) == []
    assert "did not say so" in of_replicas(judged(telling(), going_back, outages=outages))[0]


def test_a_fault_that_changed_weights_must_be_answered() -> None:
    (text,) = of_replicas(judged(telling(), struck))
    assert text.startswith("fault flip changed the weights of rank 1, and the trainer did not say so, though it took")
    assert of_replicas(judged(telling(), struck, alarmed)) == []
    (text,) = of_replicas(judged(telling(), struck, lambda logs: alarmed(logs, suspect=2)))
    assert text == "the trainer named rank 2, but fault flip acted on rank 1"
    both: Bend = lambda logs: [judging.struck(logs, "again", **again(logs)), alarmed(logs, 2, 30)]  # noqa: E731
    assert of_replicas(judged(telling(), struck, alarmed, both)) == [], "a second fault acted on rank 2"
    assert of_replicas(judged(telling(), lambda logs: struck(logs, drifts=False))) == []


def again(logs: Logs) -> dict[str, Any]:
    """A fault that changes the weights of rank 2 some steps after the first one."""
    targets = [{"node": "node2", "incarnation": 1, "rank": 2}]
    return {"at": next(logs.steps(27, 27, rank=2))["mono_ns"], "kind": "flip", "targets": targets, "drifts": True}


@pytest.mark.parametrize(("suspect", "found"), [(1, []), (None, []), (2, ["and the trainer named other ranks"])])
def test_a_drift_without_a_fault_is_found_by_who_names_its_rank(suspect: int | None, found: list[str]) -> None:
    def drifted(logs: Logs) -> None:
        next(logs.steps(25, 25, rank=1))["weights"] = "w25x"
        alarmed(logs, suspect)

    told = of_replicas(judged(telling(), drifted, outages=[Outage(27, "rollback")]))
    assert [each.rpartition(", ")[2] for each in told] == found


RESTARTED = Outage(27, "rank", victim=1)  # it goes on from step 20, and the first digest after that is of step 25
OTHER = "at step 25 rank 0 computed with other weights than in the fault-free run, though all steps before it were"


@bending
def digests(logs: Logs, of: Callable[[int, int], str | None], first_life: bool = False, phase: int = 0) -> None:
    """What a rank tells in a step, after the restart or also before it; by rank and step."""
    for rank in range(JOB.nodes):
        for line in (line for lines in logs.trainers(rank)[not first_life :] for line in steps(lines)):
            line["weights"] = of(rank, line["step"]) if line["step"] % EVERY == phase else None


def beside(usual: Bend, *bends: Bend, expect: dict[str, Any] | None = None) -> list[tuple[Verdict, str]]:
    """What is said of the weights of a job that restarted, beside such a fault-free run."""
    card = verdict(simulate(JOB, [RESTARTED], 3), together(*bends), expect, bent(JOB, usual))
    codes = ("result.replicas_together", "promised-told")
    return [(each.verdict, each.text) for each in card.findings if each.code.startswith(codes)]


@bending
def losses_change(logs: Logs, first: int) -> None:
    """After the restart, from this step on."""
    for line in (line for rank in range(JOB.nodes) for line in logs.steps(first, rank=rank, life=1)):
        line["loss"] += 1e-7


@pytest.mark.parametrize(
    "of",
    [
        lambda rank, step: f"w{step}x",  # another run's
        lambda rank, step: f"w{step - EVERY}",  # those of an older step
        lambda rank, step: "w20",  # of the step that was restored, for ever
        lambda rank, step: "0000000000000",
    ],
)
def test_weights_follow_from_the_steps_before(of: Callable[[int, int], str]) -> None:
    ((found, text),) = beside(telling(), telling(), digests(of))
    assert found is Verdict.FAIL and text.startswith(OTHER)
    assert beside(telling(), telling()) == []


def test_weights_are_only_compared_after_the_same_steps() -> None:
    """The restart leads to other losses, which the scenario allows; then the weights are others as well."""
    expect = EXPECT | {"loss_continuity": {"mode": "final"}}
    other = digests(lambda rank, step: f"w{step}x")
    assert beside(telling(), telling(), losses_change(23), other, expect=expect) == []
    ((found, _),) = beside(telling(), telling(), other, expect=expect)
    assert found is Verdict.FAIL


@pytest.mark.parametrize(
    ("also", "accused"),
    [
        ([], True),
        ([lambda logs: struck(logs, life=-1), alarmed], False),
        ([struck, alarmed], True),  # the restart undid that
        ([lambda logs: struck(logs, drifts=False), alarmed], True),
    ],
)
def test_weights_that_a_fault_changed_are_not_compared_where_the_losses_part(also: list[Bend], accused: bool) -> None:
    """From step 25 on the losses are others, and so are its weights."""
    told = beside(telling(), telling(), losses_change(25), *also, digests(lambda rank, step: f"w{step}x"))
    assert any(OTHER in text for _, text in told) is accused


def test_a_trainer_whose_weights_are_never_the_same_is_not_accused() -> None:
    ((found, text),) = beside(telling(), telling(), digests(lambda rank, step: f"w{step}x", first_life=True))
    assert found is Verdict.INCONCLUSIVE and "nothing shows that they are the same in every run" in text


@pytest.mark.parametrize("swapped", [False, True])
def test_parts_of_the_weights_are_compared_by_rank(swapped: bool) -> None:
    def parts(rank: int, step: int) -> str:
        return f"w{step} of {rank}"

    def others(rank: int, step: int) -> str:
        return parts({1: 2, 2: 1}.get(rank, rank), step)

    first, later = digests(parts, first_life=True), digests(others if swapped else parts)
    found = beside(first, first, later)
    assert [text.partition(" computed")[0] for _, text in found] == ["at step 25 rank 1"] * swapped


@pytest.mark.parametrize(
    ("of", "found"),
    [
        (lambda rank, step: f"w{step}", None),
        (lambda rank, step: "w20", Verdict.FAIL),
        (lambda rank, step: f"w{step - 2 * EVERY}", Verdict.FAIL),  # as step 21 goes on with those of step 11
    ],
)
def test_each_update_changes_the_weights(of: Callable[[int, int], str], found: Verdict | None) -> None:
    """The fault-free run tells its digests in other steps, so that none can be compared."""
    first = digests(lambda rank, step: f"w{step}", first_life=True, phase=1)
    told = beside(telling(), first, digests(of, phase=1))
    assert [verdict for verdict, _ in told] == ([found] if found else [])
    assert all("though there were updates in between" in text for _, text in told)


@pytest.mark.parametrize("field", [{"applied": False}, {"lr": 0.0}])
def test_steps_without_an_update_change_nothing(field: dict[str, Any]) -> None:
    def still(logs: Logs) -> None:
        for line in logs.steps(51):
            line |= field | {"weights": "w51" if line["step"] % EVERY == 1 else None}

    first = digests(lambda rank, step: f"w{step}", first_life=True, phase=1)
    assert [text for _, text in beside(telling(), first, still) if "in between" in text] == []
    standing = digests(lambda rank, step: f"w{min(step, 51)}", first_life=True, phase=1)
    assert len(beside(telling(), standing)) == 1
    assert beside(standing, standing) == [], "those of the fault-free run stand still, too"


def test_weights_that_are_told_once_after_a_restart_are_missing() -> None:
    ((found, text),) = beside(telling(), telling(), digests(lambda rank, step: "w25" if step == 25 else None))
    assert found is Verdict.INCONCLUSIVE and "stopped reporting this 35 steps before" in text


def test_without_digests_or_where_it_is_switched_off_it_is_not_judged_and_said_so() -> None:
    item, off = reported.ITEMS["weights"], judged(telling(drifted=1), expect=EXPECT | {"replicas": "off"})
    assert (of_replicas(off), off.not_judged[item]) == ([], "the scenario switches it off")
    assert judged(struck).not_judged[item] == "the log holds no digest of the weights"
    assert item not in judged().not_judged


def test_the_evidence_that_a_trainer_declares_must_be_there() -> None:
    card = judged(lambda logs: change((lines[0] for lines in logs.trainers()), tells=["steps", "weights"]))
    assert "evidence is missing: agreement of replicas" in card.reasons[0]
