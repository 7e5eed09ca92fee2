"""What was told as saved is held against what the harness saw in the store, and the store is right."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from judging import Logs, by_a_command, load, remove, steps, trainers, verdict
from simulator import Job, Outage, simulate

from harness.judge.questions.drills import _holds_less
from harness.judge.questions.saves import _piled_up
from harness.judge.score import Evidence, Scorecard, Verdict, judge

Line = dict[str, Any]
Bend = Callable[[Logs], object]
JOB = Job(nodes=2, steps=80, every=10, step_ms=400)
KILL = [Outage(37, "rank", victim=1)]
LATE_NS = 300_000_000
EXACT = {"loss_continuity": {"mode": "exact"}}
NOT_FOUND = "the harness did not find it in the store when all nodes had ended"


def commits(logs: Logs, first: int = 0, last: int = 1000) -> Iterator[Line]:
    for lines in trainers(logs):
        yield from (
            line for line in lines if line.get("event") == "checkpoint.committed" and first <= line["step"] <= last
        )


def seen(logs: Logs, first: int = 0, last: int = 1000) -> Iterator[Line]:
    yield from (
        line
        for line in logs["harness"]
        if line.get("event") == "checkpoint.published" and first <= line.get("step", 0) <= last
    )


def watched(logs: Logs) -> None:
    """The harness sees each checkpoint a moment after it was committed, and lists at the end what is left."""
    told = list(commits(logs))
    for line in told:
        line["bytes"] = 1000
        at = {key: line[key] + LATE_NS for key in ("mono_ns", "wall_ns")}
        number = str(line["step"])
        what = {
            "path": line["path"],
            "step": line["step"],
            "bytes": 1000,
            "sha256": f"s{number}",
            "tensors": f"t{number}",
        }
        what |= {"tensor_bytes": 900, "zero_bytes": 0}
        what["tensor_count"] = 3
        what["tensor_digests"] = [f"600 model-{number}", f"280 moments-{number}", "20 frozen"]
        if line["step"] < JOB.steps:  # the job ends before its last one is seen
            logs["harness"].append({"event": "checkpoint.published"} | what | at)
    end = next(line for line in logs["harness"] if line.get("event") == "run.finished")
    left = [{"path": each["path"], "step": each["step"], "whole": True, "bytes": 1000} for each in told[::-1]]
    at = {key: end[key] - 1 for key in ("mono_ns", "wall_ns")}
    logs["harness"].append({"event": "checkpoint.left", "checkpoints": left, "count": len(left)} | at)
    logs["harness"].sort(key=lambda line: line["mono_ns"])


def judged(
    *bends: Bend, without: tuple[Bend, ...] = (watched,), job: Job = JOB, outages: list[Outage] = KILL
) -> Scorecard:
    fault_free = simulate(job, seed=99)
    logs = fault_free.logs()
    for each in without:
        each(logs)

    def bend(logs: Logs) -> None:
        for each in (*without, *bends):
            each(logs)

    return verdict(simulate(job, outages, seed=5), bend, EXACT, load(fault_free, logs))


def with_seen(first: int = 0, last: int = 1000, **told: Any) -> Bend:
    def bend(logs: Logs) -> None:
        for line in seen(logs, first, last):
            line |= told

    return bend


def with_part(step: int, tensor: str) -> Bend:
    """One tensor of this save is another one."""

    def bend(logs: Logs) -> None:
        for line in seen(logs, step, step):
            line["tensor_digests"][1] = tensor

    return bend


def unseen(first: int, last: int) -> Bend:
    def bend(logs: Logs) -> None:
        known = [id(line) for line in seen(logs, first, last)]
        remove(logs["harness"], lambda line: id(line) in known)

    return bend


def not_left(logs: Logs) -> None:
    """The last one is no longer there when all nodes have ended."""
    left = next(line for line in logs["harness"] if line.get("event") == "checkpoint.left")
    left["checkpoints"] = left["checkpoints"][1:]
    left["count"] -= 1


def left_are(*kept: int) -> Bend:
    """Only these are there when all nodes have ended."""

    def bend(logs: Logs) -> None:
        left = next(line for line in logs["harness"] if line.get("event") == "checkpoint.left")
        left["checkpoints"] = [each for each in left["checkpoints"] if each["step"] in kept]
        left["count"] = len(left["checkpoints"])

    return bend


def removed(logs: Logs, step: int, after_ns: int) -> None:
    line = next(seen(logs, step, step))
    told = {"event": "checkpoint.removed", "path": line["path"], "step": step}
    logs["harness"].append(told | {key: line[key] + after_ns for key in ("mono_ns", "wall_ns")})
    logs["harness"].sort(key=lambda line: line["mono_ns"])


def begun_earlier(logs: Logs, number_of_steps: int, first: int = 40, last: int = 1000) -> None:
    """The state is that of a step before."""
    for lines in trainers(logs, rank=0):
        for line in [line for line in lines if line.get("event") in ("checkpoint.started", "checkpoint.committed")]:
            done = steps(lines, line["step"] - number_of_steps, line["step"] - number_of_steps)
            if first <= line["step"] <= last and done:
                line |= {key: done[0][key] + 1 for key in ("mono_ns", "wall_ns")}
        lines[1:] = sorted(lines[1:], key=lambda line: line["mono_ns"])


def told(**fields: Any) -> Bend:
    """Of the saves after the restart."""

    def bend(logs: Logs) -> None:
        for line in commits(logs, 40):
            line |= fields

    return bend


def said(card: Scorecard) -> str:
    return " ".join(card.reasons)


def test_a_job_whose_saves_are_seen_is_well() -> None:
    card = judged()
    assert card.verdict is Verdict.PASS, card.reasons


@pytest.mark.parametrize(
    ("bends", "reason"),
    [
        ([unseen(10, 30)], "its checkpoint is none: the harness never saw it in the store"),
        ([unseen(40, 80)], "the checkpoint of step 40 is none: the harness never saw it in the store"),
        ([with_seen(40, bytes=0)], "the checkpoint of step 40 is none: the harness saw 0 bytes, and at least 1,000"),
        ([with_seen(40, bytes=100)], "is none: the harness saw 100 bytes, and at least 1,000 of each without a fault"),
        ([told(bytes=0)], "is none: the trainer told 0 bytes"),
        ([with_seen(40, bytes=660)], "is none: the harness saw 660 bytes, and at least 1,000 of each without a fault"),
        ([told(path="checkpoints/step-30")], "is none: it lies where the checkpoint of step 30 lay"),
        ([with_seen(40, sha256="s30")], "the harness saw in it the content of the checkpoint of step 30"),
        ([with_seen(50, tensors="t40")], "the checkpoint of step 50 is none: the harness saw in it the content of"),
        ([with_seen(40, zero_bytes=600)], "the harness saw 67% of its tensors' bytes in tensors of zeros"),
        (
            [with_part(50, "280 moments-40")],
            "saw 67% of its tensors as in the checkpoint of step 40, and at most 33%",
        ),
        ([lambda logs: removed(logs, 50, 1_000_000_000)], "the harness saw it go away before a newer one was begun"),
        ([not_left], "the last checkpoint, of step 80, is none: the harness did not find it in the store"),
    ],
)
def test_a_save_that_the_store_does_not_hold_is_none(bends: list[Bend], reason: str) -> None:
    card = judged(*bends)
    assert card.verdict is Verdict.FAIL and reason in said(card), card.reasons


def test_a_save_that_is_stale_in_each_run_is_none_as_well() -> None:
    """A trainer whose last saves always hold an optimizer's state of before: its fault-free run is no excuse."""
    stale = (watched, with_part(70, "280 moments-60"))
    card = judged(without=stale)
    assert card.verdict is Verdict.INCONCLUSIVE, card.reasons
    assert "67% of its tensors as in the checkpoint of step 60, and at most 33% in most others" in said(card)
    often = judged(without=(*stale, with_part(50, "280 moments-40")))  # the rule rather than one that stands alone
    assert often.verdict is Verdict.PASS, often.reasons


def test_a_save_of_another_kind_may_be_otherwise() -> None:
    """What is saved over a notice may lie elsewhere."""

    def over_a_notice(logs: Logs) -> None:
        for line in commits(logs, 50, 50):
            line |= {"kind": "emergency", "path": "emergency/step-50"}

    assert judged(over_a_notice).verdict is Verdict.PASS


def test_a_trainer_that_tells_no_saves_is_not_asked_for_its_word() -> None:
    """The harness found the last one only at the end."""

    def silent(logs: Logs) -> None:
        for lines in trainers(logs, life=None):
            remove(lines, lambda line: str(line.get("event")).startswith("checkpoint."))

    assert "nobody said that it was committed" not in said(judged(without=(watched, silent)))


@pytest.mark.parametrize(("more", "piled_up"), [(3, False), (4, True)])
def test_old_checkpoints_that_are_no_longer_removed_are_told(more: int, piled_up: bool) -> None:
    """Two are kept without a fault; one restart and one fault may leave three more."""

    def piled(logs: Logs) -> None:
        left = next(line for line in logs["harness"] if line.get("event") == "checkpoint.left")
        left["checkpoints"] += [left["checkpoints"][0] | {"path": f"old-{n}", "step": n} for n in range(1, more + 1)]
        left["count"] += more

    card = judged(piled, without=(watched, left_are(70, 80)))
    assert card.verdict is (Verdict.INCONCLUSIVE if piled_up else Verdict.PASS), card.reasons
    assert ("the store held 6 checkpoints at the end, and 2 without a fault" in said(card)) is piled_up


@pytest.mark.parametrize(("count", "worlds", "told"), [(2, 0, 0), (3, 0, 1), (2, 1, 0), (3, 2, 0), (4, 2, 1)])
def test_a_drill_forms_no_world_and_leaves_as_many(count: int, worlds: int, told: int) -> None:
    run = SimpleNamespace(
        left={"count": count}, epochs=[0] * worlds, faults=(), beside=SimpleNamespace(job_goes_on=False)
    )
    evidence: Any = SimpleNamespace(run=run, fault_free=SimpleNamespace(left={"count": 2}))
    assert len(list(_piled_up(evidence))) == told


def test_one_line_of_the_harness_or_of_the_job_that_is_lost_accuses_no_save() -> None:
    """The harness saw it go away later; or found a newer one at the end, of which nobody told."""

    def looked_away(logs: Logs) -> None:
        removed(logs, 50, 10**9 * 10)
        unseen(50, 50)(logs)

    def untold(logs: Logs) -> None:
        for lines in trainers(logs):
            remove(lines, lambda line: line.get("event") == "checkpoint.committed" and line["step"] == 80)
        left_are(70, 80)(logs)

    card = judged(looked_away)
    assert "the harness never saw it" not in said(card), card.reasons
    card = judged(untold, without=(watched, left_are(70, 80)))
    assert card.verdict is Verdict.INCONCLUSIVE and "found a checkpoint of step 80 at the end" in said(card)


def test_a_harness_that_was_killed_may_have_seen_more() -> None:
    def cut(logs: Logs) -> None:
        last = next(seen(logs, 50, 50))["mono_ns"]
        remove(logs["harness"], lambda line: line["mono_ns"] > last)

    card = judged(cut)
    assert card.verdict is Verdict.INCONCLUSIVE and "the harness never saw it" not in said(card), card.reasons


def test_sizes_that_differ_without_a_fault_may_differ_with_one() -> None:
    card = judged(with_seen(40, bytes=900), without=(watched, with_seen(10, 10, bytes=850)))
    assert card.verdict is Verdict.PASS, card.reasons


@pytest.mark.parametrize(("least", "steady"), [(970, True), (969, False)])
def test_where_sizes_hardly_differ_a_smaller_one_lacks_something(least: int, steady: bool) -> None:
    card = judged(with_seen(40, bytes=860), without=(watched, with_seen(10, 10, bytes=least)))
    text = f"the harness saw 860 bytes, and at least {least} of each without a fault"
    assert (text in said(card)) is steady, card.reasons


def test_a_restart_from_a_save_that_was_only_begun_and_never_seen_is_not_known() -> None:
    def only_begun(logs: Logs) -> None:
        for line in commits(logs, 30, 30):
            line["event"] = "checkpoint.started"
        unseen(30, 30)(logs)
        left_are(10, 20, 40, 50, 60, 70, 80)(logs)

    card = judged(only_begun)
    assert "said it restored step 30, but that checkpoint was only begun, and the harness never saw it" in said(card)
    assert card.verdict is Verdict.INCONCLUSIVE


def seen_again(logs: Logs, step: int = 50) -> None:
    """The harness sees the one of this step once more, and its tensors are others."""
    line = next(seen(logs, step, step))
    later = {key: line[key] + 10**8 for key in ("mono_ns", "wall_ns")}
    logs["harness"].append(line | later | {"sha256": "other", "tensors": "other"})
    logs["harness"].sort(key=lambda line: line["mono_ns"])


def seen_before(logs: Logs) -> None:
    """The harness sees that of step 50 three seconds earlier."""
    line = next(seen(logs, 50, 50))
    line |= {key: line[key] - 3 * 10**9 for key in ("mono_ns", "wall_ns")}
    logs["harness"].sort(key=lambda line: line["mono_ns"])


def last_left(**told: Any) -> Bend:
    def bend(logs: Logs) -> None:
        left = next(line for line in logs["harness"] if line.get("event") == "checkpoint.left")
        left["checkpoints"][0] |= told

    return bend


@pytest.mark.parametrize(
    ("bend", "expected", "reason"),
    [
        (seen_again, Verdict.INCONCLUSIVE, "of step 50 is none: the harness saw its tensors change after it was whole"),
        (seen_before, Verdict.INCONCLUSIVE, "of step 50 is none: the harness saw it before any rank had done its step"),
        (with_seen(50, 50, step=40), Verdict.FAIL, "of step 50 is none: the harness saw that it holds step 40"),
        (last_left(step=70), Verdict.FAIL, f"of step 80, is none: {NOT_FOUND}"),
        (last_left(bytes=0), Verdict.FAIL, f"of step 80, is none: {NOT_FOUND}"),
    ],
)
def test_what_is_named_by_its_step_is_of_it_and_stays(bend: Bend, expected: Verdict, reason: str) -> None:
    card = judged(bend)
    assert card.verdict is expected and any(each.endswith(reason) for each in card.reasons), card.reasons


@pytest.mark.parametrize(("every", "accused"), [(30, True), (60, False)])
def test_a_name_is_of_a_step_where_there_are_two(every: int, accused: bool) -> None:
    """A single checkpoint may be written over under its name."""
    card = judged(lambda logs: seen_again(logs, 60), job=replace(JOB, every=every))
    assert ("of step 60 is none: the harness saw its tensors change" in said(card)) is accused, card.reasons


def counts_from_one(logs: Logs) -> None:
    """What each checkpoint says of itself is a step further than its name."""
    for line in seen(logs):
        line["step"] += 1


def test_whoever_names_saves_otherwise_without_a_fault_too_is_not_accused() -> None:
    card = judged(without=(watched, counts_from_one))
    assert card.verdict is Verdict.PASS, card.reasons


def test_what_is_left_of_one_that_is_being_removed_proves_nothing() -> None:
    """The harness looks while the files of the one of step 40 go, one after the other."""

    def rest(logs: Logs) -> None:
        line, later = next(seen(logs, 40, 40)), next(seen(logs, 60, 60))
        line |= {"bytes": 48, "sha256": "rest"} | {key: later[key] for key in ("mono_ns", "wall_ns")}
        logs["harness"].sort(key=lambda line: line["mono_ns"])
        removed(logs, 40, 10**8)

    card = judged(rest)
    assert card.verdict is Verdict.PASS, card.reasons


def twice(logs: Logs) -> None:
    """The files of each came one after the other, and the harness saw a part first."""
    for line in list(seen(logs)):
        part = {key: line[key] - LATE_NS // 2 for key in ("mono_ns", "wall_ns")}
        logs["harness"].insert(logs["harness"].index(line), line | part | {"bytes": 10, "zero_bytes": 900})


def to_one_path(logs: Logs) -> None:
    for line in (*commits(logs), *seen(logs)):
        line["path"] = "checkpoints/last.pt"
    left = next(line for line in logs["harness"] if line.get("event") == "checkpoint.left")
    left |= {"checkpoints": [left["checkpoints"][0] | {"path": "checkpoints/last.pt"}], "count": 1}


def two_are_kept(logs: Logs) -> None:
    left = next(line for line in logs["harness"] if line.get("event") == "checkpoint.left")
    left |= {"checkpoints": left["checkpoints"][:2], "count": 2}
    for step in (10, 20, 50):
        removed(logs, step, 9_000_000_000)


def seen_now_and_then(logs: Logs) -> None:
    """Of saves so soon after one another that most are gone at the next look."""
    unseen(10, 20)(logs)
    unseen(40, 50)(logs)


def told_without_a_path(logs: Logs) -> None:
    for line in commits(logs):
        del line["path"]


def elsewhere(logs: Logs) -> None:
    for line in commits(logs):
        line["path"] = f"/mnt/{line['step']}.pt"
    for line in seen(logs):
        line |= {"path": "checkpoints/other", "step": 1}


@pytest.mark.parametrize("bend", [twice, to_one_path, two_are_kept, told_without_a_path, elsewhere])
def test_whoever_saves_otherwise_without_a_fault_too_is_not_accused(bend: Bend) -> None:
    card = judged(without=(watched, bend))
    assert card.verdict is Verdict.PASS, card.reasons


def test_saves_that_come_fast_may_stay_unseen() -> None:
    fast = Job(nodes=2, steps=80, every=10, step_ms=20)
    card = judged(seen_now_and_then, job=fast)
    assert card.verdict is Verdict.PASS, card.reasons


def test_one_save_that_was_not_seen_proves_nothing() -> None:
    card = judged(unseen(60, 60))
    assert card.verdict is Verdict.PASS, card.reasons


def test_a_store_that_cannot_be_seen_proves_nothing() -> None:
    def hidden(logs: Logs) -> None:
        first = logs["harness"][1]
        at = {key: first[key] for key in ("mono_ns", "wall_ns")}
        logs["harness"].insert(2, {"event": "checkpoint.unseen", "why": "it ends with the job"} | at)

    card = judged(unseen(10, 80), not_left, hidden)
    assert card.verdict is Verdict.PASS, card.reasons
    assert card.not_judged["checkpoints in their store"] == "it ends with the job"


@pytest.mark.parametrize(
    ("bend", "accused"),
    [
        (lambda logs: begun_earlier(logs, 1), Verdict.FAIL),  # the rhythm lacks them
        (lambda logs: begun_earlier(logs, 1, first=80), Verdict.INCONCLUSIVE),
        (lambda logs: begun_earlier(logs, 0), Verdict.PASS),
    ],
)
def test_a_save_is_begun_after_its_step(bend: Bend, accused: Verdict) -> None:
    card = judged(bend)
    assert card.verdict is accused, card.reasons
    assert accused is Verdict.PASS or "rank 0 began it when it had done step" in said(card), card.reasons


def test_whoever_always_saves_before_its_step_is_over_is_not_accused() -> None:
    early: Bend = lambda logs: begun_earlier(logs, 1, first=0)  # noqa: E731
    card = judged(without=(watched, early))
    assert "began it when" not in said(card), card.reasons


def test_a_lost_line_of_a_step_accuses_no_save() -> None:
    def lost(logs: Logs) -> None:
        for lines in trainers(logs, rank=0):
            remove(lines, lambda line: line.get("event") == "step" and line["step"] == 60)

    assert "is none" not in said(judged(lost))


def without_commits(logs: Logs, first: int, last: int = 1000) -> None:
    for lines in trainers(logs):
        remove(lines, lambda line: str(line.get("event")).startswith("checkpoint.") and first <= line["step"] <= last)
    unseen(first, last)(logs)


def tells_no_saves(logs: Logs) -> None:
    by_a_command(logs)
    for lines in trainers(logs):
        lines[0].pop("tells", None)
        remove(lines, lambda line: str(line.get("event")).startswith("checkpoint."))


def test_the_last_save_is_never_tolerated_to_be_missing() -> None:
    card = judged(lambda logs: without_commits(logs, 80), left_are(*range(10, 80, 10)))
    text = "the job ended at step 80, and its last checkpoint is of step 70: without a fault it is of step 71 or later"
    assert card.verdict is Verdict.FAIL and text in said(card), card.reasons
    assert "its last checkpoint is" not in said(judged(lambda logs: without_commits(logs, 60, 60)))


def test_a_rhythm_that_a_restart_moved_ends_less_than_an_interval_early() -> None:
    def moved(logs: Logs) -> None:
        begun_earlier(logs, 3)
        for lines in trainers(logs):
            for line in lines:
                if str(line.get("event")).startswith("checkpoint.") and line["step"] >= 40:
                    line["step"] -= 3

    assert "its last checkpoint is" not in said(judged(moved, without=()))


@pytest.mark.parametrize(("written_until", "verdict_"), [(72, Verdict.PASS), (51, Verdict.FAIL)])
def test_a_save_is_not_due_while_another_one_is_being_written(written_until: int, verdict_: Verdict) -> None:
    def slow_disk(logs: Logs) -> None:
        without_commits(logs, 60, 70)
        for lines in trainers(logs, rank=0, life=-1):
            end = steps(lines, written_until, written_until)[0]
            for line in commits(logs, 50, 50):
                line |= {key: end[key] + 1 for key in ("mono_ns", "wall_ns")}
            lines[1:] = sorted(lines[1:], key=lambda line: line["mono_ns"])

    card = judged(slow_disk, without=())
    assert card.verdict is verdict_, card.reasons


def test_a_trainer_that_tells_no_saves_and_makes_none_after_its_restart() -> None:
    card = judged(unseen(40, 80), without=(watched, tells_no_saves))
    assert card.verdict is Verdict.FAIL and "checkpoints that the fault-free run made" in said(card), card.reasons
    one = judged(unseen(50, 80), without=(watched, tells_no_saves))
    assert "checkpoints that the fault-free run made" not in said(one), one.reasons


def test_checkpoints_that_grow_without_a_fault_and_not_after_the_restart() -> None:
    def growing(logs: Logs) -> None:
        for line in commits(logs):
            line["bytes"] = 100_000 + 300 * line["step"]

    card = judged(told(bytes=109_004), without=(growing,))
    assert card.verdict is Verdict.INCONCLUSIVE and "they may hold one state" in said(card), card.reasons
    assert judged(without=(growing,)).verdict is Verdict.PASS


def test_tensors_that_the_harness_saw_are_those_of_the_fault_free_run() -> None:
    def other(logs: Logs) -> None:
        for line in seen(logs, 40):
            line["tensors"] = f"other {line['step']}"

    card = judged(other)
    text = "the checkpoint of step 40 holds other tensors than in the fault-free run"
    assert card.verdict is Verdict.INCONCLUSIVE and text in said(card), card.reasons


def passed_over(*items: Line, step: int, rank: int | None = None) -> Bend:
    """The restart takes an older one, and says so."""

    def bend(logs: Logs) -> None:
        for lines in trainers(logs, rank=rank, life=None):
            for line in [line for line in lines if line.get("event") == "restored" and line["step"] == 30]:
                line |= {"step": step, "source": f"checkpoints/step-{step}", "fallback": list(items)}

    return bend


NEWEST = {"source": "checkpoints/step-30", "reason": "checksum"}


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({}, "resumed from step 20 and named no newer one that is damaged, though a checkpoint of step 30"),
        ({"source": "/x", "reason": "?"}, "named no newer one that is damaged, though a checkpoint of step 30"),
        (NEWEST, "passed over the checkpoint of step 30, which nothing had damaged; the harness had seen it whole"),
    ],
)
def test_what_is_passed_over_is_named_and_damaged(item: Line, reason: str) -> None:
    card = judged(passed_over(item, step=20))
    assert card.verdict is Verdict.FAIL and reason in said(card), card.reasons


def test_what_nobody_saw_may_have_been_damaged() -> None:
    card = judged(passed_over(NEWEST, step=20), without=())
    assert "rank 0 passed over the checkpoint of step 30, which nothing had damaged" in said(card), card.reasons


def damaged(step: int) -> Bend:
    """A fault damages the checkpoint of this step right before the kill, and heals."""

    def bend(logs: Logs) -> None:
        kill = next(line for line in logs["harness"] if line.get("event") == "fault.injected")
        at = {key: kill[key] - 1000 for key in ("mono_ns", "wall_ns")} | {"fault": "rot"}
        told = {"event": "fault.damaged", "path": f"checkpoints/step-{step}/a", "step": step, "part": "tensor"}
        told |= {"how": "bit_flip", "names": [f"step-{step}"], "copies": 0, "tensor_bytes": 1}
        told |= {"checkpoint": f"checkpoints/step-{step}"}
        injected = {"event": "fault.injected", "kind": "checkpoint_corruption", "kills": False, "spoils": True}
        place = logs["harness"].index(kill)
        logs["harness"][place:place] = [
            at | injected | {"targets": []},
            at | told,
            at | {"event": "fault.effect", "measured": 1, "expected": 1, "unit": "bytes changed", "ok": True},
            at | {"event": "fault.healed"},
        ]

    return bend


def test_what_was_damaged_is_written_anew() -> None:
    """One of step 40 was there, and was damaged; the job went back, did step 40 again, and told that it saved it."""
    assert not [*judged(damaged(40)).evidence.saves.store._still_damaged()]
    card = judged(damaged(40), unseen(40, 40))
    assert card.verdict is Verdict.FAIL and "the checkpoint of step 40 is none: a fault had damaged what was" in said(
        card
    )


def test_after_a_bad_one_the_next_is_taken() -> None:
    def no_heal(logs: Logs) -> None:
        """As with a flipped bit, which stays."""
        remove(logs["harness"], lambda line: line.get("event") == "fault.healed" and line.get("fault") == "rot")

    assert "resumed from step 10 and named no newer one" in said(judged(damaged(30), passed_over(NEWEST, step=10)))
    assert "named no newer one" not in said(judged(damaged(30), passed_over(NEWEST, step=20)))
    good = NEWEST | {"source": "checkpoints/step-20"}
    card = judged(damaged(30), no_heal, passed_over(NEWEST, good, step=10))
    assert card.verdict is Verdict.FAIL and "over the checkpoint of step 20, which nothing had damaged" in said(card)


def test_a_silent_start_from_scratch_without_a_planned_interval() -> None:
    def silent(logs: Logs) -> None:
        by_a_command(logs)
        plan = next(line for line in logs["harness"] if line.get("event") == "plan")["plan"]
        plan["workload"].pop("checkpoint")
        tells_no_saves(logs)
        for lines in trainers(logs):
            remove(lines, lambda line: line.get("event") == "restored")
        for lines in trainers(logs, life=None):
            if lines[0]["mono_ns"] > trainers(logs)[0][-1]["mono_ns"]:
                first = steps(lines)[0]["step"]
                for line in steps(lines):
                    line["step"] += 1 - first

    card = judged(silent, without=())
    assert "the job restarted at step 1 and lost" in said(card), card.reasons


def test_as_many_are_kept_at_the_end_as_without_a_fault() -> None:
    newest = (JOB.steps - 20, JOB.steps - 10, JOB.steps)
    card = judged(left_are(10, JOB.steps), without=(watched,))
    assert card.verdict is Verdict.FAIL and "without a fault the newest" in said(card), card.reasons
    keeps_three = (watched, left_are(*newest))
    assert judged(without=keeps_three).verdict is Verdict.PASS
    card = judged(left_are(10, 20, *newest), without=keeps_three)
    assert card.verdict is Verdict.PASS, "what an earlier life saved is not pruned"
    late = judged(left_are(*newest[1:]), without=keeps_three, outages=[Outage(67, "rank", victim=1)])
    assert late.verdict is Verdict.PASS, "since the restart from step 60 it saved two"
    card = judged(left_are(newest[0], newest[2]), without=keeps_three)
    assert card.verdict is Verdict.FAIL and f"step {newest[1]} is none" in said(card), card.reasons
    odd = (watched, left_are(newest[0], newest[2]))
    assert judged(left_are(newest[2]), without=odd).verdict is Verdict.PASS, "nobody knows what this job keeps"


def test_without_a_fault_free_run_nobody_knows_how_many_are_kept() -> None:
    """The one of step 70 was whole after that of step 80, and is the only one left."""
    history = simulate(JOB, KILL, seed=5)
    logs = history.logs()
    watched(logs)
    for line in commits(logs, 70):
        line["step"] = 150 - line["step"]
        line["path"] = f"checkpoints/step-{line['step']}"
    left_are(70)(logs)
    assert "without a fault the newest" not in said(judge(Evidence(load(history, logs)), "alone"))


def spoils(logs: Logs) -> None:
    """The fault may keep the job from its store, and is not undone before the job ends."""
    next(line for line in logs["harness"] if line.get("event") == "fault.injected").update(spoils=True)
    remove(logs["harness"], lambda line: line.get("event") == "fault.healed")


@pytest.mark.parametrize("lost", [unseen(40, 70), not_left, lambda logs: removed(logs, 60, 1)])
def test_a_fault_that_may_hide_a_save_excuses_it_while_it_is_at_work(lost: Bend) -> None:
    assert "is none" in said(judged(lost)) and "is none" not in said(judged(spoils, lost))


def test_a_list_of_what_is_left_that_is_cut_short_tells_not_how_many_are_kept() -> None:
    def cut_short(logs: Logs) -> None:
        next(line for line in logs["harness"] if line.get("event") == "checkpoint.left")["count"] += 1000

    card = judged(left_are(JOB.steps), without=(watched, cut_short))
    assert card.verdict is Verdict.PASS, card.reasons


def emptied(times: int, apart_ns: int) -> Bend:
    """So often the only checkpoint in the store is removed, so long before the next one was committed."""

    def bend(logs: Logs) -> None:
        told = list(commits(logs, 40))
        for before, after in list(itertools.pairwise(told))[:times]:
            at = {key: after[key] - apart_ns for key in ("mono_ns", "wall_ns")}
            logs["harness"].append({"event": "checkpoint.removed", "path": before["path"], "step": before["step"]} | at)
            for line in list(seen(logs, 0, before["step"] - 1)):
                logs["harness"].remove(line)
        logs["harness"].sort(key=lambda line: line["mono_ns"])

    return bend


@pytest.mark.parametrize(
    ("times", "apart_ms", "fails"), [(2, 60, True), (1, 60, False), (2, -400, False), (0, 60, False)]
)
def test_the_only_checkpoint_is_not_removed_before_the_next_one_is_committed(
    times: int, apart_ms: int, fails: bool
) -> None:
    card = judged(
        emptied(times, apart_ms * 10**6), without=(watched, lambda logs: emptied(times, apart_ms * 10**6)(logs))
    )
    said = "the only checkpoint in the store was removed before the next one was committed (2 times, first that of step 40)"
    assert any(said in text for text in card.reasons) == fails, card.reasons


def test_a_last_save_that_holds_less_than_the_others_is_told() -> None:
    evidence = judged(with_seen(70, 70, tensor_count=2)).evidence
    [claim] = _holds_less(evidence, 70)
    told = "the checkpoint of step 70 that the restore drill loaded holds 2 tensors, and the others at least 3"
    assert claim.words == told
    assert not [*_holds_less(evidence, 60)] and not [*_holds_less(judged().evidence, 70)]


def test_a_manifest_without_a_tensor_is_no_checkpoint() -> None:
    """Without a fault, too: the state is on a disk of the node's own."""

    def hollow(layout: str) -> Bend:
        def bend(logs: Logs) -> None:
            watched(logs)
            for line in seen(logs):
                for name in [name for name in line if name.startswith("tensor")]:
                    line.pop(name)
                line |= {"layout": layout, "bytes": 4860}
            for line in commits(logs):
                line["bytes"] = 4860

        return bend

    card = judged(without=(hollow("reference"),))
    assert card.verdict is Verdict.FAIL and "is none: the harness saw 4,860 bytes and no tensor in them" in said(card)
    assert judged(without=(hollow("other"),)).verdict is Verdict.PASS


def writes(late: int, after_ns: int = 1) -> Bend:
    """The trainer says when it begins to write: of so many saves only after it told that they are committed."""

    def bend(logs: Logs) -> None:
        left = late
        for lines in trainers(logs):
            told = [line for line in lines if line.get("event") == "checkpoint.committed"]
            begun = [line for line in lines if line.get("event") == "checkpoint.started"]
            first, left = left, max(0, left - len(told))
            for line in (*told[:first], *begun[first:]):
                wait_ns = after_ns * (line["event"] == "checkpoint.committed")
                at = {key: line[key] + wait_ns for key in ("mono_ns", "wall_ns")}
                lines.append({"event": "phase", "name": "checkpoint.write", "edge": "begin"} | at)
            lines[1:] = sorted(lines[1:], key=lambda line: line["mono_ns"])

    return bend


@pytest.mark.parametrize(("late", "fails"), [(2, True), (1, False), (0, False)])
def test_a_save_is_not_committed_before_it_is_written(late: int, fails: bool) -> None:
    card = judged(without=(watched, writes(late)))
    assert ("told as committed before they were written (" in said(card)) is fails, card.reasons
    assert (card.verdict is Verdict.FAIL) is fails, card.reasons


def test_what_is_written_some_steps_later_may_be_something_else() -> None:
    card = judged(without=(watched, writes(2, after_ns=1_000_000_000)))
    assert card.verdict is Verdict.INCONCLUSIVE and "before they were written (2 times" in said(card), card.reasons
