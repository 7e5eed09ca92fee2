"""What a second restart proves: bent logs of it beside a healthy one, and what it says nothing about."""

import copy
import functools
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from judging import EXPECT, SAVES, Bend, bent, expecting, fault_free_of, load, together
from scorecards import assert_verdict
from simulator import Job, Line, Logs, Outage, clocks, find, remove, simulate, steps

from harness.evidence.logs import Evidence
from harness.judge.facts.after_the_run import at_wrong_time
from harness.judge.score import Scorecard, judge
from harness.judge.verdict import Verdict
from harness.timeline.timeline import Timeline

JOB = Job(nodes=2, steps=80, every=10)
PASS, FAIL, OPEN = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE
KILL = [Outage(17, "rank", victim=1)]
FAULT_FREE = fault_free_of(JOB)
BEFORE = 60  # the newest save is of step 80, and each is kept for three
DONE: dict[str, Any] = {"outcome": "done", "step": BEFORE, "saved_step": 80}


def again(bend: Bend = lambda logs: None, job: Job = JOB) -> Timeline:
    """The log of a restart from the save before the last one."""

    def late(logs: Logs) -> None:
        for lines in logs.trainers():
            remove(lines, lambda line: line.get("step", BEFORE + 1) <= BEFORE and line["event"] != "restored")
        restored(step=BEFORE, source="step-60", fallback=[])(logs)

    return bent(job, late, bend, seed=9)


def restored(**told: Any) -> Bend:
    return lambda logs: [line.update(told) for line in logs.all("restored")]


@functools.cache
def _run() -> Timeline:
    history = simulate(JOB, KILL, seed=5)
    return load(history, expecting(history.logs(), EXPECT))


def judged(second: Timeline | str, finished: dict[str, Any] | None = None, **run: Any) -> Scorecard:
    """A run that recovered and is the same as its fault-free run, with this second restart. `finished`: what the
    harness told of it; nothing: none was made."""
    found = replace(_run(), second_restart=(DONE if finished is None else finished) or None, **run)
    return judge(Evidence(found, copy.deepcopy(FAULT_FREE), second_restart=second), "x")


def published(run: Timeline, *digests: str) -> list[Line]:
    """What the harness saw of all saves; of the last one, tensors with these digests, one after the other."""
    done = sorted((event["step"], event["at"]) for event in run.checkpoints if event["event"] == "checkpoint.committed")
    seen: list[Line] = [{"path": f"c/step-{step}", "step": step, "at": at + 1} for step, at in done]
    last = seen.pop()
    seen += [last | {"at": last["at"] + place, "tensors": digest} for place, digest in enumerate(digests)]
    return [{"event": "checkpoint.published"} | each for each in seen]


def each_step(change: Callable[[Line], Any], **whose: int) -> Bend:
    return lambda logs: [line.update(change(line)) for line in logs.steps(**whose)]


def off_by(factor: float) -> Bend:
    return each_step(lambda line: {"loss": line["loss"] * factor})


def test_one_that_does_the_same_passes() -> None:
    card = judged(again())
    assert card.verdict is Verdict.PASS, card.reasons
    assert "second restart" not in card.not_judged and card.scores["second_restart"]["steps"] == 20


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda line: {"loss": line["loss"] + (line["step"] > 70) * 0.01}, r"at step 71 its loss is \S+, .* was \S+"),
        (lambda line: {"grad_norm": 7.5}, r"at step 61 its gradient norm is 7\.5, and the run's was \S+"),
        (lambda line: {"first": line["first"] + 16}, "at step 61 the position of the samples of rank 0 differs .*"),
        (lambda line: {"digest": "other"}, "at step 61 the digest of the samples of rank 0 differs from the run's"),
    ],
)
def test_other_results_fail(change: Callable[[dict[str, Any]], Any], reason: str) -> None:
    card = judged(again(each_step(change)))
    [told] = [text for text in card.reasons if text.startswith("second restart: ")]
    assert card.verdict is FAIL and re.fullmatch(f"second restart: {reason}", told), card.reasons


def test_a_newer_save_that_it_left_aside_was_not_seen_too_early() -> None:
    """It does the step of that save again, and the harness saw the save in the copied folder before."""
    second = again(lambda logs: restored(step=40, source="step-40")(logs))
    there = {"event": "checkpoint.published", "path": "c/step-70", "step": 70, "at": second.begin + 1}
    card = judged(replace(second, published=[there, *published(second, "t")]))
    assert any("went on from the save of step 40" in text for text in card.reasons), card.reasons
    assert not any("before any rank" in text for text in card.reasons), card.reasons


def one_crashes(logs: Logs) -> None:
    find(logs.trainers(rank=1)[0], "exiting")["code"] = -11


def saves_no_more(logs: Logs) -> None:
    logs.lose(*SAVES, step=range(71, 81))


def rank_1_stops(logs: Logs) -> None:
    logs.lose("step", step=range(71, 81), rank=1)


rank_1_is_off = each_step(lambda line: {"loss": line["loss"] * (1 + (line["step"] > 70))}, rank=1)


def its_log_says_failed(logs: Logs) -> None:
    logs.harness[-1] |= {"outcome": "failed", "reason": "the command on node1 ended with 1"}


def replicas_apart(logs: Logs) -> None:
    for lines in logs.trainers():
        for line in steps(lines)[9::10]:
            line["weights"] = "w" if line["step"] < 80 else f"w{lines[0]['rank']}"


@pytest.mark.parametrize(
    ("bend", "expected", "reason"),
    [
        (one_crashes, OPEN, "unexplained death: rank 1 on node1 ended with exit code -11"),
        (its_log_says_failed, OPEN, "its log does not say that it completed: the command on node1"),
        (lambda logs: logs.lose("step", rank=1), OPEN, "step 80 alone; the others told no step"),
        (rank_1_stops, OPEN, "went on to step 80 alone; the others stopped at step 70"),
        (lambda logs: logs.plan.update(seed=9), OPEN, "second restart: it has another seed"),
        (restored(source="/jobs/this/step-60"), OPEN, "which is not in the copy of the checkpoints"),
        (rank_1_is_off, FAIL, "at step 71 the loss of rank 1 differs from the run's"),
        (saves_no_more, OPEN, "its own log tells of no save as late as the run's last one"),
        (replicas_apart, OPEN, "second restart: at step 80 ranks 0, 1 each computed with other weights"),
        (together(rank_1_stops, off_by(1.0001)), FAIL, "second restart: at step 61 its loss is"),
        (lambda logs: logs.lose("step", step=[80], rank=1), PASS, ""),
        (each_step(lambda line: {"loss": None} if line["step"] == 70 else {}), PASS, ""),
        (each_step(lambda line: {"loss": None}), OPEN, "20 steps at which only it, or only the run, tells the loss"),
        (restored(step=0, source="scratch"), FAIL, "it started from scratch, though the save of step 60 was there"),
        (lambda logs: logs.lose("step", step=range(76, 81)), FAIL, "it ended after step 75, and the run after step 80"),
        (restored(step=50), OPEN, "second restart: it went on from the save of step 50, not from the save of step 60"),
    ],
)
def test_it_is_asked_what_each_run_is(bend: Bend, expected: Verdict, reason: str) -> None:
    card = judged(again(bend))
    assert_verdict(card, expected, reason)
    found = {each.code.partition(".")[2]: each.text for each in card.findings if each.code.startswith("second.")}
    told = [(found[each.name], each) for each in card.guarantees if each.name in found]
    assert all((each.state, each.why) == ("open", text) for text, each in told), told
    assert told or bend not in (replicas_apart, one_crashes)


def own_parts(logs: Logs) -> None:
    for lines in logs.trainers():
        for line in steps(lines)[9::10]:
            line["weights"] = f"part {lines[0]['rank']} of {line['step']}"


def test_ranks_that_hold_their_own_part_of_the_weights_did_not_drift_apart() -> None:
    run = bent(JOB, lambda logs: expecting(logs, EXPECT), own_parts, outages=KILL, seed=5)
    usual, second = bent(JOB, own_parts), again(own_parts)
    assert_verdict(judge(Evidence(replace(run, second_restart=DONE), usual, second_restart=second), "x"), PASS)


def goes_on(logs: Logs) -> None:
    for lines in logs.last_lives():
        last = steps(lines)[-1]
        lines.insert(lines.index(last) + 1, last | {"step": 81} | clocks(last, 1))


@pytest.mark.parametrize(("planned", "usual_ends", "expected"), [(None, 80, FAIL), (None, 79, OPEN)])
def test_it_ends_where_the_run_ended(planned: int | None, usual_ends: int, expected: Verdict) -> None:
    """Where nobody planned the steps, and what it computes is the same. A job that its time ends may do more."""

    def unplanned(logs: Logs) -> None:
        logs.plan["workload"] = logs.plan["workload"] | {"steps": planned}
        for lines in logs.trainers():
            remove(lines, lambda line: line.get("step", 0) > usual_ends)

    found = replace(_run(), second_restart=DONE)
    card = judge(Evidence(found, bent(JOB, unplanned), second_restart=again(goes_on)), "x")
    assert_verdict(card, expected, "second restart: it went on to step 81; the run ended after step 80")


@pytest.mark.parametrize(("digest", "expected"), [("a", PASS), ("b", OPEN)])
def test_its_copy_holds_what_the_job_had_saved(digest: str, expected: Verdict) -> None:
    seen = {"event": "checkpoint.published", "path": "c/step-60", "step": BEFORE, "at": 1}
    log = replace(again(), published=[seen | {"tensors": digest}])
    whole = [seen | {"tensors": "a", "at": event["at"]} for event in published(_run(), "x") if event["step"] == BEFORE]
    assert_verdict(judged(log, published=whole), expected)


def test_one_that_was_to_follow_and_has_no_end_is_missing() -> None:
    """The harness was killed after the job, before it made it."""
    card = judged("", {}, drills=True)
    assert_verdict(card, OPEN, "restore drill: it has no end in the log; second restart: it has no end")
    assert judged("", {}).not_judged["second restart"] == "none was made"


def test_without_a_save_the_report_says_what_to_write() -> None:
    card = judge(Evidence(replace(_run(), checkpoints=[], drill=None, second_restart=None), None), "x")
    assert "write {checkpoints} where the command names its folder" in card.not_judged["last checkpoint"]


@pytest.mark.parametrize(
    ("finished", "expected", "reason"),
    [
        ({"outcome": "failed", "step": 60, "reason": "ended with 1"}, FAIL, "step 60 failed: ended with 1"),
        ({"outcome": "timeout", "step": 60, "reason": "stuck"}, OPEN, "it did not end in time: stuck"),
        ({"outcome": "error", "reason": "no room"}, OPEN, "could not be made: no room"),
        ({"outcome": "done"}, OPEN, "has no end in the log"),
        (DONE | {"saved_step": 60}, FAIL, "it saved nothing after step 60, and the run saved step 80"),
    ],
)
def test_what_the_harness_saw_of_it(finished: dict[str, Any], expected: Verdict, reason: str) -> None:
    assert_verdict(judged(again(), finished, published=published(_run(), "a")), expected, reason)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ("", "left no log"),
        ("a.jsonl:3: nonsense", "left no log that can be read: a.jsonl:3: nonsense"),
        (replace(again(), problems=["the clocks moved"]), "left no log that can be read: the clocks moved"),
        (replace(again(), dropped=3), "left no log that can be read: it lacks 3 lines"),
    ],
)
def test_a_log_that_does_not_hold_all_says_why(second: Timeline | str, why: str) -> None:
    assert_verdict(judged(second), OPEN, first=why)


def test_other_tensors_than_the_harness_saw_in_the_run_fail() -> None:
    run, second = _run(), again()
    same = judged(replace(second, published=published(second, "a")), published=published(run, "b", "a"))
    assert same.verdict is PASS, same.reasons
    card = judged(replace(second, published=published(second, "a")), published=published(run, "b"))
    assert card.verdict is FAIL and "the tensors in its save of step 80 differ" in card.reasons[0], card.reasons
    assert "saves of the second restart" not in {**same.not_judged, **card.not_judged}
    for mine, others in (("a", ""), ("", "b"), ("", "")):  # whose content nobody saw is not called the same
        card = judged(replace(second, published=published(second, others)), published=published(run, mine))
        why = card.not_judged["saves of the second restart"]
        assert card.verdict is PASS and why == "the tensors of the same save were not seen in both", card.reasons
        assert "not judged" in [each.state for each in card.guarantees if each.name == "second.same_saves"]


def test_what_it_says_nothing_about_is_named() -> None:
    other = again(off_by(1.01))
    skipped = {"outcome": "skipped", "reason": "only one save is left"}
    for card, why in (
        (judged(again(), skipped), "only one save is left"),
        (judged(other, plan=_run().plan | {"expect": {}}), "sets no bound on what each step computes"),
        (judged(other, plan=_plan(restore_drill=False), finished={}), "restore_drill is off"),
        (judged(again(off_by(1.01), replace(JOB, nodes=1))), "the run ended with 2 ranks, and it had 1"),
        (judged(other, plan=_run().plan | {"expect": EXPECT | {"second_restart": "off"}}), "switches it off"),
    ):
        assert card.verdict is PASS and why in card.not_judged["second restart"], (card.reasons, card.not_judged)


FINAL = {"expect": {"loss_continuity": {"mode": "final", "max_final_gap": 50}}}


@pytest.mark.parametrize(
    ("killed", "since", "fails"),  # another loss from step `since` on, and whether a repeat is the same before
    [(45, 1, False), (45, 15, False), (45, 41, True), (25, 21, True), (25, 20, False), (15, 11, False)],
)
def test_a_run_that_left_its_fault_free_run_at_its_fault_is_repeated_all_the_same(
    killed: int, since: int, fails: bool
) -> None:
    """As many steps before the fault as it does once more: what it computes is the same each time."""
    history = simulate(JOB, [Outage(killed, "rank", victim=1)], seed=5)
    run = load(history, expecting(history.logs(), FINAL["expect"]))
    steps = run.steps
    run = replace(run, steps=replace(steps, loss=steps.loss + np.where(steps.step >= since, 0.25, 0.0)))
    for more, verdict in ((0.25, PASS), (0.26, FAIL if fails else PASS)):
        other = again(each_step(lambda line, more=more: {"loss": line["loss"] + more}))  # type: ignore[misc]
        card = judge(Evidence(replace(run, second_restart=DONE), copy.deepcopy(FAULT_FREE), second_restart=other), "x")
        assert card.verdict is verdict, (more, card.reasons)
        assert ("losses of the second restart" in card.not_judged) is not fails, card.not_judged


def _plan(**workload: Any) -> dict[str, Any]:
    plan = _run().plan
    return plan | {"workload": plan["workload"] | workload}


def test_a_trainer_that_is_never_the_same_is_held_against_its_own_distance() -> None:
    """And one that tells no samples is asked nothing about them."""

    def scattered(size: float, rate: float) -> Timeline:
        off = each_step(lambda line: {"loss": line["loss"] + size, "lr": line["lr"] * rate})
        return again(together(off, each_step(lambda line: {"digest": None, "first": -1})))

    run = replace(_run(), plan=_run().plan | {"expect": {"loss_continuity": {"mode": "envelope"}}})
    run = replace(run, steps=replace(run.steps, loss=run.steps.loss + 1e-4 * np.sin(run.steps.step)))
    free, other = copy.deepcopy(FAULT_FREE), copy.deepcopy(FAULT_FREE)
    other = replace(other, steps=replace(other.steps, loss=other.steps.loss + 2e-4))
    for size, rate, expected, answer in (
        (2e-4, 1, "", PASS),
        (0.02, 1, "at step 61 its loss is", OPEN),
        (2e-4, 2, "at step 61 its learning rate is", FAIL),
    ):
        found = replace(run, second_restart=DONE)
        card = judge(Evidence(found, free, [other], second_restart=scattered(size, rate)), "x")
        assert card.verdict is answer, card.reasons
        told = " · ".join(text for text in card.reasons if text.startswith("second restart"))
        assert (expected in told) if expected else not told, card.reasons


S = 10**9
MADE = {"event": "drill.finished", "at": 130 * S, "step": 20, "begun": {"event": "drill.started", "at": 110 * S}}


@pytest.mark.parametrize(
    ("told", "started", "restored", "text"),
    [
        ({}, 111, 120, ""),
        ({"begun": {}}, 11, 12, ""),  # told by an older version
        ({"begun": {"at": 99 * S}}, 98, 131, ""),  # up to the margin
        ({"at": 110 * S}, 109, 111, ""),
        ({}, 108.999, 120, "rank 3 started or restored 1.00 s outside of the time of it"),
        ({}, 111, 131.001, "rank 3 started or restored 1.00 s outside of the time of it"),
        ({"begun": {"at": 99 * S - 1}}, 111, 120, "it was begun 1.00 s before the last step of the run was over"),
        ({"at": 105 * S}, 111, None, "rank 3 started or restored 6.00 s outside of the time of it"),
    ],
)
def test_it_is_made_after_the_run_and_while_the_harness_says_so(
    told: dict[str, Any], started: float, restored: float | None, text: str
) -> None:
    run: Any = SimpleNamespace(steps=SimpleNamespace(end=np.array([50 * S, 100 * S])), uncertainty_ns=0, clock="boot")
    worker = SimpleNamespace(rank=3, started=round(started * S), restored=restored and round(restored * S))
    log: Any = SimpleNamespace(processes=[worker], uncertainty_ns=0, clock="boot")
    assert next(at_wrong_time(run, MADE | told, log), "") == text
    if "rank" in text:
        log.clock = "of another host"
        assert not [*at_wrong_time(run, MADE | told, log)]
