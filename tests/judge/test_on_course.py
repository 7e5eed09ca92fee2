"""`result.on_course`: a loss or gradient norm that is far off the fault-free run's for a while, with `mode: final`."""

import random
from typing import Any

import pytest
from judging import Bend, acted_as, bending, bent, struck, together, verdict
from scorecards import assert_verdict
from simulator import Job, Logs, Outage, change, simulate

from harness.judge.verdict import Verdict

JOB = Job(nodes=2, steps=600, every=100)
FINAL: dict[str, Any] = {"loss_continuity": {"mode": "final"}}
KILL = [Outage(217, "rank", victim=1)]  # back to step 200
FLIP = "silent_data_corruption"
FAIL, INCONCLUSIVE, PASS = Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS


def times(factor: float, first: int, last: int, figure: str = "loss") -> Bend:
    return lambda logs: change(logs.steps(first, last), **{figure: lambda line: line[figure] * factor})


@bending
def fault(logs: Logs, kind: str, healed: int, bend: Bend) -> None:
    """A fault strikes after step 20 and acts until step `healed`."""
    at = {step: min(line["mono_ns"] for line in logs.steps(step, step)) for step in (20, healed)}
    struck(logs, "fault", at[20] + 1, at[healed], kind=kind)
    logs.plan["faults"] = [{"id": "fault", "fault": kind}]
    bend(logs)


def flips(bend: Bend) -> Bend:
    return fault(FLIP, 21, bend)


def slows(bend: Bend) -> Bend:
    return fault("straggler", 21, bend)


def moves(logs: Logs) -> None:
    """The fault that struck is one that changes samples, gradients or weights."""
    acted_as(logs, "made_up", may=["kill", "move"])


def other_samples(logs: Logs) -> None:
    for rank in (0, 1):
        change(logs.steps(rank=rank, life=-1), digest=lambda line: line["digest"][::-1])


@pytest.mark.parametrize(
    ("bend", "found", "said"),
    [
        (times(2, 201, 260), FAIL, "from step 201 to step 260 the loss is far off: "),
        (times(2, 208, 240), FAIL, "from step 211 to step 240 the loss is far off: "),
        (times(0.5, 201, 260), PASS, ""),
        (times(5, 201, 600, "grad_norm"), FAIL, "the gradient norm is far off: "),
        (times(0.2, 201, 600, "grad_norm"), FAIL, "the gradient norm is far off: "),
        (times(1.2, 201, 260), PASS, ""),
        (times(1.5, 201, 600, "grad_norm"), PASS, ""),
        (times(2, 201, 204), PASS, ""),
        (times(2, 301, 330), INCONCLUSIVE, "no restart or fault came in steps 271 to 310"),
        (together(times(1.0000001, 3, 3), times(2, 201, 260)), INCONCLUSIVE, "step 3 differs from the fault-free run"),
        (together(moves, times(2, 201, 230)), INCONCLUSIVE, "fault fault1 changes what the job computes"),
    ],
)
def test_a_restart_carries_no_figure_off(bend: Bend, found: Verdict, said: str) -> None:
    assert_verdict(verdict(simulate(JOB, KILL, seed=5), bend, FINAL), found, said)


@pytest.mark.parametrize(
    ("bend", "found", "said"),
    [
        (slows(times(2, 31, 70)), FAIL, "from step 31 to step 70 the loss is far off: "),
        (fault("straggler", 75, times(2, 31, 70)), INCONCLUSIVE, "fault fault acted meanwhile"),
        (flips(times(2, 21, 50)), PASS, ""),  # it recovers within 30 steps
        (flips(times(2, 22, 26)), PASS, ""),
        (flips(times(2, 21, 60)), INCONCLUSIVE, "fault fault changes what the job computes"),
        (flips(times(2, 31, 50)), INCONCLUSIVE, "fault fault changes what the job computes"),  # it begins too late
        (flips(times(5, 26, 600, "grad_norm")), INCONCLUSIVE, "fault fault changes what the job computes"),
        (fault(FLIP, 75, times(2, 21, 100)), PASS, ""),  # it acts until step 75
        (fault(FLIP, 75, times(2, 10, 15)), PASS, ""),
        (times(1.01, 1, 3), PASS, ""),
        (together(times(5, 1, 600, "grad_norm"), times(1, 1, 600, "lr")), INCONCLUSIVE, "before any fault struck"),
    ],
)
def test_a_fault_excuses_what_it_does_itself(bend: Bend, found: Verdict, said: str) -> None:
    card = verdict(simulate(JOB, (), seed=5), bend, FINAL)
    assert_verdict(card, found, said)


def test_a_fault_that_moved_the_loss_leaves_the_guarantee_unjudged() -> None:
    card = verdict(simulate(JOB, (), seed=5), flips(times(2, 21, 50)), FINAL)
    (state,) = [each for each in card.guarantees if each.name == "result.on_course"]
    assert state.state == "not judged" and state.why.endswith("(medians of ten steps): fault fault moved it")


@pytest.mark.parametrize(
    ("factor", "figure", "found"),
    [(2.0, "grad_norm", PASS), (9.0, "grad_norm", INCONCLUSIVE), (2.0, "loss", INCONCLUSIVE)],
)
def test_with_fewer_ranks_a_sum_over_ranks_is_another_one(factor: float, figure: str, found: Verdict) -> None:
    shrunk = simulate(JOB, [Outage(217, "shrink", victim=1)], seed=5)
    card = verdict(shrunk, times(factor, 201, 400, figure), FINAL)
    assert_verdict(card, found, "1 rank did some of the steps up to there" if found is INCONCLUSIVE else "")


@pytest.mark.parametrize(("bounds", "found"), [({}, FAIL), ({"samples": "reported"}, INCONCLUSIVE)])
def test_other_samples_may_have_other_losses_if_they_are_permitted(bounds: dict[str, Any], found: Verdict) -> None:
    expect = {"loss_continuity": {"mode": "final"} | bounds}
    card = verdict(simulate(JOB, KILL, seed=5), together(other_samples, times(2, 201, 260)), expect)
    assert_verdict(card, found, "consumed the same samples, and the scenario permits" if bounds else "other samples")
    card = verdict(simulate(JOB, KILL, seed=5), times(2, 201, 260), expect)
    assert_verdict(card, FAIL, "the loss is far off")


@pytest.mark.parametrize(
    ("loss", "found", "said"),
    [
        (lambda line: line["loss"], PASS, ""),
        (lambda line: line["loss"] * 1.2, PASS, ""),
        (lambda line: line["loss"] * 1.5, INCONCLUSIVE, "from step 201 to step 400 the loss of rank 1 is far off"),
        (lambda line: line["loss"] * 2, FAIL, "from step 201 to step 400 the loss is far off"),  # in the mean, too
        (lambda line: 3.0, INCONCLUSIVE, "the loss of rank 1 is 3 in all steps 201 to 400"),
        (lambda line: "nan", FAIL, "loss_continuity.max_nonfinite_steps"),
    ],
)
def test_each_rank_with_a_loss_of_its_own_stays_on_course(loss: Any, found: Verdict, said: str) -> None:
    own: Bend = lambda logs: change(logs.steps(rank=1), loss=lambda line: line["loss"] * 1.01)  # noqa: E731
    off: Bend = lambda logs: change(logs.steps(201, 400, rank=1), loss=loss)  # noqa: E731
    card = verdict(simulate(JOB, KILL, seed=5), together(own, off), FINAL, bent(JOB, own))
    assert_verdict(card, found, said)


@pytest.mark.parametrize(("share", "found"), [(0.01, PASS), (0.25, INCONCLUSIVE)])
def test_two_ranks_that_are_off_in_opposite_directions_are_found(share: float, found: Verdict) -> None:
    own: Bend = lambda logs: change(logs.steps(rank=1), loss=lambda line: line["loss"] * 1.01)  # noqa: E731

    def off(logs: Logs) -> None:
        for rank, sign in ((0, -1), (1, 1)):
            change(logs.steps(401, rank=rank), loss=lambda line, sign=sign: line["loss"] * (1 + sign * share))

    card = verdict(simulate(JOB, KILL, seed=5), together(own, off), FINAL, bent(JOB, own))
    assert_verdict(card, found, "" if found is PASS else "is -25 % off that of the same rank")


@pytest.mark.parametrize(("last", "found"), [(280, PASS), (400, FAIL)])
def test_a_loss_that_scatters_is_far_off_if_it_lasts(last: int, found: Verdict) -> None:
    def scatters(logs: Logs) -> None:
        change(logs.steps(), loss=lambda line: 2 + random.Random(line["step"]).uniform(-0.8, 0.8))

    card = verdict(simulate(JOB, KILL, seed=5), together(scatters, times(2, 201, last)), FINAL, bent(JOB, scatters))
    assert_verdict(card, found, f"from step 201 to step {last} the loss is far off" if found is FAIL else "")


@pytest.mark.parametrize("begin", [181, 221])
def test_a_spike_of_the_fault_free_run_may_come_sooner_or_later(begin: int) -> None:
    spiky = bent(JOB, times(2, 201, 240))
    assert_verdict(verdict(simulate(JOB, KILL, seed=5), times(2, begin, begin + 39), FINAL, spiky), PASS)


def test_a_figure_far_below_where_it_began_may_be_twice_as_large() -> None:
    """1 % of how far it moves is nothing."""

    def falls(logs: Logs) -> None:
        change(logs.steps(), loss=lambda line: 10.0 if line["step"] < 100 else 0.03)

    card = verdict(simulate(JOB, KILL, seed=5), together(falls, times(2, 201, 260)), FINAL, bent(JOB, falls))
    assert "result.on_course" not in [each.code for each in card.findings]


@pytest.mark.parametrize("steps", [1, 9, 10, 11, 29])
def test_a_short_run_is_not_far_off(steps: int) -> None:
    card = verdict(simulate(Job(steps=steps), (), seed=5), expect=FINAL)
    assert "crashed" not in " ".join(card.reasons), card.reasons


def test_a_gradient_norm_that_is_told_now_and_then_is_compared_by_what_is_told() -> None:
    def seldom(logs: Logs) -> None:
        change((line for line in logs.steps() if line["step"] % 10), "grad_norm")

    bend = slows(together(times(9, 110, 600, "grad_norm"), seldom))
    card = verdict(simulate(JOB, (), seed=5), bend, FINAL, bent(JOB, seldom))
    assert_verdict(card, FAIL, "to step 600 the gradient norm is far off: ")


def test_steps_that_may_be_no_number_are_left_out() -> None:
    def poisoned(logs: Logs) -> None:
        change(logs.steps(201, 230), loss=float("nan"))

    expect = {"loss_continuity": {"mode": "final", "max_nonfinite_steps": 30}}
    assert_verdict(verdict(simulate(JOB, KILL, seed=5), poisoned, expect), PASS)
