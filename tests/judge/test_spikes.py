"""A loss that diverges must be answered; samples may be left out around it, told, and no more of them."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import judging
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import Bend, bending, bent, together, verdict
from scorecards import assert_verdict
from simulator import Job, Line, Logs, Outage, change, clocks, simulate, steps

from harness.judge.facts import alarms
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.node.emitter import abnormal

JOB = Job(nodes=2, steps=60, every=10)
SINCE, SEEN = 35, 37
EXPECT: dict[str, Any] = {"loss_continuity": {"mode": "final", "max_final_gap": 90}}
BATCH = 16


def lives(logs: Logs, step: int) -> list[Line]:
    """This step of rank 0, as often as it was done."""
    return [*logs.steps(step, step, rank=0)]


def spiking(logs: Logs, factor: float = 3.0, until: int = SEEN) -> None:
    """The first time that these steps are done."""
    for lines in logs.trainers():
        seen = set[int]()
        for line in steps(lines):
            if SINCE <= line["step"] <= until and line["step"] not in seen:
                line["loss"] *= factor
            seen.add(line["step"])


def struck(logs: Logs, after: int = SINCE - 1) -> None:
    """When this step was done for the first time."""
    at = lives(logs, after)[0]["mono_ns"]
    judging.struck(logs, "spike", at, kind="divergence", stops=True, diverges=True)


def healed(step: int) -> Bend:
    """The fault is undone when this step is done."""
    return lambda logs: logs.put({"event": "fault.healed", "fault": "spike"} | clocks(lives(logs, step)[0]))


def told(logs: Logs, event: str, **fields: Any) -> None:
    """Rank 0 says it after the step at which the spike is to be seen."""
    lines, seen = logs.trainers(rank=0)[0], lives(logs, SEEN)[0]
    lines.insert(lines.index(seen) + 1, {"event": event, "at_step": SEEN} | fields | clocks(seen))


def alarmed(logs: Logs) -> None:
    told(logs, "anomaly", kind="divergence", detail="loss 9")


@bending
def leaving_out(
    logs: Logs, batches: int = abnormal.LEFT_OUT_STEPS, says: int | None = None, begin: int = SINCE - 1
) -> None:
    """From the first step that would have met them, all later steps consume so many batches later."""
    count = (batches if says is None else says) * BATCH
    if count:
        told(logs, "samples.left_out", first=(begin - 1) * BATCH, count=count)
    named = {line["first"]: line["digest"] for line in steps(logs.trainers(rank=0)[0])}
    for lines in logs.trainers():
        again = False
        before = 0
        for line in steps(lines):
            again |= line["step"] <= before
            before = line["step"]
            if again and line["step"] >= begin:
                line["first"] += batches * BATCH
                line["digest"] = named.get(line["first"], "of a batch that the fault-free run never came to")


def judged(*bends: Bend, back: bool = True, usual: Bend = together()) -> Scorecard:  # noqa: B008
    outages = [Outage(SEEN, "rollback")] if back else []
    return verdict(simulate(JOB, outages, 3), together(*bends), EXPECT, fault_free=bent(JOB, usual))


def of_samples(card: Scorecard) -> list[str]:
    return [reason for reason in card.reasons if "sample" in reason or "spike" in reason]


def of_divergence(card: Scorecard) -> list[str]:
    return [each.text for each in card.findings if each.code == "result.divergence_undone"]


def spikes_again(logs: Logs) -> None:
    """When the job went back: what is usual is still known."""
    for line in (line for lines in logs.trainers() for line in steps(lines, SINCE, SEEN)[-3:]):
        line["loss"] *= 3


def more_is_left_out(logs: Logs) -> None:
    told(logs, "samples.left_out", first=(SINCE - 2) * BATCH, count=16 * BATCH)


def skipped(**norm: str) -> Bend:
    """An update that a loss scale leaves out has a gradient norm that is no number."""
    return lambda logs: [line.update(norm, applied=False) for line in logs.steps(SINCE, SEEN)]


def seldom(every: int) -> Bend:
    """The loss is told each so many steps."""
    return lambda logs: [line.pop("loss") for line in logs.steps() if line["step"] % every]


SPIKED = "from step 35 to step 37 the loss or the gradient norm was far above the usual"
UNTOLD = f"{SPIKED}.* and the trainer did not say so"
AROUND = f"but those around the spike at step 35 are {33 * BATCH}–{41 * BATCH - 1}"


@pytest.mark.parametrize(
    ("bends", "found"),
    [
        ([spiking, struck], UNTOLD),
        ([spiking], ""),  # without such a fault nobody is accused
        ([spiking, struck, alarmed], "the trainer said so, and went on with these steps"),
        ([spiking, struck, lambda logs: told(logs, "anomaly", kind="divergence", detail="loss 9", at_step=55)], UNTOLD),
        ([spiking, struck, skipped()], UNTOLD),
        ([spiking, struck, skipped(grad_norm="inf")], ""),
        ([lambda logs: spiking(logs, until=SINCE + 1), struck], ""),  # it passes
        ([lambda logs: spiking(logs, factor=1.2), struck], ""),
        ([struck, seldom(5)], ""),
    ],
)
def test_a_spike_must_be_answered(bends: list[Bend], found: str) -> None:
    told = of_divergence(judged(*bends, back=False))
    assert [bool(re.search(f"{found}$", text)) for text in told] == [True] * bool(found)


@pytest.mark.parametrize(
    ("bends", "found"),
    [
        ([spikes_again, struck], UNTOLD),
        ([struck, alarmed, leaving_out()], "but at step 37 nothing shows that the training diverged$"),
        ([spiking, struck, alarmed, leaving_out(9)], AROUND),
        ([spiking, struck, alarmed, leaving_out(8, begin=SINCE - 2)], AROUND),
        ([spiking, struck, alarmed, leaving_out(4, begin=SINCE + 10)], AROUND),
        ([spiking, struck, alarmed, leaving_out(0, says=8)], "but consumed some of them at step 34$"),
        ([spiking, struck, alarmed, leaving_out(16, says=8), more_is_left_out], "those around the spike at step 35"),
    ],
)
def test_what_is_left_out_is_what_spiked(bends: list[Bend], found: str) -> None:
    (text,) = of_divergence(judged(*bends))
    assert re.search(found, text), text


def test_what_is_left_out_without_a_spike_is_skipped() -> None:
    assert any("128 samples were skipped" in reason for reason in judged(alarmed, leaving_out()).reasons)


@pytest.mark.parametrize("back_to", [990, 400, 150])
def test_however_far_the_job_went_back(back_to: int) -> None:
    step = np.r_[1:1001, back_to : back_to + 30]
    loss = np.where((np.arange(len(step)) >= 1010) & (np.arange(len(step)) < 1013), 9.0, 1 + step % 2 / 100)
    columns = {"step": step, "loss": loss, "grad_norm": np.ones(len(step)), "begin": step, "end": step}
    columns |= {"survives": np.ones(len(step), np.bool_)}
    run: Any = SimpleNamespace(steps=SimpleNamespace(**columns))
    [spike] = alarms._found(run, np.arange(len(step)))
    assert (spike.step, spike.seen) == (back_to + 10, back_to + 12)


def test_a_spike_early_in_a_long_run_is_found_once_however_long_it_lasts() -> None:
    [spike] = alarms.spikes(bent(replace(JOB, steps=160), lambda logs: spiking(logs, until=SEEN + 2), struck))
    assert (spike.step, spike.seen) == (SINCE, SEEN)


@pytest.mark.parametrize("cause", [[struck], [struck, healed(SINCE - 1)], [struck, healed(SEEN)]])
def test_going_back_and_leaving_out_what_was_met_there_passes(cause: list[Bend]) -> None:
    """A spike may show once its cause is gone."""
    card = judged(spiking, *cause, alarmed, leaving_out())
    assert card.metrics["samples_left_out"] == abnormal.LEFT_OUT_STEPS * BATCH
    assert of_samples(card) == []
    assert card.scores["loss_continuity"]["samples_skipped"] == 0


def test_after_what_was_left_out_come_the_samples_that_follow_it() -> None:
    def others(logs: Logs) -> None:
        change((steps(lines, 40, 40)[-1] for lines in logs.trainers()), digest="of something else")

    (text,) = of_samples(judged(spiking, struck, alarmed, leaving_out(), others))
    assert text == "1 step consumed other samples than the fault-free run, first at step 40"


@pytest.mark.parametrize("says, skipped", [(0, 8), (3, 5), (7, 1)])
def test_more_than_was_told_is_skipped(says: int, skipped: int) -> None:
    card = judged(spiking, struck, alarmed, leaving_out(says=says))
    assert_verdict(card, Verdict.FAIL, f"{skipped * BATCH} samples were skipped")


@pytest.mark.parametrize(
    "cause",
    [
        [],  # no fault struck at all
        [lambda logs: struck(logs, SEEN + 1)],  # after the spike was to be seen
        [lambda logs: struck(logs, 22), healed(24)],  # long before
        [lambda logs: judging.struck(logs, "slow", lives(logs, SINCE - 1)[0]["mono_ns"])],  # makes no loss diverge
    ],
)
def test_a_spike_that_no_fault_accounts_for_excuses_nothing(cause: list[Bend]) -> None:
    card = judged(spiking, *cause, alarmed, leaving_out())
    assert card.verdict is Verdict.FAIL and card.metrics["samples_left_out"] == 0
    assert any(text.endswith("but no fault accounts for a spike at step 35") for text in of_divergence(card))
    assert any("128 samples were skipped" in reason for reason in card.reasons)


def each_fifth(logs: Logs) -> None:
    logs.lose("step", step=[step for step in range(1000) if step % 5])


def test_where_not_each_step_is_told_what_is_left_out_is_not_proven_nor_may_it_be_more() -> None:
    card = judged(spiking, struck, alarmed, leaving_out(), each_fifth, usual=each_fifth)
    (text,) = of_divergence(card)
    assert text.endswith("but not all steps around step 37 are told, which would show why")
    assert card.verdict is Verdict.INCONCLUSIVE, card.reasons
    card = judged(spiking, struck, alarmed, leaving_out(9), each_fifth, usual=each_fifth)
    assert card.verdict is Verdict.FAIL and "a spike excuses 128 at most" in " ".join(card.reasons)
    assert judged(spiking, struck, alarmed, leaving_out(says=0), each_fifth, usual=each_fifth).verdict is Verdict.FAIL
    assert judged(spiking, alarmed, leaving_out(), each_fifth, usual=each_fifth).verdict is Verdict.FAIL


@settings(max_examples=8, deadline=None)
@given(every=st.integers(1, 9))
def test_a_loss_told_seldom_moves_divergence_to_what_is_not_judged(every: int) -> None:
    card = judged(spiking, struck, seldom(every), back=False)
    assert ("divergence of the loss" in card.not_judged) == (every > 1)
    assert bool(of_divergence(card)) == (every == 1)
    calm = judged(spiking, seldom(every), back=False)
    assert "divergence of the loss" not in calm.not_judged, "no fault made it diverge"


@pytest.mark.parametrize("lasts, passes", [(4, True), (0, True), (-1, False)])
def test_all_that_is_left_out_is_bounded_by_how_long_the_fault_lasts(lasts: int, passes: bool) -> None:
    """One spike leaves out 8 batches; less than 0 stands for a trainer that goes back once more than it may."""

    def planned(logs: Logs) -> None:
        plan = logs.plan
        plan["faults"] = [*plan["faults"], {"id": "spike", "parameters": {"steps": lasts}}]

    card = judged(spiking, struck, planned, alarmed, leaving_out())
    wrong = [text for text in of_divergence(card) if "the faults account for 112 at most" in text]
    assert bool(wrong) != passes, card.reasons
