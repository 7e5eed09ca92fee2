"""What was told as saved is held against what the harness saw in the store, and the store is right."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from judging import ENVELOPE, EXACT, SAVES, Bend, bending, bent, by_a_command, load, struck, together, verdict
from scorecards import assert_verdict
from simulator import Job, Line, Logs, Outage, change, clocks, put, remove, simulate, steps

from harness.judge.facts.known import By
from harness.judge.guarantees import saves_removed_in_time
from harness.judge.score import Evidence, Scorecard, judge
from harness.judge.verdict import Verdict

JOB = Job(nodes=2, steps=80, every=10, step_ms=400)
KILL = [Outage(37, "rank", victim=1)]
LATE_NS = 300_000_000
AFTER = "the harness never saw it in the store after a fault was over"
BARE = "the only checkpoint in the store was removed before the next one was committed"
NOT_FOUND = "the harness did not find it in the store when all nodes had ended"


def commits(logs: Logs, first: int = 0, last: int = 1000) -> Iterator[Line]:
    return (line for line in logs.all("checkpoint.committed") if first <= line["step"] <= last)


def seen(logs: Logs, first: int = 0, last: int = 1000) -> Iterator[Line]:
    told = (line for line in logs.harness if line.get("event") == "checkpoint.published")
    return (line for line in told if first <= line.get("step", 0) <= last)


def left_of(logs: Logs) -> Line:
    """What the harness saw when all nodes had ended, the newest first."""
    return logs.told("checkpoint.left")


def watched(logs: Logs) -> None:
    """The harness sees each checkpoint a moment after it was committed, and lists at the end what is left."""
    told = list(commits(logs))
    for line in told:
        line["bytes"], number = 1000, line["step"]
        what = {"path": line["path"], "step": number, "bytes": 1000, "sha256": f"s{number}", "tensors": f"t{number}"}
        what |= {"tensor_bytes": 900, "zero_bytes": 0, "tensor_count": 3}
        what["tensor_digests"] = [f"600 model-{number}", f"280 moments-{number}", "20 frozen"]
        if number < JOB.steps:  # the job ends before its last one is seen
            logs.put({"event": "checkpoint.published"} | what | clocks(line, LATE_NS))
    left = [{"path": each["path"], "step": each["step"], "whole": True, "bytes": 1000} for each in told[::-1]]
    found = {"event": "checkpoint.left", "checkpoints": left, "count": len(left)}
    logs.put(found | clocks(logs.told("run.finished"), -1))


def judged(
    *bends: Bend, without: tuple[Bend, ...] = (watched,), job: Job = JOB, outages: list[Outage] = KILL
) -> Scorecard:
    return verdict(simulate(job, outages, seed=5), together(*without, *bends), EXACT, bent(job, *without))


def with_seen(first: int = 0, last: int = 1000, **told: Any) -> Bend:
    left = {"bytes": told["bytes"]} if "bytes" in told else {}
    its = lambda logs: [each for each in left_of(logs)["checkpoints"] if first <= each["step"] <= last]  # noqa: E731
    return lambda logs: [change(seen(logs, first, last), **told), change(its(logs), **left)]


def with_part(step: int, tensor: str) -> Bend:
    """One tensor of this save is another one."""
    return with_seen(step, step, tensor_digests=[f"600 model-{step}", tensor, "20 frozen"])


@bending
def unseen(logs: Logs, first: int, last: int) -> None:
    known = [id(line) for line in seen(logs, first, last)]
    remove(logs.harness, lambda line: id(line) in known)


def not_left(logs: Logs) -> None:
    """The last one is no longer there when all nodes have ended."""
    left_are(*range(10, 80, 10))(logs)


@bending
def left_are(logs: Logs, *kept: int) -> None:
    """Only these are there when all nodes have ended."""
    left = left_of(logs)
    left["checkpoints"] = [each for each in left["checkpoints"] if each["step"] in kept]
    left["count"] = len(left["checkpoints"])


def removed(logs: Logs, step: int, after_ns: int) -> None:
    line = next(seen(logs, step, step))
    logs.put({"event": "checkpoint.removed", "path": line["path"], "step": step} | clocks(line, after_ns))


def begun_earlier(logs: Logs, number_of_steps: int, first: int = 40, last: int = 1000) -> None:
    """The state is that of a step before."""
    for lines in logs.trainers(rank=0):
        for line in [line for line in lines if line.get("event") in SAVES and first <= line["step"] <= last]:
            for done in steps(lines, line["step"] - number_of_steps, line["step"] - number_of_steps):
                line |= clocks(done, 1)
        put(lines)


def told(**fields: Any) -> Bend:
    """Of the saves after the restart."""
    return lambda logs: [line.update(fields) for line in commits(logs, 40)]


def said(card: Scorecard) -> str:
    return " ".join(card.reasons)


def seen_again(logs: Logs, step: int = 50) -> None:
    """The harness sees the one of this step once more, and its tensors are others."""
    line = next(seen(logs, step, step))
    logs.put(line | clocks(line, 10**8) | {"sha256": "other", "tensors": "other"})


def seen_before(logs: Logs) -> None:
    """The harness sees that of step 50 three seconds earlier."""
    line = next(seen(logs, 50, 50))
    line |= clocks(line, -3 * 10**9)
    logs.put()


def last_left(**told: Any) -> Bend:
    return lambda logs: left_of(logs)["checkpoints"][0].update(told)


NONE: list[tuple[list[Bend], str]] = [
    ([seen_again], "of step 50 is none: the harness saw its tensors change after it was whole"),
    ([seen_before], "of step 50 is none: the harness saw it before any rank had done its step"),
    ([with_seen(50, 50, step=40)], "of step 50 is none: the harness saw that it holds step 40"),
    ([last_left(step=70)], f"of step 80, is none: {NOT_FOUND}"),
    ([last_left(bytes=0)], f"of step 80, is none: {NOT_FOUND}"),
    ([unseen(10, 30)], "its checkpoint is none: the harness never saw it in the store"),
    (
        [unseen(50, 50), left_are(10, 20, 30, 40, 60, 70, 80)],
        "of step 50 is none: the harness never saw it in the store, and saw the next",
    ),
    ([unseen(40, 80)], "the checkpoint of step 40 is none: the harness never saw it in the store"),
    ([with_seen(40, bytes=100)], "is none: the harness saw 100 bytes, and at least 1,000 of each without a fault"),
    ([told(bytes=0)], "is none: the trainer told 0 bytes"),
    ([with_seen(40, bytes=660)], "is none: the harness saw 660 bytes, and at least 1,000 of each without a fault"),
    ([told(path="checkpoints/step-30")], "of step 80, is none: the harness did not find it in the store when all"),
    ([with_seen(40, sha256="s30")], "the harness saw in it the content of the checkpoint of step 30"),
    ([with_seen(50, tensors="t40")], "the checkpoint of step 50 is none: the harness saw in it the content of"),
    ([with_seen(40, zero_bytes=600)], "the harness saw 67% of its tensors' bytes in tensors of zeros"),
    ([with_part(50, "280 moments-40")], "saw 67% of its tensors as in the checkpoint of step 40, and at most 33%"),
    ([lambda logs: removed(logs, 50, 1_000_000_000)], "the harness saw it go away before a newer one was begun"),
    ([not_left], "the last checkpoint, of step 80, is none: the harness did not find it in the store"),
]


@pytest.mark.parametrize(("bends", "reason"), NONE)
def test_a_save_that_the_store_does_not_hold_is_none(bends: list[Bend], reason: str) -> None:
    card = judged(*bends)
    assert reason in said(card), card.reasons
    assert card.verdict is (Verdict.INCONCLUSIVE if bends[0] in (seen_again, seen_before) else Verdict.FAIL)


@bending
def again(logs: Logs, /, **told: Any) -> None:
    """The harness sees the save of step 50 once more, or another one, which differs."""
    line = next(seen(logs, 50, 50))
    logs.put(line | clocks(line, 10**8) | {"sha256": "other"} | told)


@bending
def labelled(logs: Logs, /, **told: Any) -> None:
    """The save of step 50 is called otherwise."""
    every = *logs.all(*SAVES), *seen(logs), *left_of(logs)["checkpoints"]
    change([line for line in every if line["step"] == 50], **{"path": "checkpoints/step-47"} | told)


def left_70(bytes_: int) -> Bend:
    return lambda logs: left_of(logs)["checkpoints"][1].update(bytes=bytes_)


FOREIGN, FROZEN = again(path="checkpoints/other-50"), with_seen(tensors="frozen")


@pytest.mark.parametrize(
    ("bend", "usual", "reason"),
    [
        (left_70(850), (), "of step 70 is none: the harness saw 1,000 bytes, and 850 when all nodes"),
        (left_70(950), (), ""),
        (left_70(850), (left_70(850),), ""),  # a trainer that drops a part of older saves
        (left_70(1200), (), "saw the files of the checkpoint of step 70 change after"),
        (left_70(1200), (left_70(1200),), ""),
        (again(), (), "saw the files of the checkpoint of step 50 change after"),
        (again(bytes=900, tensors="other"), (), "saw its tensors change after"),
        (again(bytes=1020), (), ""),  # a file comes later
        (FOREIGN, (), "a checkpoint of step 50 in the store, and no rank told of checkpoints/other-50"),
        (FOREIGN, (FOREIGN,), ""),
        (labelled(step=47), (), "the checkpoint of step 47 holds the tensors of another step than in the fault-free"),
        (labelled(step=47), (FROZEN,), ""),
        (labelled(path="checkpoints/step-50-v1"), (), ""),
        (with_part(10, "280 other"), (), "of step 10 holds other tensors than in the fault-free run, though all"),
        (with_seen(10, 10, tensor_digests=["600 model-10", "280 moments-10", "20 dice"]), (), ""),
    ],
)
def test_a_save_stays_as_the_harness_saw_it(bend: Bend, usual: tuple[Bend, ...], reason: str) -> None:
    verdict_ = Verdict.FAIL if "is none" in reason else Verdict.INCONCLUSIVE if reason else Verdict.PASS
    assert_verdict(judged(bend, without=(watched, *usual)), verdict_, reason)


def test_a_save_that_is_stale_in_each_run_is_none_as_well() -> None:
    """A trainer whose last saves always hold an optimizer's state of before: its fault-free run is no excuse."""
    stale = (watched, with_part(70, "280 moments-60"))
    card = judged(without=stale)
    assert card.verdict is Verdict.INCONCLUSIVE, card.reasons
    assert "67% of its tensors as in the checkpoint of step 60, and at most 33% in most others" in said(card)
    assert_verdict(judged(without=(*stale, with_part(50, "280 moments-40"))), Verdict.PASS)


@pytest.mark.parametrize(("more", "piled_up"), [(3, False), (4, True)])
def test_old_checkpoints_that_are_no_longer_removed_are_told(more: int, piled_up: bool) -> None:
    """Two are kept without a fault; one restart and one fault may leave three more."""

    def piled(logs: Logs) -> None:
        left = left_of(logs)
        left["checkpoints"] += [left["checkpoints"][0] | {"path": f"old-{n}", "step": n} for n in range(1, more + 1)]
        left["count"] += more

    card = judged(piled, without=(watched, left_are(70, 80)))
    assert card.verdict is (Verdict.INCONCLUSIVE if piled_up else Verdict.PASS), card.reasons
    assert ("the store held 6 checkpoints at the end, and 2 without a fault" in said(card)) is piled_up


@pytest.mark.parametrize(("count", "told"), [(2, 0), (3, 1)])
def test_a_drill_forms_no_world_and_leaves_as_many(count: int, told: int) -> None:
    run = SimpleNamespace(left={"count": count}, epochs=[], faults=(), beside=SimpleNamespace(job_goes_on=False))
    usual = {"fault_free": SimpleNamespace(left={"count": 2}), "fault_free_saves": SimpleNamespace(by=By.TOLD)}
    evidence: Any = SimpleNamespace(run=run, new_work=str, **usual)
    assert len(list(saves_removed_in_time.breaches(evidence))) == told


def test_one_line_of_the_harness_or_of_the_job_that_is_lost_accuses_no_save() -> None:
    """The harness saw it go away later; or found a newer one at the end, of which nobody told."""
    card = judged(lambda logs: removed(logs, 50, 10**10), unseen(50, 50))
    assert "the harness never saw it" not in said(card), card.reasons
    untold: Bend = lambda logs: logs.lose("checkpoint.committed", step=[80])  # noqa: E731
    card = judged(untold, without=(watched, left_are(70, 80)))
    assert card.verdict is Verdict.INCONCLUSIVE and "found a checkpoint of step 80 at the end" in said(card)
    assert "is none" not in said(judged(lambda logs: logs.lose("step", step=[60], rank=0)))


@bending
def outage(logs: Logs, first: int, last: int, healed: bool = True) -> None:
    """The store answers with errors from the end of one step to the end of another."""
    begin, end = (min(line["mono_ns"] for line in logs.steps(step, step)) for step in (first, last))
    struck(logs, "eio", begin, end + 10**8 if healed else None, kind="storage_error", may=["spoil", "stop"])


@bending
def never_there(logs: Logs, *saves: int) -> None:
    for step in saves:
        unseen(step, step)(logs)
    left_are(*({*range(10, 90, 10)} - {*saves}))(logs)


@bending
def seen_later(logs: Logs, first: int, last: int) -> None:
    """The harness sees these a second after the others that follow them."""
    change(seen(logs, first, last), mono_ns=next(seen(logs, last + 10))["mono_ns"] + 10**9)
    logs.put()


@pytest.mark.parametrize(
    ("bends", "expected", "reason"),
    [
        ([outage(45, 65), never_there(50, 60)], Verdict.INCONCLUSIVE, f"of step 60 is none: {AFTER}, and saw the next"),
        ([outage(45, 55), never_there(50)], Verdict.INCONCLUSIVE, f"of step 50 is none: {AFTER}, and saw the next"),
        ([outage(45, 55), never_there(50, 60)], Verdict.FAIL, "of step 60 is none: the harness never saw it in the"),
        ([outage(65, 79), unseen(70, 70), left_are(10, 80)], Verdict.PASS, ""),
        ([outage(75, 80), not_left], Verdict.INCONCLUSIVE, NOT_FOUND),
        ([outage(45, 65)], Verdict.PASS, ""),
        ([outage(45, 65), seen_later(50, 60)], Verdict.PASS, ""),
        ([outage(45, 65, healed=False), unseen(50, 80), not_left], Verdict.PASS, ""),
        ([outage(51, 65), not_left], Verdict.FAIL, NOT_FOUND),
    ],
)
def test_a_save_of_an_outage_is_there_afterwards(bends: list[Bend], expected: Verdict, reason: str) -> None:
    assert_verdict(judged(*bends), expected, reason)


SILENT = "resumed from step 40 and gave no reason, though a checkpoint of step {} had been committed during a fault"


def not_listed(logs: Logs) -> None:
    """The harness does not list the store at the end."""
    remove(logs.harness, lambda line: line.get("event") == "checkpoint.left")


@pytest.mark.parametrize(
    ("last", "bends", "reason"),
    [
        (62, (), f"of step 60 is none: {AFTER}"),
        (66, (), f"of step 60 is none: {AFTER}"),
        (66, (not_listed,), SILENT.format(50)),  # step 60 was never seen after the fault
        (79, (not_listed,), SILENT.format(60)),  # the restart came while the store was out
    ],
)
def test_a_restart_passes_over_what_was_never_in_the_store(last: int, bends: tuple[Bend, ...], reason: str) -> None:
    def lies(logs: Logs) -> None:
        outage(45, last)(logs)
        lines = logs.trainers(rank=0, life=0)[0]
        for done in (line for step in (50, 60) for line in steps(lines, step, step)):
            save = {"event": "checkpoint.committed", "step": done["step"], "path": f"checkpoints/step-{done['step']}"}
            put(lines, save | {"kind": "periodic", "bytes": 1000, "duration_ns": 1} | clocks(done, 2))

    outages = [Outage(67, "rank", victim=1)]
    card = judged(lies, without=(watched, *bends), job=replace(JOB, every=40), outages=outages)
    assert_verdict(card, Verdict.INCONCLUSIVE, reason)


def test_a_harness_that_was_killed_may_have_seen_more() -> None:
    def cut(logs: Logs) -> None:
        last = next(seen(logs, 50, 50))["mono_ns"]
        remove(logs.harness, lambda line: line["mono_ns"] > last)

    card = judged(cut)
    assert card.verdict is Verdict.INCONCLUSIVE and "the harness never saw it" not in said(card), card.reasons


@pytest.mark.parametrize(("least", "steady"), [(970, True), (969, False)])
def test_where_sizes_hardly_differ_a_smaller_one_lacks_something(least: int, steady: bool) -> None:
    card = judged(with_seen(40, bytes=860), without=(watched, with_seen(10, 10, bytes=least)))
    text = f"the harness saw 860 bytes, and at least {least} of each without a fault"
    assert (text in said(card)) is steady, card.reasons
    assert (card.verdict is Verdict.PASS) is not steady, "sizes that differ without a fault may differ with one"


@pytest.mark.parametrize(
    ("killed", "until", "reason"),
    [(37, 40, ""), (37, 80, "they may hold one state"), (57, 80, "they may hold one state"), (67, 80, "")],
)
def test_saves_whose_size_stays_hold_one_state_where_it_changes_from_save_to_save(
    killed: int, until: int, reason: str
) -> None:
    """A window of the last losses that is full by step 40 is none. Two saves after the restart show nothing."""

    @bending
    def sized(logs: Logs, a_step: int) -> None:
        for line in seen(logs):
            line["bytes"] = 1000 + a_step * min(line["step"], until)

    card = judged(sized(0), without=(watched, sized(10)), outages=[Outage(killed, "rank", victim=1)])
    assert_verdict(card, Verdict.INCONCLUSIVE if reason else Verdict.PASS, reason)


def test_a_restart_from_a_save_that_was_only_begun_and_never_seen_is_not_known() -> None:
    def only_begun(logs: Logs) -> None:
        change(commits(logs, 30, 30), event="checkpoint.started")
        unseen(30, 30)(logs)
        left_are(10, 20, 40, 50, 60, 70, 80)(logs)

    card = judged(only_begun)
    assert "said it restored step 30, but that checkpoint was only begun by then" in said(card)
    assert card.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("every", "accused"), [(30, True), (60, False)])
def test_a_name_is_of_a_step_where_there_are_two(every: int, accused: bool) -> None:
    """A single checkpoint may be written over under its name."""
    card = judged(lambda logs: seen_again(logs, 60), job=replace(JOB, every=every))
    assert ("of step 60 is none: the harness saw its tensors change" in said(card)) is accused, card.reasons


def counts_from_one(logs: Logs) -> None:
    """What each checkpoint says of itself is a step further than its name."""
    change(seen(logs), step=lambda line: line["step"] + 1)


def twice(logs: Logs) -> None:
    """The files of each came one after the other, and the harness saw a part first."""
    for line in list(seen(logs)):
        part = {key: line[key] - LATE_NS // 2 for key in ("mono_ns", "wall_ns")}
        logs.harness.insert(logs.harness.index(line), line | part | {"bytes": 10, "zero_bytes": 900})


def to_one_path(logs: Logs) -> None:
    change((*commits(logs), *seen(logs)), path="checkpoints/last.pt")
    left_are(80)(logs)
    left_of(logs)["checkpoints"][0]["path"] = "checkpoints/last.pt"


@pytest.mark.parametrize("usual", [to_one_path, last_left(step=None)])
def test_the_last_save_holds_its_step_if_its_name_or_the_fault_free_one_tells_the_step(usual: Bend) -> None:
    assert_verdict(judged(last_left(step=70), without=(watched, usual)), Verdict.FAIL, NOT_FOUND)


def two_are_kept(logs: Logs) -> None:
    left_are(70, 80)(logs)
    for step in (10, 20, 50):
        removed(logs, step, 9_000_000_000)


def elsewhere(logs: Logs) -> None:
    change(commits(logs), path=lambda line: f"/mnt/{line['step']}.pt")
    change(seen(logs), path="checkpoints/other", step=1)


def silent(logs: Logs) -> None:
    """It tells no saves, so it is not asked for its word: the harness found the last one only at the end."""
    logs.lose(*SAVES)


@pytest.mark.parametrize(
    "bend",
    [twice, to_one_path, two_are_kept, lambda logs: change(commits(logs), "path"), elsewhere, counts_from_one, silent],
)
def test_whoever_saves_otherwise_without_a_fault_too_is_not_accused(bend: Bend) -> None:
    assert_verdict(judged(without=(watched, bend)), Verdict.PASS)


def over_a_notice(logs: Logs) -> None:
    """What is saved then is of another kind, and may lie elsewhere."""
    change(commits(logs, 50, 50), kind="emergency", path="emergency/step-50")


def goes_meanwhile(logs: Logs) -> None:
    """The harness looks while the files of the one of step 40 go, one after the other."""
    next(seen(logs, 40, 40)).update({"bytes": 48, "sha256": "rest"} | clocks(next(seen(logs, 60, 60))))
    logs.put()
    removed(logs, 40, 10**8)


def cut_short(logs: Logs) -> None:
    """The list of what is left, which then does not tell how many are kept."""
    left_of(logs)["count"] += 1000


@pytest.mark.parametrize(
    ("bends", "without", "job"),
    [
        ([over_a_notice], [], JOB),
        ([goes_meanwhile], [], JOB),
        ([unseen(60, 60)], [], JOB),  # one alone
        ([unseen(10, 20), unseen(40, 50)], [], replace(JOB, step_ms=20)),  # most are gone at the next look
        ([left_are(JOB.steps)], [cut_short], JOB),
    ],
)
def test_a_look_that_tells_less_accuses_nobody(bends: list[Bend], without: list[Bend], job: Job) -> None:
    assert_verdict(judged(*bends, without=(watched, *without), job=job), Verdict.PASS)


def test_a_store_that_cannot_be_seen_proves_nothing() -> None:
    def hidden(logs: Logs) -> None:
        logs.put({"event": "checkpoint.unseen", "why": "it ends with the job"} | clocks(logs.harness[1]))

    card = judged(unseen(10, 80), not_left, hidden)
    assert card.verdict is Verdict.PASS, card.reasons
    assert card.not_judged["checkpoints in their store"] == "it ends with the job"
    [never_none] = [each for each in card.guarantees if each.name == "saves.never_none"]
    assert (never_none.state, never_none.why) == ("not judged", "it ends with the job")


def test_a_trainer_that_saves_where_the_harness_never_saw_a_save_has_only_its_word() -> None:
    """That accuses nobody, and the verdict says so."""
    card = judged(without=(watched, unseen(0, JOB.steps), left_are()))
    assert card.verdict is Verdict.PASS and "checkpoints in their store" in card.reasons[0]
    [whole] = [each for each in card.guarantees if each.name == "saves.whole"]
    assert (whole.state, whole.why) == ("not judged", "the harness saw none there")
    card = judged(lambda logs: change(commits(logs, 50), path="checkpoints/step-50-b"))
    assert card.not_judged["checkpoints in their store"] == "the harness saw none like step-50-b there", card.reasons


@pytest.mark.parametrize(
    ("early", "first", "always", "accused"),
    [
        (1, 40, False, Verdict.FAIL),  # the rhythm lacks them
        (1, 80, False, Verdict.INCONCLUSIVE),
        (0, 40, False, Verdict.PASS),
        (1, 0, True, Verdict.PASS),  # without a fault, too
    ],
)
def test_a_save_is_begun_after_its_step(early: int, first: int, always: bool, accused: Verdict) -> None:
    bend: Bend = lambda logs: begun_earlier(logs, early, first)  # noqa: E731
    card = judged(without=(watched, bend)) if always else judged(bend)
    assert always or card.verdict is accused, card.reasons
    told = "began it when" if always else "rank 0 began it when it had done step"
    assert (told in said(card)) is (accused is not Verdict.PASS), card.reasons


def without_commits(*which: int) -> Bend:
    return together(lambda logs: logs.lose(*SAVES, step=which), *(unseen(step, step) for step in which))


def tells_no_saves(logs: Logs) -> None:
    by_a_command(logs)
    change((lines[0] for lines in logs.trainers()), "tells")
    logs.lose(*SAVES)


def test_the_last_save_is_never_tolerated_to_be_missing() -> None:
    card = judged(without_commits(80), not_left)
    text = "the job ended at step 80, and its last checkpoint is of step 70: without a fault it is of step 71 or later"
    assert card.verdict is Verdict.FAIL and text in said(card), card.reasons
    assert "its last checkpoint is" not in said(judged(without_commits(60)))


def test_a_rhythm_that_a_restart_moved_ends_less_than_an_interval_early() -> None:
    def moved(logs: Logs) -> None:
        begun_earlier(logs, 3)
        change(logs.all(*SAVES), step=lambda line: line["step"] - (3 if line["step"] >= 40 else 0))

    assert "its last checkpoint is" not in said(judged(moved, without=()))


@pytest.mark.parametrize(("written_until", "verdict_"), [(72, Verdict.PASS), (51, Verdict.FAIL)])
def test_a_save_is_not_due_while_another_one_is_being_written(written_until: int, verdict_: Verdict) -> None:
    def slow_disk(logs: Logs) -> None:
        without_commits(60, 70)(logs)
        (lines,) = logs.trainers(rank=0, life=-1)
        next(commits(logs, 50, 50)).update(clocks(steps(lines, written_until, written_until)[0], 1))
        put(lines)

    assert_verdict(judged(slow_disk, without=()), verdict_)


def test_a_trainer_that_tells_no_saves_and_makes_none_after_its_restart() -> None:
    card = judged(unseen(40, 80), without=(watched, tells_no_saves))
    assert card.verdict is Verdict.FAIL and "checkpoints that the fault-free run made" in said(card), card.reasons
    one = judged(unseen(50, 80), without=(watched, tells_no_saves))
    assert "checkpoints that the fault-free run made" not in said(one), one.reasons


def test_tensors_that_the_harness_saw_are_those_of_the_fault_free_run() -> None:
    card = judged(lambda logs: [line.update(tensors=f"other {line['step']}") for line in seen(logs, 40)])
    text = "the checkpoint of step 40 holds other tensors than in the fault-free run"
    assert card.verdict is Verdict.INCONCLUSIVE and text in said(card), card.reasons


def averaged(logs: Logs) -> None:
    """Beside each save, one file of averaged weights is written anew; the last time after the last step."""
    times = [clocks(line, -1) for line in seen(logs)] + [clocks(logs.told("run.finished"), -(10**6))]
    for number, time in enumerate(times):
        what = {"path": "checkpoints/swa.pt", "bytes": 300, "sha256": f"a{number}", "tensors": f"a{number}"}
        logs.put({"event": "checkpoint.published"} | what | time)


@pytest.mark.parametrize(("since", "verdict_"), [(0, Verdict.PASS), (40, Verdict.INCONCLUSIVE), (100, Verdict.PASS)])
def test_a_file_without_a_step_is_at_the_end_as_without_a_fault(since: int, verdict_: Verdict) -> None:
    """One that was another one before the restart may be another one each time."""

    def lost(logs: Logs) -> None:
        lines = [line for line in seen(logs) if line["path"] == "checkpoints/swa.pt"]
        for place, line in enumerate(lines):
            if 10 * (place + 1) >= since and since < 100:
                line["tensors"] = f"other {place}"

    card = judged(lost, without=(watched, averaged))
    assert_verdict(card, verdict_, "at the end checkpoints/swa.pt holds other tensors" if since == 40 else "")


@bending
def passed_over(logs: Logs, *items: Line, step: int) -> None:
    """The restart takes an older one, and says so."""
    for line in [line for line in logs.all("restored") if line["step"] == 30]:
        line |= {"step": step, "source": f"checkpoints/step-{step}", "fallback": list(items)}


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
    assert_verdict(judged(passed_over(item, step=20)), Verdict.FAIL, reason)


def test_what_nobody_saw_may_have_been_damaged() -> None:
    card = judged(passed_over(NEWEST, step=20), without=())
    [newest] = [each for each in card.guarantees if each.name == "restart.newest"]
    text = "rank 0 passed over the checkpoint of step 30, which nothing had damaged"
    assert (newest.state, newest.why) == ("open", text)


def damaged(step: int, moment: int | None = None) -> Bend:
    """A fault damages the checkpoint of this step right before the kill or at this moment, and heals."""
    name = f"checkpoints/step-{step}"

    def bend(logs: Logs) -> None:
        at = moment or logs.told("fault.injected")["mono_ns"] - 1000
        struck(logs, "rot", at, healed=at + 1, kind="checkpoint_corruption", spoils=True)
        told = {"event": "fault.damaged", "fault": "rot", "path": f"{name}/a", "checkpoint": name, "step": step}
        told |= {"names": [f"step-{step}"], "copies": 0, "part": "tensor", "how": "bit_flip", "tensor_bytes": 1}
        logs.put(told | {"mono_ns": at, "wall_ns": logs.harness[-1]["wall_ns"]})

    return bend


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"bytes": 10}, "the checkpoint of step {} is none: the harness saw 10 bytes"),
        (
            {"tensors": "other", "tensor_digests": ["900 other"]},
            "the checkpoint of step {} holds other tensors than in",
        ),
    ],
)
def test_what_is_saved_anew_over_a_damaged_one_is_looked_into(told: dict[str, Any], reason: str) -> None:
    assert reason.format(40) in said(judged(damaged(40), with_seen(40, 40, **told)))
    before_the_look: Bend = lambda logs: damaged(30, next(commits(logs, 30))["mono_ns"] + 10**8)(logs)  # noqa: E731
    assert reason.format(30) not in said(judged(before_the_look, with_seen(30, 30, **told))), (
        "the fault left that there"
    )
    assert judged(damaged(40)).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("last", "step", "items", "state", "reason"),
    [
        (36, 20, (), "broken", "resumed from step 20 and gave no reason, though a checkpoint of step 30 had been"),
        (36, 0, (), "broken", "resumed from step 0 and gave no reason, though a checkpoint of step 30 had been"),
        (
            36,
            0,
            (NEWEST,),
            "broken",
            "resumed from step 0 and skipped all saved checkpoints, though a checkpoint of step 20",
        ),
        (36, 20, (NEWEST,), "open", "rank 0 passed over the checkpoint of step 30, which nothing had damaged"),
        (36, 30, (), "held", ""),
        (60, 20, (), "open", "a fault disturbed the store while the restart looked for checkpoints"),
        (60, 0, (), "open", "a fault disturbed the store while the restart looked for checkpoints"),
        (60, 20, (NEWEST,), "held", ""),  # it could not read it
        (60, 30, (), "held", ""),
    ],
)
def test_what_was_committed_before_an_outage_of_the_store_is_there_after_it(
    last: int, step: int, items: tuple[Line, ...], state: str, reason: str
) -> None:
    card = judged(outage(32, last), passed_over(*items, step=step))
    [newest] = [each for each in card.guarantees if each.name == "restart.newest"]
    assert newest.state == state and reason in newest.why, newest


def test_what_was_damaged_may_be_removed() -> None:
    """The job went back further than to the checkpoint of step 30, and deleted it."""
    text, gone = "of step 30 is none: the harness saw it go away", lambda logs: removed(logs, 30, 4 * 10**9)
    assert text in said(judged(gone)) and text not in said(judged(damaged(30), gone))


def test_what_was_damaged_is_written_anew() -> None:
    """One of step 40 was there, and was damaged; the job went back, did step 40 again, and told that it saved it."""
    assert "nothing new in its place" not in said(judged(damaged(40)))
    card = judged(damaged(40), unseen(40, 40))
    assert_verdict(card, Verdict.FAIL, "the checkpoint of step 40 is none: a fault had damaged what was")


def test_after_a_bad_one_the_next_is_taken() -> None:
    def no_heal(logs: Logs) -> None:
        """As with a flipped bit, which stays."""
        remove(logs.harness, lambda line: line.get("event") == "fault.healed" and line.get("fault") == "rot")

    assert "resumed from step 10 and named no newer one" in said(judged(damaged(30), passed_over(NEWEST, step=10)))
    assert "named no newer one" not in said(judged(damaged(30), passed_over(NEWEST, step=20)))
    good = NEWEST | {"source": "checkpoints/step-20"}
    card = judged(damaged(30), no_heal, passed_over(NEWEST, good, step=10))
    assert card.verdict is Verdict.FAIL and "over the checkpoint of step 20, which nothing had damaged" in said(card)


def test_a_silent_start_from_scratch_without_a_planned_interval() -> None:
    def silent_start(logs: Logs) -> None:
        tells_no_saves(logs)
        logs.plan["workload"].pop("checkpoint")
        logs.lose("restored")
        for lines in logs.last_lives():
            first = steps(lines)[0]["step"]
            for line in steps(lines):
                line["step"] += 1 - first

    card = judged(silent_start, without=())
    assert "the job restarted at step 1 and lost" in said(card), card.reasons


def test_as_many_are_kept_at_the_end_as_without_a_fault() -> None:
    newest = (JOB.steps - 20, JOB.steps - 10, JOB.steps)
    assert_verdict(judged(left_are(10, JOB.steps), without=(watched,)), Verdict.FAIL, "without a fault the newest")
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
    logs.told("fault.injected").update(spoils=True)
    remove(logs.harness, lambda line: line.get("event") == "fault.healed")


@pytest.mark.parametrize("lost", [unseen(40, 70), not_left, lambda logs: removed(logs, 60, 1)])
def test_a_fault_that_may_hide_a_save_excuses_it_while_it_is_at_work(lost: Bend) -> None:
    assert "is none" in said(judged(lost)) and "is none" not in said(judged(spoils, lost))


@bending
def emptied(logs: Logs, times: int, apart_ns: int) -> None:
    """So often the only checkpoint in the store is removed, so long before the next one was committed."""
    for before, after in list(itertools.pairwise(commits(logs, 40)))[:times]:
        removed = {"event": "checkpoint.removed", "path": before["path"], "step": before["step"]}
        logs.put(removed | clocks(after, -apart_ns))
        for line in list(seen(logs, 0, before["step"] - 1)):
            logs.harness.remove(line)


@pytest.mark.parametrize(
    ("times", "apart_ms", "told"),
    [
        (2, 60, "2 times, first that of step 40, for up to 60 ms"),
        (2, -20, ""),  # the harness saw the next one a little later than it was committed
        (1, 60, ""),  # between two looks of the harness
        (1, 3_000, ""),
        (2, -400, ""),
        (0, 60, ""),
    ],
)
def test_the_only_checkpoint_stays_until_the_next_one_is_committed(times: int, apart_ms: int, told: str) -> None:
    empty = emptied(times, apart_ms * 10**6)
    card = judged(empty, without=(watched, empty))
    assert (f"{BARE} ({told})" in said(card)) if told else (BARE not in said(card)), card.reasons


def makes_room(logs: Logs, first: int = 50, last: int = 60) -> None:
    """When a save fails over a full disk, the trainer removes the only checkpoint, of step 40; it fails again."""
    full = {"kind": "storage_full", "may": ["spoil", "stop"]}
    failed = [line for line in commits(logs, first, last)]
    struck(logs, "full", failed[0]["mono_ns"] - 10**8, failed[-1]["mono_ns"] + 10**8, **full)
    unseen(first, last)(logs)
    for line in failed:
        line.update(event="checkpoint.failed", error="no space left")
    for step in (10, 20, 30):
        logs.put({"event": "checkpoint.removed", "path": f"checkpoints/step-{step}"} | clocks(next(seen(logs, 40)), 1))
    logs.put({"event": "checkpoint.removed", "path": "checkpoints/step-40"} | clocks(failed[0], 10**6))


def seen_40_again(logs: Logs) -> None:
    """The harness could not see it for a while, and nobody had removed it."""
    line = next(seen(logs, 40, 40))
    logs.put(line | clocks(next(seen(logs, 70, 70)), -(10**9)))


def back_to_40(logs: Logs) -> None:
    """The job went back, and saved step 40 anew: what it removed was of work that it threw away."""
    for line in [*commits(logs, 70, 70), *seen(logs, 70, 70)]:
        line.update(step=40, path=line["path"].replace("70", "40"))


@pytest.mark.parametrize(
    ("bends", "told"),
    [
        ((makes_room,), "1 time, first that of step 40, for up to 7.24 s"),
        ((lambda logs: makes_room(logs, 50, 50),), ""),  # for a moment
        ((makes_room, seen_40_again), ""),
        ((makes_room, back_to_40), ""),
        ((makes_room, lambda logs: damaged(40, next(commits(logs, 40))["mono_ns"] + 10**9)(logs)), ""),
    ],
)
def test_a_store_is_not_bare_for_seconds_while_saves_fail(bends: tuple[Bend, ...], told: str) -> None:
    card = judged(*bends)
    assert (f"{BARE} ({told}" in said(card)) if told else (BARE not in said(card)), card.reasons


@pytest.mark.parametrize(("usual", "verdict_"), [(False, Verdict.INCONCLUSIVE), (True, Verdict.PASS)])
def test_a_checkpoint_that_nobody_told_of_is_one_unless_it_is_usual(usual: bool, verdict_: Verdict) -> None:
    """A trainer that saves a copy in another thread tells of none."""

    def untold(logs: Logs) -> None:
        for name in ("checkpoint.started", "checkpoint.committed"):
            logs.lose(name, step=[60])

    card = judged(untold, without=(watched, untold) if usual else (watched,))
    assert_verdict(card, verdict_, "" if usual else "saw a checkpoint of step 60 in the store, and no rank told")


@pytest.mark.parametrize(("bends", "told"), [((), False), ((with_seen(50, 50, tensor_count=2),), True)])
def test_saves_keep_their_tensors_when_the_world_changes_its_size(bends: tuple[Bend, ...], told: bool) -> None:
    """As many are in those of fault-free runs of either size. Else their number may hang on the size."""
    small, history = bent(replace(JOB, nodes=1), watched), simulate(JOB, [Outage(35, "shrink", victim=1)], seed=5)
    text = "the checkpoint of step 50 has 2 tensors, and 3 without a fault, on whatever number of ranks"
    for calibration, known in (((small,), told), ((), False)):
        card = verdict(history, together(watched, *bends), ENVELOPE, bent(JOB, watched), calibration)
        assert (text in said(card)) == known, card.reasons


@bending
def exporting(logs: Logs, /, step: int, **others: int) -> None:
    """At the end an export holds the weights of this step."""
    remove(logs.harness, lambda line: line.get("event") == "files.left")
    files = {"out/model.pt": f"600 model-{step}"} | {f"out/{name}.pt": f"600 x{held}" for name, held in others.items()}
    held = [{"file": name, "tensor_digests": [tensor, "20 frozen"]} for name, tensor in files.items()]
    left = {"event": "files.left", "files": sorted(files), "count": len(files), "holding_tensors": held}
    logs.put(left | clocks(logs.told("run.finished"), -1))


@pytest.mark.parametrize(
    ("usual", "mine", "told"),
    [
        (exporting(70), exporting(70), ""),
        (exporting(70), exporting(40), "at the end out/model.pt holds other tensors than in the fault-free run"),
        (exporting(70, best=1), exporting(70, best=2), ""),  # a best model need not be the last
        (exporting(60), exporting(40), ""),
    ],
)
def test_an_export_holds_the_last_weights_if_it_does_without_a_fault(usual: Bend, mine: Bend, told: str) -> None:
    card = judged(mine, without=(watched, usual))
    assert_verdict(card, Verdict.INCONCLUSIVE if told else Verdict.PASS, told)


@bending
def beside(logs: Logs, *files: str) -> None:
    """These lie beside the checkpoints at the end."""
    remove(logs.harness, lambda line: line.get("event") == "files.left")
    left = {"event": "files.left", "files": sorted(files), "count": len(files)}
    logs.put(left | clocks(logs.told("run.finished"), -1))


@pytest.mark.parametrize(
    ("mine", "told"),
    [
        (("rank0-80.pt", "rank1-80.pt", "eval-80.json"), ""),
        (("rank0-80.pt", "rank1-40.pt", "eval-80.json"), "beside the checkpoint of step 80, rank1-80.pt is missing"),
        (("rank1-80.pt",), "eval-80.json is missing, which is there without a fault (and 1 more)"),
    ],
)
def test_a_file_with_the_number_of_the_newest_checkpoint_is_there_as_without_a_fault(mine: Any, told: str) -> None:
    usual = beside("rank0-80.pt", "rank1-80.pt", "eval-80.json")
    card = judged(beside(*mine), without=(watched, usual))
    assert_verdict(card, Verdict.INCONCLUSIVE if told else Verdict.PASS, told)


def test_a_last_save_that_holds_less_than_the_others_is_told() -> None:
    store = judged(with_seen(70, 70, tensor_count=2)).evidence.saves.store
    assert store.holds_less(70, 0) == (2, 3) and store.holds_less(60, 0) is None
    assert judged().evidence.saves.store.holds_less(70, 0) is None


@pytest.mark.parametrize(("layout", "fails"), [("reference", True), ("other", False)])
def test_a_manifest_without_a_tensor_is_no_checkpoint(layout: str, fails: bool) -> None:
    """Without a fault, too: the state is on a disk of the node's own."""

    def hollow(logs: Logs) -> None:
        for line in seen(logs):
            for name in [name for name in line if name.startswith("tensor")]:
                line.pop(name)
            line |= {"layout": layout, "bytes": 4860}
        change((*commits(logs), *left_of(logs)["checkpoints"]), bytes=4860)

    card = judged(without=(watched, hollow))
    assert card.verdict is (Verdict.FAIL if fails else Verdict.PASS), card.reasons
    assert ("is none: the harness saw 4,860 bytes and no tensor in them" in said(card)) is fails


@bending
def writes(logs: Logs, late: int, after_ns: int = 1) -> None:
    """The trainer says when it begins to write: of so many saves only after it told that they are committed."""
    left = late
    for lines in logs.trainers():
        told = [line for line in lines if line.get("event") == "checkpoint.committed"]
        begun = [line for line in lines if line.get("event") == "checkpoint.started"]
        first, left = left, max(0, left - len(told))
        for line in (*told[:first], *begun[first:]):
            at = clocks(line, after_ns * (line["event"] == "checkpoint.committed"))
            lines.append({"event": "phase", "name": "checkpoint.write", "edge": "begin"} | at)
        put(lines)


@pytest.mark.parametrize(("late", "fails"), [(2, True), (1, False), (0, False)])
def test_a_save_is_not_committed_before_it_is_written(late: int, fails: bool) -> None:
    card = judged(without=(watched, writes(late)))
    assert ("told as committed before they were written (" in said(card)) is fails, card.reasons
    assert (card.verdict is Verdict.FAIL) is fails, card.reasons


def test_saves_that_are_written_later_than_told_may_be_something_else_and_hide_no_proof() -> None:
    card = judged(without=(watched, writes(2, after_ns=1_000_000_000)))
    assert card.verdict is Verdict.INCONCLUSIVE and "before they were written (2 times" in said(card), card.reasons
    card = judged(seen_again, without=(watched, writes(2)))
    assert_verdict(card, Verdict.FAIL, "told as committed before they were written (")
    assert "is none" not in said(card), card.reasons
