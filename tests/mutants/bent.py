"""Broken trainers, faults and harnesses whose bug shows in the log: a simulated history, bent. No training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from judging import Logs, acted_as, remove, steps, trainers, verdict
from simulator import Job, Outage, simulate
from whole import drilled, effect_ended, exit_takes, saved_late, slower, without_saves

from harness.judge.score import Scorecard, Verdict

JOB = Job(nodes=2, steps=40, every=10)
KILL = [Outage(17, "rank", victim=1)]  # furthest step 17, back to 10


def after_resume(logs: Logs, change: Callable[[dict[str, Any]], object], ranks: tuple[int, ...] = (0, 1)) -> None:
    for rank in ranks:
        for line in steps(trainers(logs, rank=rank, life=-1)[0]):
            change(line)


def skips_a_batch(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(first=line["first"] + 16, digest=f"other {line['step']}"))


def replays_a_batch(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(first=line["first"] - 16, digest=f"other {line['step']}"))


def shuffles_differently(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(digest=f"other {line['step']}"))


def schedule_restarts(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(lr=1e-3 * min(1.0, (line["step"] - 10) / 10)))


def optimizer_lost(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(loss=line["loss"] + 1e-12 * (line["step"] > 11)))


def loss_is_nan(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(loss="nan") if line["step"] > 30 else None)


def gradient_not_averaged(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(loss=line["loss"] * 1.01), ranks=(1,))


def lies_about_restore(logs: Logs) -> None:
    for rank in (0, 1):
        lines = trainers(logs, rank=rank, life=-1)[0]
        next(line for line in lines if line.get("event") == "restored")["step"] = 17


def one_rank_restores_another_step(logs: Logs) -> None:
    lines = trainers(logs, rank=1, life=-1)[0]
    next(line for line in lines if line.get("event") == "restored")["step"] = 5
    for line in steps(lines):
        line["step"] -= 5


def skips_the_recompute(logs: Logs) -> None:
    for rank in (0, 1):
        remove(trainers(logs, rank=rank, life=-1)[0], lambda line: line.get("event") == "step" and line["step"] <= 17)


def goes_on_without_a_rank(logs: Logs) -> None:
    remove(trainers(logs, rank=1, life=-1)[0], lambda line: line.get("event") == "step" and line["step"] > 20)


def goes_on_alone_from_the_start(logs: Logs) -> None:
    remove(trainers(logs, rank=1, life=-1)[0], lambda line: line.get("event") == "step")


def stops_early(logs: Logs) -> None:
    for lines in trainers(logs, life=None):
        remove(lines, lambda line: line.get("event") == "step" and line["step"] > 35)


def no_effect_measured(logs: Logs) -> None:
    remove(logs["harness"], lambda line: line.get("event") == "fault.effect")


def effect_too_small(logs: Logs) -> None:
    for line in logs["harness"]:
        if line.get("event") == "fault.effect":
            line.update(measured=0, ok=False)


def fault_broke(logs: Logs) -> None:
    logs["harness"].append(
        logs["harness"][-1] | {"event": "fault.failed", "fault": "fault1", "error": "no such process"}
    )


def never_injected(logs: Logs) -> None:
    plan = next(line for line in logs["harness"] if line.get("event") == "plan")["plan"]
    plan["faults"] = [*plan["faults"], {"id": "second", "fault": "rank_kill", "targets": []}]


def victim_lives(logs: Logs) -> None:
    victim = trainers(logs, rank=1, life=0)[0]
    last = steps(victim)[-1]
    victim.append(last | {"step": 18, "begin_ns": last["mono_ns"] + 10**9, "mono_ns": last["mono_ns"] + 2 * 10**9})


def harness_killed(logs: Logs) -> None:
    remove(logs["harness"], lambda line: line.get("event") == "run.finished")


def interrupted(logs: Logs) -> None:
    stops_early(logs)
    logs["harness"][-1].update(outcome="interrupted", reason="stopped by the user")


def a_node_leaves_untold(logs: Logs) -> None:
    """One that was only a peer of the killed rank says goodbye like a drained one, and the others go on."""
    end = next(line for line in logs["harness"] if line.get("event") == "process.exit" and line["node"] == "node0")
    end.update(code=75)


def command_failed(logs: Logs) -> None:
    logs["harness"][-1].update(outcome="failed", reason="the command on node0 ended with 1: KeyError")


def stuck(logs: Logs) -> None:
    """After the restart nothing more is heard than the launchers' rendezvous; then the harness gives up."""
    begin = trainers(logs, life=-1)[0][0]["mono_ns"]
    for lines in logs.values():
        remove(lines, lambda line: line["mono_ns"] >= begin and line.get("event") != "run.finished")
    for name in [name for name, lines in logs.items() if not lines]:
        del logs[name]
    end = logs["harness"][-1]
    end.update(outcome="aborted", reason="no step for 120 s", mono_ns=end["mono_ns"] + 10**10)
    logs["harness"].insert(-1, end | {"event": "abort"})


def a_rank_has_no_log(logs: Logs) -> None:
    del logs[next(name for name, lines in logs.items() if lines is trainers(logs, rank=1, life=-1)[0])]


def full_disk(logs: Logs) -> None:
    for rank in (0, 1):
        lines = trainers(logs, rank=rank, life=-1)[0]
        remove(lines, lambda line: line.get("event") == "step" and 20 <= line["step"] <= 25)
        steps(lines, 26)[0]["dropped"] = 6


def starts_from_scratch(logs: Logs) -> None:
    """After the restart the job does all its steps again, though it has a checkpoint of step 10."""
    for rank in (0, 1):
        lines = trainers(logs, rank=rank, life=-1)[0]
        begun = trainers(logs, rank=rank, life=0)[0]
        again = next(line for line in lines if line.get("event") == "restored")
        again.update(step=0, source="scratch")
        first = steps(lines)[0]
        room = (first["mono_ns"] - first["begin_ns"]) // 12
        repeated = []
        for number, line in enumerate(steps(begun, last=10)):
            begin = first["begin_ns"] + number * room
            repeated.append(line | {"begin_ns": begin, "mono_ns": begin + room - 10 + rank})
        first["begin_ns"] += 10 * room
        at = lines.index(first)
        lines[at:at] = repeated


def starts_from_scratch_after_a_hang(logs: Logs) -> None:
    """The same where nothing was killed: the job had to stop over the fault, and its checkpoints are as they were."""
    starts_from_scratch(logs)
    acted_as(logs, "hang", kills=False, stops=True, spoils=False)


def fails_of_its_own_beside_a_hang(logs: Logs) -> None:
    """Rank 1 hangs, over which a healthy job may have to stop; rank 0 falls over a bug of its own meanwhile."""
    acted_as(logs, "hang", kills=False, stops=True, spoils=False)
    said = next(line for line in trainers(logs, rank=0, life=0)[0] if line.get("event") == "exiting")
    said.update(reason="error")


def healed_too_early(logs: Logs) -> None:
    """The plan says ten seconds; the fault was undone after a millisecond, and the job went on stepping."""
    plan = next(line for line in logs["harness"] if line.get("event") == "plan")["plan"]
    plan["faults"] = [plan["faults"][0], {"id": "slow", "fault": "nic_bandwidth", "parameters": {"duration": "10s"}}]
    at = steps(trainers(logs, rank=0, life=0)[0])[4]["mono_ns"]
    template = next(line for line in logs["harness"] if line.get("event") == "fault.injected")
    target = [{"node": "node0", "incarnation": 1, "rank": None}]
    injected = template | {"fault": "slow", "kind": "nic_bandwidth", "targets": target, "kills": False, "mono_ns": at}
    effect = {
        "event": "fault.effect",
        "fault": "slow",
        "kind": "nic_bandwidth",
        "measured": 1,
        "expected": 1,
        "unit": "mbit",
        "ok": True,
    }
    healed = {"event": "fault.healed", "fault": "slow", "mono_ns": at + 10**6, "wall_ns": template["wall_ns"]}
    logs["harness"] += [injected, template | effect | {"mono_ns": at + 1}, healed]
    logs["harness"].sort(key=lambda line: line["mono_ns"])


def wrong_target(logs: Logs) -> None:
    """The plan aimed at rank 0; rank 1 was killed."""
    plan = next(line for line in logs["harness"] if line.get("event") == "plan")["plan"]
    plan["faults"][0]["targets"] = [{"node_index": 0, "rank": 0}]


# Recovered, and not whole again.


def slower_for_good(logs: Logs) -> None:
    slower(logs, 3.0, 11, 60)


def a_little_slower(logs: Logs) -> None:
    slower(logs, 1.2, 11, 60)


def saves_no_more(logs: Logs) -> None:
    without_saves(logs, 20, 30, 40, 50, 60)


def saves_far_more_rarely(logs: Logs) -> None:
    without_saves(logs, 20, 30, 50, 60)


def saves_late_once(logs: Logs) -> None:
    saved_late(logs, 40, 46)


def hangs_in_the_exit(logs: Logs) -> None:
    exit_takes(logs, 600)


def exits_a_little_later(logs: Logs) -> None:
    exit_takes(logs, 15)


def leaves_nothing_to_load(logs: Logs) -> None:
    drilled(logs, outcome="failed", step=60, reason="the command ended with 1")


def last_save_fails(logs: Logs) -> None:
    for line in (line for lines in trainers(logs) for line in lines):
        if line.get("event") == "checkpoint.committed" and line["step"] == 60:
            line.update(event="checkpoint.failed", error="no space left")


def replacement_never_used(logs: Logs) -> None:
    """The node that was lost for good comes back at once, as far as the harness can see, and nobody uses it."""
    lost = next(line for line in logs["harness"] if line.get("event") == "node.released")
    back = lost | {"event": "node.allocated", "incarnation": 2, "gpus": 1}
    logs["harness"].insert(logs["harness"].index(lost) + 1, back)


def a_link_stays_slow(logs: Logs) -> None:
    """The fault was healed, and what was measured then says that it was not."""
    acted_as(logs, "partition", kills=False, stops=True, spoils=False)
    effect_ended(logs, ok=False)


def a_link_is_healed(logs: Logs) -> None:
    a_link_stays_slow(logs)
    for line in logs["harness"]:
        if line.get("event") == "fault.ended":
            line.update(ok=True)


@dataclass(frozen=True)
class Bent:
    """A healthy history, what is bent in it, and what the harness must say."""

    bend: Callable[[Logs], object]
    verdict: Verdict
    reason: str  # is contained in one of the reasons
    outages: tuple[Outage, ...] = (Outage(17, "rank", victim=1),)
    job: Job = JOB

    @property
    def name(self) -> str:
        return self.bend.__name__

    def judge(self) -> Scorecard:
        return verdict(simulate(self.job, self.outages, seed=5), self.bend)


def dies_twice_by_itself(logs: Logs) -> None:
    """Besides the injected kill, workers die two more times, and nothing did that."""


def shrinks_too_far(logs: Logs) -> None:
    """Goes on with one node where the job needs two."""


def is_absent_in_the_middle(logs: Logs) -> None:
    remove(trainers(logs, rank=1, life=-1)[0], lambda line: line.get("event") == "step" and 20 <= line["step"] <= 29)


def comes_late(logs: Logs) -> None:
    remove(trainers(logs, rank=1, life=-1)[0], lambda line: line.get("event") == "step" and line["step"] < 20)


def claims_steps(logs: Logs) -> None:
    for rank in (0, 1):
        lines = trainers(logs, rank=rank, life=-1)[0]
        remove(lines, lambda line: line.get("event") == "step" and 20 <= line["step"] <= 29)


def goes_beyond_the_plan(logs: Logs) -> None:
    for rank in (0, 1):
        lines = trainers(logs, rank=rank, life=-1)[0]
        last = steps(lines)[-1]
        lines.insert(lines.index(last) + 1, last | {"step": 41, "mono_ns": last["mono_ns"] + 1})


def restores_what_was_never_saved(logs: Logs) -> None:
    lies_about_restore(logs)
    skips_the_recompute(logs)


def begins_anew_without_a_word(logs: Logs) -> None:
    starts_from_scratch(logs)
    for lines in trainers(logs):
        remove(lines, lambda line: line.get("event") == "restored")


def gives_a_reason_once(logs: Logs) -> None:
    """The first of two restarts passes a checkpoint over and says so; the second one takes an older one and does not."""
    for rank in (0, 1):
        first, second = trainers(logs, rank=rank, life=1)[0], trainers(logs, rank=rank, life=2)[0]
        told = next(line for line in first if line.get("event") == "restored")
        told["fallback"] = [{"path": "checkpoints/step-99", "reason": "checksum"}]
        newest = {"event": "checkpoint.committed", "step": 25, "path": "checkpoints/step-25", "duration_ns": 1}
        last = steps(first)[-1]
        first.insert(first.index(last) + 1, newest | {key: last[key] for key in ("wall_ns", "mono_ns")})
        assert any(line.get("event") == "restored" and line["step"] == 20 for line in second)


def lives_in_a_time_namespace(logs: Logs) -> None:
    """After the restart the workers' monotonic clock is behind that of their host: the outage looks shorter."""
    for rank in (0, 1):
        for line in trainers(logs, rank=rank, life=-1)[0]:
            for key in ("mono_ns", "begin_ns"):
                if key in line:
                    line[key] -= 10**9


def tells_no_time(logs: Logs) -> None:
    for line in steps(trainers(logs, rank=1, life=-1)[0]):
        line["mono_ns"] = 0


def works_on_a_gpu_that_it_never_had(logs: Logs) -> None:
    next(line for line in logs["harness"] if line.get("event") == "node.allocated")["gpus"] = 0


def works_on_a_node_that_was_given_back(logs: Logs) -> None:
    end = next(line for line in logs["harness"] if line.get("event") == "node.released")
    end["mono_ns"] -= 10**9
    logs["harness"].sort(key=lambda line: line["mono_ns"])


def wrong_node(logs: Logs) -> None:
    plan = next(line for line in logs["harness"] if line.get("event") == "plan")["plan"]
    plan["faults"][0]["targets"] = [{"node_index": 0, "rank": None}]


def victim_drains(logs: Logs) -> None:
    for name, lines in logs.items():
        for line in lines if name.startswith("agent") else ():
            if line.get("event") == "worker.exit" and line["code"] == -9:
                line["code"] = 75


def notice_without_an_end(logs: Logs) -> None:
    """The node that was told to go stays, and nobody takes it."""
    plan = next(line for line in logs["harness"] if line.get("event") == "plan")["plan"]
    plan["faults"][0]["parameters"] = {"notice": "5s"}
    injected = next(line for line in logs["harness"] if line.get("event") == "fault.injected")
    injected["targets"] = [{"node": "node1", "incarnation": 1, "rank": None}]


def peer_segfaults_behind_a_shell(logs: Logs) -> None:
    for name, lines in logs.items():
        for line in lines if name.startswith("agent") else ():
            if line.get("event") == "worker.exit" and line["code"] == 1:
                line["code"] = 139


def launcher_tells_nothing(logs: Logs) -> None:
    del logs[next(name for name in logs if name.startswith("agent-node0"))]


def one_rank_replays_a_batch(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(first=line["first"] - 16), ranks=(1,))


BROKEN = [
    Bent(is_absent_in_the_middle, Verdict.FAIL, "rank 1 (of 2) did not do steps 20 to 29, but other ranks did"),
    Bent(comes_late, Verdict.FAIL, "rank 1 (of 2) did not do steps 11 to 19, but other ranks did"),
    Bent(claims_steps, Verdict.FAIL, "never done in the surviving history, though later steps were"),
    Bent(goes_beyond_the_plan, Verdict.FAIL, "step 41 was done, but only 40 steps were planned"),
    Bent(
        restores_what_was_never_saved,
        Verdict.INCONCLUSIVE,
        "restored step 17, but no checkpoint of that step was ever started",
    ),
    Bent(begins_anew_without_a_word, Verdict.FAIL, "began with step 1 and did not report what it restored"),
    Bent(
        gives_a_reason_once,
        Verdict.FAIL,
        "resumed from step 20 and gave no reason, though a checkpoint of step 25",
        outages=(*KILL, Outage(16, "rank", victim=0)),
    ),
    Bent(lives_in_a_time_namespace, Verdict.INCONCLUSIVE, "claims the harness's clock, but is 1.00 s off"),
    Bent(tells_no_time, Verdict.INCONCLUSIVE, "steps of rank 1 on node1 ended before their process began"),
    Bent(works_on_a_gpu_that_it_never_had, Verdict.INCONCLUSIVE, "did steps on the unallocated GPU 0 of node0"),
    Bent(works_on_a_node_that_was_given_back, Verdict.INCONCLUSIVE, "did steps on node0 after the node was given back"),
    Bent(
        wrong_node,
        Verdict.INVALID,
        "fault fault1 struck node1, not node0",
        outages=(Outage(17, "node", victim=1),),
    ),
    Bent(victim_drains, Verdict.INVALID, "fault fault1 should have killed rank 1, but the rank exited by itself"),
    Bent(notice_without_an_end, Verdict.INVALID, "fault fault1 gave node1 a notice, but never took the node"),
    Bent(
        peer_segfaults_behind_a_shell,
        Verdict.INCONCLUSIVE,
        "unexplained death: rank 0 on node0 ended with exit code 139",
    ),
    Bent(launcher_tells_nothing, Verdict.INCONCLUSIVE, "the launcher on node0 left no log"),
    Bent(one_rank_replays_a_batch, Verdict.FAIL, "at step 11 ranks 0 and 1 disagree on the sample position"),
    Bent(skips_a_batch, Verdict.FAIL, "16 samples were skipped, first at step 11"),
    Bent(replays_a_batch, Verdict.FAIL, "16 samples were repeated, first at step 11"),
    Bent(shuffles_differently, Verdict.FAIL, "consumed other samples than the fault-free run, first at step 11"),
    Bent(schedule_restarts, Verdict.FAIL, "learning rate differs from the fault-free run: at step 11"),
    Bent(optimizer_lost, Verdict.FAIL, "at step 12 loss 4.9336742054732712 instead of 4.9336742054722711"),
    Bent(loss_is_nan, Verdict.FAIL, "at step 31 loss nan instead of"),
    Bent(gradient_not_averaged, Verdict.FAIL, "at step 11 ranks 0 and 1 disagree on the loss"),
    Bent(lies_about_restore, Verdict.FAIL, "said it restored step 17, but went on with step 11"),
    Bent(one_rank_restores_another_step, Verdict.FAIL, "ranks of one world restored different steps: 5, 10"),
    Bent(skips_the_recompute, Verdict.FAIL, "said it restored step 10, but went on with step 18"),
    Bent(
        goes_on_without_a_rank,
        Verdict.FAIL,
        "rank 0 (of 2) went on to step 40 alone; the others stopped at step 20",
    ),
    Bent(
        goes_on_alone_from_the_start,
        Verdict.FAIL,
        "rank 0 (of 2) went on to step 40 alone; the others stopped at step 10",
    ),
    Bent(stops_early, Verdict.FAIL, "ended without an error, but only reached step 35 of 40"),
    Bent(command_failed, Verdict.FAIL, "KeyError"),
    Bent(a_node_leaves_untold, Verdict.FAIL, "node0 left the job with exit code 75"),
    Bent(stuck, Verdict.FAIL, "at the end in rendezvous"),
    Bent(no_effect_measured, Verdict.INVALID, "fault1 was injected, but no effect was measured"),
    Bent(effect_too_small, Verdict.INVALID, "fault1 did not act as planned: measured 0 deaths, expected 1"),
    Bent(fault_broke, Verdict.INVALID, "fault1 failed: no such process"),
    Bent(never_injected, Verdict.INVALID, "fault second never struck"),
    Bent(victim_lives, Verdict.INVALID, "killed rank 1, but the rank did steps afterwards"),
    Bent(harness_killed, Verdict.INCONCLUSIVE, "the harness's log has no end"),
    Bent(interrupted, Verdict.INCONCLUSIVE, "the run was interrupted at step 35 of 40: stopped by the user"),
    Bent(
        full_disk,
        Verdict.INCONCLUSIVE,
        "(6): never done in the surviving history, though later steps were; 12 events were lost to a full disk",
    ),
    Bent(starts_from_scratch, Verdict.FAIL, "resumed from step 0 and gave no reason, though a checkpoint of step 10"),
    Bent(
        starts_from_scratch_after_a_hang,
        Verdict.FAIL,
        "resumed from step 0 and gave no reason, though a checkpoint of step 10",
    ),
    Bent(
        fails_of_its_own_beside_a_hang,
        Verdict.INCONCLUSIVE,
        "unexplained death: rank 0 on node0 ended with exit code 1, after it reported an error,",
    ),
    Bent(healed_too_early, Verdict.INVALID, "slow was undone after 1 ms; its planned duration is 10s"),
    Bent(wrong_target, Verdict.INVALID, "fault1 struck rank 1, not rank 0"),
    Bent(
        dies_twice_by_itself,
        Verdict.INCONCLUSIVE,
        "unexplained deaths: ranks 0 and 1 died 4 times",
        outages=(*KILL, Outage(9, "crash"), Outage(3, "crash")),
    ),
    Bent(
        shrinks_too_far,
        Verdict.FAIL,
        "went on with 1 rank; it needs at least 2",
        outages=(Outage(15, "shrink", victim=1, regrow_after=12),),
        job=Job(nodes=2, steps=40, every=10, min_nodes=2),
    ),
]

LONG = Job(nodes=2, steps=60, every=10)
ELASTIC = Job(nodes=2, steps=160, every=10)
HALFWAY = [
    Bent(slower_for_good, Verdict.FAIL, "pace.max_slowdown: 39 steps after the recovery took", job=LONG),
    Bent(saves_no_more, Verdict.FAIL, "5 of 5 checkpoints", job=LONG),
    Bent(saves_far_more_rarely, Verdict.FAIL, "4 of 5 checkpoints", job=LONG),
    Bent(hangs_in_the_exit, Verdict.FAIL, "to end after its last step", job=LONG),
    Bent(leaves_nothing_to_load, Verdict.FAIL, "the restore drill ended before it had restored anything", job=LONG),
    Bent(last_save_fails, Verdict.FAIL, "of step 60, failed", job=LONG),
    Bent(
        replacement_never_used,
        Verdict.FAIL,
        "the job left GPUs idle in its last",
        outages=(Outage(25, "shrink", victim=1),),
        job=ELASTIC,
    ),
    Bent(a_link_stays_slow, Verdict.INVALID, "fault1 was healed, but its effect did not end", job=LONG),
]
NEIGHBOURS = [
    Bent(healthy, Verdict.PASS, "", job=LONG)
    for healthy in (a_little_slower, saves_late_once, exits_a_little_later, a_link_is_healed)
]
BROKEN += HALFWAY
