"""Recovery among peers: nothing is lost, every loss is that of an undisturbed run, and without a survivor all restart."""

import os
import pathlib
import re
import signal
import time

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from job import Job, Nursery, completed

from harness.events import Emitter
from reference_trainer import peers, train
from reference_trainer.agent import REPLACED, ForkingAgent
from reference_trainer.options import Options
from reference_trainer.peers import NO_STATE, GaveUp, Peers, Standing
from reference_trainer.preemption import EXIT_DRAINED

STEPS = 40
PEER = ("--recovery", "peer", "--peer-s", "60", "--dropout", "0.1")


def nobody_stops() -> bool:
    return False


@pytest.fixture(scope="module")
def undisturbed(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return completed(nursery, tmp_path_factory.mktemp("undisturbed"), STEPS, *PEER, nproc=3)


@pytest.mark.parametrize(("step", "victims"), [(14, [0]), (10, [0, 2]), (STEPS - 1, [1])])
def test_survivors_give_their_state_and_no_step_is_lost(
    nursery: Nursery, tmp_path: pathlib.Path, undisturbed: Job, step: int, victims: list[int]
) -> None:
    """Step 10 is saved: the victim of that one dies before the save. Random generators go with the state, too."""
    with Job(nursery, tmp_path, STEPS, *PEER, nproc=3) as job:
        job.stop_after(step)
        job.start("a")
        job.wait_stopped(step)
        before = job.workers("a")
        for victim in victims:
            os.kill(before[victim], signal.SIGKILL)
        job.go_on(step)
        assert job.code("a") == 0, job.output()
        assert job.losses() == undisturbed.losses(), "bit for bit"
        told = [(each["rank"], each["step"], each["source"]) for each in job.seen("restored") if each["step"]]
        assert sorted(told) == [(victim, step, "peer") for victim in victims]
        for rank in range(3):
            done = [each["step"] for each in job.seen("step", rank=rank)]
            assert done == list(range(1, STEPS + 1)), "no step is done twice, and none is left out"
        survivors = {rank: pid for rank, pid in before.items() if rank not in victims}
        assert survivors.items() <= job.workers("a").items(), "they are the same processes"
        # The save of step 10 is written in the background, and may die with rank 0.
        assert [each["step"] for each in job.seen("checkpoint.committed")][-3:] == [20, 30, 40]


def test_without_a_survivor_the_newest_checkpoint_is_restored(
    nursery: Nursery, tmp_path: pathlib.Path, undisturbed: Job
) -> None:
    with Job(nursery, tmp_path, STEPS, *PEER, nproc=3) as job:
        job.stop_after(15)
        job.start("a")
        job.wait_stopped(15)
        job.wait_for(lambda: job.seen("checkpoint.committed", step=10), "the save of step 10")
        for pid in job.workers("a").values():
            os.kill(pid, signal.SIGKILL)
        job.go_on(15)
        assert job.code("a") == 0, job.output()
        assert job.losses() == undisturbed.losses()
        assert {each["source"] for each in job.seen("restored", step=10)} == {str(job.checkpoints / "step-00000010")}


def test_nobody_in_a_dead_ranks_place_means_that_all_start_again(
    nursery: Nursery, tmp_path: pathlib.Path, undisturbed: Job
) -> None:
    """As where a node is lost, with its launcher: the other ranks end by themselves, with a word."""
    with Job(nursery, tmp_path, STEPS, *PEER, "--peer-s", "2") as job:
        job.stop_after(15)
        for name in "ab":
            job.start(name, nnodes="2:2")
        job.wait_stopped(15)
        job.kill("b")
        job.go_on(15)
        job.wait_for(lambda: job.seen("worker.exit", node="a", code=train.EXIT_PEER_LOST), "the end of the survivor")
        job.start("b", nnodes="2:2")
        assert [job.code(name) for name in "ab"] == [0, 0], job.output()
        assert re.search(r"no recovery among peers: .*; all start again", (job.folder / "a.out").read_text())
        assert {each["step"] for each in job.seen("restored")} == {0, 10}


def test_a_rank_that_is_a_step_behind_commits_what_the_others_have_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = train.Worker(Options(), Emitter(None), 0, 0, 3)
    worker.committed, rows = Standing(4), [[0.5]]
    done = list[tuple[int, list[list[float]]]]()
    monkeypatch.setattr(worker, "commit", lambda step, rows: done.append((step.step, rows)))
    others = [Standing(4), Standing(5, rows), Standing()]
    with pytest.raises(GaveUp, match="another rank has committed step 5; this one is at 4"):
        worker.catch_up(others)
    worker.under_way = train.UnderWay(5, 0, 0, 0, loaded=None)  # type: ignore[arg-type]
    worker.catch_up(others)
    worker.catch_up([Standing(4), Standing(4)])
    worker.committed = Standing()
    worker.catch_up(others)
    assert done == [(5, rows)], "only once, and a process without a state takes the whole of it"


@given(st.lists(st.integers(NO_STATE, 3), min_size=1))
def test_the_first_of_the_furthest_gives_its_state(steps: list[int]) -> None:
    best, rank = peers.furthest([Standing(step) for step in steps])
    assert best.step == max(steps) and rank == steps.index(max(steps))


def test_a_meeting_waits_for_all_and_names_the_absent() -> None:
    store = dist.HashStore()
    here, there = (Peers(store, rank, 2) for rank in range(2))
    assert here.job_starts()
    with pytest.raises(GaveUp, match="rank 1 did not come"):
        here.meet(Standing(3), 0.01 + time.monotonic(), lambda _: None, nobody_stops)
    soon = 10 + time.monotonic()
    with pytest.raises(GaveUp, match="the launcher stops this rank"):
        there.meet(Standing(), soon, lambda _: None, lambda: True)
    peers.begin_generation(store)
    assert not there.job_starts(), "a rank has died since"
    store.set("generation 1/standing 1", '{"step": 3, "rows": [[NaN, 0.1]]}')
    met = here.meet(Standing(3), soon, lambda _: None, nobody_stops)
    assert (met[0], met[1].step, repr(met[1].rows), here.generation) == (Standing(3), 3, "[[nan, 0.1]]", 1)
    with pytest.raises(GaveUp, match="rank 1 did not come"):
        here.meet(Standing(3), 1.2 + time.monotonic(), lambda _: None, nobody_stops)
    assert store.get("generation") == b"2", "without a word of a death they meet again all the same"


def test_the_same_step_is_not_tried_for_ever() -> None:
    rank = Peers(dist.HashStore(), 0, 2)
    for step in (4, 4, 4, 5, 5, 5):
        rank.count(step)
    with pytest.raises(GaveUp, match="3 recoveries after step 5 did not get any further"):
        rank.count(5)


def test_only_a_death_is_made_good_by_peers() -> None:
    ended_for_all = {train.EXIT_PEER_LOST, train.EXIT_STOPPED, train.EXIT_SET_BACK, EXIT_DRAINED}
    assert not REPLACED & ended_for_all and -signal.SIGKILL in REPLACED and train.EXIT_ERROR in REPLACED
    agent = ForkingAgent.__new__(ForkingAgent)
    agent._by_peers, agent._replaced = True, []
    assert not agent._replace(None, {0: -signal.SIGKILL, 1: train.EXIT_PEER_LOST})  # type: ignore[arg-type]
