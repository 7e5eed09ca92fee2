"""A notice leads to one coordinated checkpoint and a clean exit, and a kill at any moment to a restart that is not seen
in the losses: always, not half of the time."""

import contextlib
import os
import pathlib
import random
import signal
import time

import pytest
from job import Job, Nursery, completed
from told import answer, answers

from harness.log.truth import Decision, Kind
from reference_trainer.preemption import EXIT_DRAINED


def evict(job: Job, node: str, how: str) -> None:
    """SIGTERM in the ways in which it reaches a node."""
    if how == "agent":
        os.kill(job.nodes[node], signal.SIGTERM)
    elif how == "everything":
        os.killpg(job.nodes[node], signal.SIGTERM)
    else:
        os.kill(job.workers(node)[0], signal.SIGTERM)


def assert_nothing_lost(job: Job, since_ns: int) -> None:
    """The emergency checkpoint holds the last step that anybody did before leaving, and training goes on from it."""
    last = max(event["step"] for event in job.seen("step") if event["mono_ns"] < since_ns)
    restored = {event["step"] for event in job.seen("restored") if event["mono_ns"] > since_ns}
    assert restored == {last}


def test_eviction_with_replacement(nursery: Nursery, tmp_path: pathlib.Path) -> None:
    with Job(nursery, tmp_path / "fault-free", 60) as fault_free:
        for node in ("a", "b"):
            fault_free.start(node, "2:2")
        assert fault_free.code("a") == fault_free.code("b") == 0
    with Job(nursery, tmp_path / "job", 60) as job:
        job.stop_after(24)
        for node in ("a", "b"):
            job.start(node, "2:2")
        job.wait_stopped(24)
        evict(job, "b", "one worker")
        job.go_on(24)
        assert job.code("b") == EXIT_DRAINED
        left_ns = time.monotonic_ns()
        time.sleep(0.3)
        assert job.nodes["a"] not in nursery.codes, "the other node must wait for the replacement"
        job.start("b", "2:2")
        assert job.code("a") == job.code("b") == 0
        assert_nothing_lost(job, left_ns)
        assert {event["code"] for event in job.seen("worker.exit")} <= {0, EXIT_DRAINED}
        assert [event["source"] for event in job.seen("notice", node="b")] == ["signal"]
        assert [event["source"] for event in job.seen("notice", node="a")] == ["peer"]
        assert job.losses() == fault_free.losses()


def test_eviction_without_replacement_shrinks_and_grows_back(nursery: Nursery, tmp_path: pathlib.Path) -> None:
    with Job(nursery, tmp_path / "job", 3000, "--checkpoint-every", "1000") as job:
        for node in ("a", "b"):
            job.start(node, "1:2")
        job.wait_for(lambda: any(e["world_size"] == 2 for e in job.seen("step")), "two nodes")
        job.wait_for_step(job.seen("step")[-1]["step"] + 10)
        evict(job, "b", "everything")
        assert job.code("b") == EXIT_DRAINED
        left_ns = time.monotonic_ns()
        job.wait_for(lambda: job.seen("step")[-1]["world_size"] == 1, "shrink")
        assert_nothing_lost(job, left_ns)
        job.start("b", "1:2")
        job.wait_for(lambda: job.seen("step", incarnation=2), "growing back")
        assert job.seen("step")[-1]["world_size"] == 2
        regrouped = job.seen("exiting", reason="regrouped", node="a")[0]
        assert_nothing_lost(job, regrouped["mono_ns"])


TRIES = 40


def test_notice_at_any_moment(nursery: Nursery, tmp_path: pathlib.Path) -> None:
    """Many evictions at random moments, from before the first import has settled to the middle of a save.

    Whatever the moment: the node leaves with the right code, no worker dies otherwise, and not one step that was
    done with everybody's agreement is lost.
    """
    chance = random.Random(11)
    with Job(nursery, tmp_path / "job", 100_000, "--checkpoint-every", "3", nproc=2) as job:
        for incarnation in range(1, TRIES + 1):
            job.start("a")
            how = chance.choice(["agent", "everything", "one worker"])
            event = chance.choice(["started", "step", "checkpoint.started", None if how != "one worker" else "started"])
            if event:
                mine = {"incarnation": incarnation, "local_rank": 0}
                job.wait_for(lambda event=event, mine=mine: job.seen(event, **mine), event)  # type: ignore[misc]
            time.sleep(chance.uniform(0, 0.1))
            evict(job, "a", how)
            assert job.code("a") == EXIT_DRAINED, how
        job.seen("step")
        codes = {event["code"] for event in job.seen("worker.exit")}
        assert codes <= {EXIT_DRAINED, 74}, "only by draining, or because a peer that had nothing to save was faster"
        steps = [(e["incarnation"], e["step"]) for e in job.seen("step", rank=0)]
        for incarnation in range(1, TRIES + 1):
            done = [step for of, step in steps if of == incarnation]
            before = [step for of, step in steps if of < incarnation]
            if done:
                assert done[0] == max(before, default=0) + 1, f"incarnation {incarnation} lost or repeated steps"
        assert len({of for of, _ in steps}) >= TRIES // 4, "hardly ever got to train: this showed nothing"


STEPS = 45


@pytest.mark.parametrize(("ranks", "precision"), [(2, "fp16"), (4, "fp32")])
def test_killed_run_repeats_the_undisturbed_one_bit_for_bit(
    nursery: Nursery, tmp_path: pathlib.Path, ranks: int, precision: str
) -> None:
    """Dropout makes random states matter, and fp16 the loss scale."""
    extra = ["--dropout", "0.1", "--precision", precision]
    fault_free = completed(nursery, tmp_path / "fault-free", STEPS, *extra, nproc=ranks)
    with Job(nursery, tmp_path / "killed", STEPS, *extra, nproc=ranks) as job:
        job.stop_after(17, 33)
        job.start("a")
        for step in (17, 33):
            job.wait_stopped(step)
            os.kill(job.workers("a")[ranks - 1], signal.SIGKILL)
            job.go_on(step)
            job.wait_for(lambda: job.seen("restored", rank=0)[-1]["step"] > 0, "restart")
        assert job.code("a") == 0
        restored = {event["step"] for event in job.seen("restored", rank=0)}
        assert len(restored) >= 2, "nothing was restored, so nothing was shown"
        crash = answer(Kind.CRASH, Decision.RESTART_IN_PLACE, ranks - 1)
        assert answers(job.seen("diagnosis", kind="crash")) == [crash] * 2
    assert job.losses() == fault_free.losses() and len(fault_free.losses()) == STEPS
    last = [each.seen("step", rank=0)[-1]["grad_norm"] for each in (job, fault_free)]
    assert last[0] == last[1]


def test_survives_kills_at_any_moment(nursery: Nursery, tmp_path: pathlib.Path) -> None:
    """Kills in start-up, restore, steps and background saves, some of them in quick succession."""
    chance = random.Random(7)
    with Job(nursery, tmp_path / "job", 400, "--checkpoint-every", "5", nproc=2) as job:
        job.start("a")
        job.wait_for_step(10)
        for _ in range(12):
            victim = chance.choice(list(job.workers("a").values()))
            until = time.monotonic() + chance.uniform(0, 0.5)
            with contextlib.suppress(ProcessLookupError):  # it may have died of the previous kill
                os.kill(victim, signal.SIGKILL)
            while time.monotonic() < until:
                time.sleep(0.001)
        assert job.code("a") == 0
        assert sorted(job.losses()) == list(range(1, 401))
        assert all(event["code"] in (0, 74, -9) for event in job.seen("worker.exit"))
