"""A job whose command a fault has changed on purpose is compared with the fault-free run up to the change only."""

from typing import Any

import pytest
from judge.test_seen_saves import JOB as WATCHED
from judge.test_seen_saves import watched, with_part, with_seen
from judging import ENVELOPE, EXACT, Bend, acted_as, bent, load, struck, verdict
from scorecards import assert_verdict
from simulator import Job, Logs, Outage, change, simulate
from whole import slower, stretched

from harness.judge.verdict import Verdict

JOB = Job(nodes=2, steps=60, every=10)
KILL = [Outage(25, "rank", victim=1)]  # back to step 20
CHANGED: dict[str, Any] = {"may": ["kill", "move"], "changes": True}
FAIL, INCONCLUSIVE, PASS = Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS


def changed(*bends: Bend, **told: Any) -> Bend:
    def bend(logs: Logs) -> None:
        acted_as(logs, "made_up", **CHANGED | told)
        for each in bends:
            each(logs)

    return bend


def times(figure: str, first: int, life: int = -1, by: float = 1.5) -> Bend:
    changes: dict[str, Any] = {figure: lambda line: line[figure] * by}
    return told(first, life, **changes)


def told(first: int, life: int = -1, *gone: str, last: int = 60, **fields: Any) -> Bend:
    return lambda logs: [change(logs.steps(first, last, rank=rank, life=life), *gone, **fields) for rank in (0, 1)]


def no_third(logs: Logs) -> None:
    logs.lose("step", step=range(3, 61, 3), rank=1)
    logs.number()


def shifted(logs: Logs) -> None:
    """From the restart on each batch lies a whole batch further back."""
    for rank in (0, 1):
        change(logs.steps(21, 60, rank=rank, life=-1), first=lambda line: line["first"] - line["count"])


@pytest.mark.parametrize(
    ("bend", "found", "said"),
    [
        (times("loss", 21), FAIL, "loss"),  # nothing was changed on purpose
        (changed(times("loss", 22)), PASS, ""),
        (changed(times("loss", 21), shows="loss"), PASS, ""),
        (changed(times("loss", 15, life=0)), INCONCLUSIVE, "step 15 differs from the fault-free run before"),
        (changed(shifted), FAIL, "16 samples were repeated, first at step 21"),
        (changed(times("lr", 21), shows="lr"), PASS, ""),
        (changed(times("loss", 22), shows="lr"), FAIL, "in 40 of 40 steps since the change after step 20 the learning"),
        (changed(), PASS, ""),  # no figure has to show it
    ],
)
def test_losses_count_until_the_change_and_samples_and_restores_beyond_it(
    bend: Bend, found: Verdict, said: str
) -> None:
    card = verdict(simulate(JOB, KILL, seed=5), bend)
    assert_verdict(card, found, said)
    if found is PASS:
        assert card.not_judged["losses after step 20"] == "the configuration was changed on purpose"


def test_by_the_last_losses_alone_none_are_judged() -> None:
    card = verdict(simulate(JOB, KILL, seed=5), changed(times("loss", 22)), {"loss_continuity": {"mode": "final"}})
    assert_verdict(card, PASS, "")
    assert "losses" in card.not_judged and "final loss" not in card.reasons[0]
    bend = changed(told(15, 0, loss="nan", last=16), told(31, loss="nan"))
    card = verdict(simulate(JOB, KILL, seed=5), bend, {"loss_continuity": {"mode": "final"}})
    assert_verdict(card, FAIL, "max_nonfinite_steps: 2 is more than 0")


def test_a_band_reaches_to_the_change() -> None:
    bands = [bent(JOB, times("loss", 1, by=1 + 1e-9 * n), seed=n) for n in (1, 2, 3)]
    for step, life, found, said in (
        (22, -1, PASS, ""),
        (18, 0, INCONCLUSIVE, "step 18 is outside the band before any"),
    ):
        bend = changed(times("loss", step, life))
        assert_verdict(verdict(simulate(JOB, KILL, seed=5), bend, ENVELOPE, calibration=bands), found, said)


SINCE = "the first since the change,"


@pytest.mark.parametrize(
    ("bend", "found", "said"),
    [
        (changed(times("loss", 21, by=1.0000001), updates_only=True), FAIL, f"{SINCE} the loss of rank 0 is"),
        (changed(times("grad_norm", 21, by=9.0), updates_only=True), FAIL, f"{SINCE} the gradient norm of rank 0"),
        (changed(times("grad_norm", 22, by=9.0), updates_only=True), PASS, ""),
        (changed(times("loss", 21, by=1.1)), PASS, ""),
        (changed(times("loss", 21, by=9.0)), INCONCLUSIVE, f"{SINCE} the loss of rank 0"),
        (changed(told(21, -1, "loss", last=21), updates_only=True), INCONCLUSIVE, "rank 0 does not tell its loss"),
        (changed(told(31, -1, "loss"), updates_only=True), INCONCLUSIVE, "does not tell its loss at step 31"),
        (changed(told(31, loss=2.5), updates_only=True), INCONCLUSIVE, "the loss is 2.5 in all steps 31 to 60"),
        (changed(told(21, -1, "lr"), updates_only=True), PASS, ""),
        (changed(told(21, -1, "lr"), shows="lr"), INCONCLUSIVE, "nearly no step since the change after step 20 shows"),
        (changed(times("lr", 21, by=1 + 1e-15), shows="lr"), FAIL, "in 40 of 40 steps"),
        (changed(times("lr", 58), shows="lr"), FAIL, "in 37 of 40 steps"),
        (changed(times("lr", 41), shows="lr"), INCONCLUSIVE, "in 20 of 40 steps"),
        (changed(times("lr", 25), shows="lr"), PASS, ""),
        (changed(told(31, loss="nan"), updates_only=True), FAIL, "the loss is no number, last at step 60"),
        (changed(told(31, loss="nan", applied=False, last=31), updates_only=True), PASS, ""),  # loss scaling skips one
        (changed(told(31, loss="nan")), PASS, ""),  # other code may do anything
        (changed(times("lr", 21), updates_only=True, shows="lr"), INCONCLUSIVE, "but all losses are the fault-free"),
        (changed(times("lr", 21), times("loss", 60), updates_only=True, shows="lr"), PASS, ""),
        (changed(times("lr", 21), times("grad_norm", 60), updates_only=True), PASS, ""),
        (changed(updates_only=True), PASS, ""),  # perhaps the same settings again
        (changed(no_third), FAIL, "rank 1 (of 2) did not do step 3"),
    ],
)
def test_the_first_step_shows_the_weights_from_before_and_nearly_all_later_ones_the_change(
    bend: Bend, found: Verdict, said: str
) -> None:
    assert_verdict(verdict(simulate(JOB, KILL, seed=5), bend), found, said)


WEIGHTS = {"weights": lambda line: f"{line['step']:013x}"}
OWN = {"loss": lambda line: line["loss"] + line["mine"]}


@pytest.mark.parametrize(
    ("always", "bend", "found", "said"),
    [
        (WEIGHTS, told(22, weights=lambda line: f"{line['step'] + 99:013x}"), PASS, ""),
        (WEIGHTS, told(21, weights=lambda line: f"{line['step'] + 99:013x}"), FAIL, f"{SINCE} rank 0 computed with"),
        (OWN, told(22, loss=lambda line: line["loss"] + 1), PASS, ""),
        (OWN, times("loss", 21), FAIL, f"{SINCE} the loss of rank 0 is"),
    ],
)
def test_each_rank_goes_on_with_its_own_weights(always: dict[str, Any], bend: Bend, found: Verdict, said: str) -> None:
    def in_both(logs: Logs) -> None:
        for rank in (0, 1):
            change(logs.steps(rank=rank), mine=rank / 8)
        change(logs.steps(), "mine", **always)

    usual = simulate(JOB, (), 99)
    in_both(logs := usual.logs())
    history = simulate(JOB, KILL, seed=5)
    assert_verdict(
        verdict(history, changed(in_both, bend, updates_only=True), fault_free=load(usual, logs)), found, said
    )


@pytest.mark.parametrize("lost", [(), ("restored",)])
def test_the_first_step_is_not_judged_if_only_later_ones_are_told(lost: tuple[str, ...]) -> None:
    usual, history = simulate(JOB, (), 99), simulate(JOB, KILL, seed=5)

    def every_second(logs: Logs) -> None:
        logs.lose("step", step=range(1, 60, 2))
        logs.lose(*lost)
        logs.number()

    every_second(logs := usual.logs())
    card = verdict(history, changed(every_second, times("loss", 22), updates_only=True), fault_free=load(usual, logs))
    assert not any(SINCE in reason for reason in card.reasons), card.reasons
    (mine,) = (each for each in card.guarantees if each.name == "restart.as_changed")
    assert mine.why == "not both runs tell the first step that was done since the change"


def stands_still(life: int, step: int) -> Bend:
    def bend(logs: Logs) -> None:
        begin, end = (line["mono_ns"] for line in logs.steps(step - 1, step, rank=0, life=life))
        stretched(logs, begin, end, 1 + 50e9 / (end - begin))

    return bend


ANEW: dict[str, Any] = {"tensors": lambda line: f"x{line['step']}", "tensor_digests": ()}


@pytest.mark.parametrize(
    ("bend", "found", "of_code", "said"),
    [
        (with_seen(40, **ANEW), PASS, PASS, ""),
        (with_seen(40, zero_bytes=900), FAIL, FAIL, "saw 100% of its tensors' bytes in tensors of zeros"),
        (with_seen(20, 20, zero_bytes=900), FAIL, FAIL, "of step 20 is none: the harness saw 100%"),
        (with_seen(40, zero_bytes=600), FAIL, INCONCLUSIVE, "saw 67% of its tensors' bytes in tensors of zeros"),
        (with_seen(40, tensor_count=None), FAIL, INCONCLUSIVE, "it has no known tensors, and 3 without a fault"),
        (with_seen(40, bytes=100), FAIL, INCONCLUSIVE, "the harness saw 100 bytes, and at least 1,000"),
        (with_seen(40, bytes=860, tensor_count=4), FAIL, PASS, "the harness saw 860 bytes, and at least 1,000"),
        (with_seen(50, sha256="s20"), FAIL, FAIL, "saw in it the content of the checkpoint of step 20"),
        (with_part(20, "280 other"), INCONCLUSIVE, INCONCLUSIVE, "of step 20 holds other tensors than in the fault"),
        (stands_still(-1, 60), INCONCLUSIVE, INCONCLUSIVE, "after step 59, while no fault was at work"),
        (stands_still(0, 20), INCONCLUSIVE, INCONCLUSIVE, "after step 19, while no fault was at work"),
        (told(41, digest="other", last=80), FAIL, PASS, "40 steps consumed other samples than the fault-free run"),
    ],
)
def test_saves_standstills_and_samples_are_judged_as_far_as_the_change_leaves_them(
    bend: Bend, found: Verdict, of_code: Verdict, said: str
) -> None:
    history, usual = simulate(WATCHED, [Outage(37, "rank", victim=1)], seed=5), bent(WATCHED, watched)
    for expected, of_settings in ((found, True), (of_code, False)):
        card = verdict(history, changed(watched, bend, updates_only=of_settings), EXACT, usual)
        assert_verdict(card, expected, said * (expected is not PASS))


def test_what_is_not_judged_after_the_change_is_said() -> None:
    of_code = {"drill.last_step", "result.samples_in_order", "saves.all_parts", "saves.removed_in_time"}
    for only, more in ((True, set[str]()), (False, of_code)):
        bend = changed(watched, times("loss", 60), lambda logs: slower(logs, 3, 41, 80), updates_only=only)
        card = verdict(simulate(WATCHED, [Outage(37, "rank", victim=1)], 5), bend, EXACT, bent(WATCHED, watched))
        said = {each.name for each in card.guarantees if each.why.endswith("changed on purpose")}
        assert said == {"saves.own_state", "result.told_as_usual", "result.divergence_undone"} | more
        assert ("pace" in card.not_judged) is not only and "losses after step 30" in card.not_judged
        assert (card.evidence.ledger.accounts["straggler_drag"] > 0) is only


def test_a_slowdown_after_other_code_has_nothing_to_be_measured_against() -> None:
    def slows(logs: Logs) -> None:
        begin, end = (line["mono_ns"] for line in logs.steps(40, 45, rank=0) if line["step"] in (40, 45))
        struck(logs, "slow", begin, end)

    for only, found, said in ((True, PASS, ""), (False, INCONCLUSIVE, "slow did not stop progress, and its slowdown")):
        assert_verdict(verdict(simulate(JOB, KILL, seed=5), changed(slows, updates_only=only)), found, said)


@pytest.mark.parametrize(("ends", "rate", "found"), [(30, 0.8, PASS), (30, 1.0, FAIL), (22, 0.8, INCONCLUSIVE)])
def test_a_learning_rate_at_the_end_of_its_schedule_shows_no_change(ends: int, rate: float, found: Verdict) -> None:
    def falls(logs: Logs) -> None:
        change(logs.steps(), lr=lambda line: 1.0 if line["step"] <= ends else 0.1)

    usual, history = simulate(JOB, (), 99), simulate(JOB, KILL, seed=5)
    falls(logs := usual.logs())
    bend = changed(falls, told(21, lr=rate, last=ends), times("loss", 60), updates_only=True, shows="lr")
    said = {PASS: "", FAIL: "in 10 of 10 steps", INCONCLUSIVE: "shows by its learning rate whether"}[found]
    assert_verdict(verdict(history, bend, fault_free=load(usual, logs)), found, said)
