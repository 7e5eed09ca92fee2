"""Broken trainers, faults and harnesses whose bug shows in the log: a simulated history, bent. No training.

A function below bends the log of a healthy job; its decorator says what the harness must say then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from judging import acted_as, struck, verdict
from simulator import Job, Line, Logs, Outage, change, clocks, find, remove, simulate, steps
from whole import drilled, effect_ended, exit_takes, saved_late, slower, without_saves

from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict

JOB = Job(nodes=2, steps=40, every=10)
LONG = Job(nodes=2, steps=60, every=10)
KILL = [Outage(17, "rank", victim=1)]  # furthest step 17, back to 10
Mutant = Callable[[Logs], None]


@dataclass(frozen=True)
class Bent:
    """A healthy history, what is bent in it, and what the harness must say."""

    name: str
    bend: Mutant
    verdict: Verdict
    reason: str  # is contained in one of the reasons
    outages: tuple[Outage, ...]
    job: Job

    def judge(self) -> Scorecard:
        return verdict(simulate(self.job, self.outages, seed=5), self.bend)


BROKEN: list[Bent] = []
NEIGHBOURS: list[Bent] = []


def _registers(verdict: Verdict, reason: str, outages: list[Outage], job: Job) -> Callable[..., Mutant]:
    def register(bend: Mutant, name: str = "") -> Mutant:
        known = NEIGHBOURS if verdict is Verdict.PASS else BROKEN
        known.append(Bent(name or bend.__name__, bend, verdict, reason, tuple(outages), job))
        return bend

    return register


def fails(reason: str, outages: list[Outage] = KILL, job: Job = JOB) -> Callable[..., Mutant]:
    return _registers(Verdict.FAIL, reason, outages, job)


def unclear(reason: str, outages: list[Outage] = KILL) -> Callable[..., Mutant]:
    return _registers(Verdict.INCONCLUSIVE, reason, outages, JOB)


def invalid(reason: str, outages: list[Outage] = KILL, job: Job = JOB) -> Callable[..., Mutant]:
    return _registers(Verdict.INVALID, reason, outages, job)


passes = _registers(Verdict.PASS, "", KILL, LONG)


def after_resume(logs: Logs, change: Callable[[Line], object], ranks: tuple[int, ...] = (0, 1)) -> None:
    for line in (line for rank in ranks for line in logs.steps(rank=rank, life=-1)):
        change(line)


@fails("step 41 was done, but only 40 steps were planned")
def goes_beyond_the_plan(logs: Logs) -> None:
    for lines in logs.last_lives():
        last = steps(lines)[-1]
        lines.insert(lines.index(last) + 1, last | {"step": 41, "mono_ns": last["mono_ns"] + 1})


@unclear("restored step 17, but no checkpoint of that step was ever started")
def restores_what_was_never_saved(logs: Logs) -> None:
    lies_about_restore(logs)
    skips_the_recompute(logs)


@fails("began with step 1 and did not report what it restored")
def begins_anew_without_a_word(logs: Logs) -> None:
    starts_from_scratch(logs)
    logs.lose("restored")


@fails(
    "resumed from step 20 and gave no reason, though a checkpoint of step 25",
    outages=[*KILL, Outage(16, "rank", victim=0)],
)
def gives_a_reason_once(logs: Logs) -> None:
    """The first of two restarts passes a checkpoint over and says so; the second one takes an older one and does not."""
    for rank in (0, 1):
        first, second = logs.trainers(rank=rank)[1:]
        find(first, "restored")["fallback"] = [{"path": "checkpoints/step-99", "reason": "checksum"}]
        newest = {"event": "checkpoint.committed", "step": 25, "path": "checkpoints/step-25", "duration_ns": 1}
        last = steps(first)[-1]
        first.insert(first.index(last) + 1, newest | clocks(last))
        assert find(second, "restored")["step"] == 20


@unclear("claims the harness's clock, but is 1.00 s off")
def lives_in_a_time_namespace(logs: Logs) -> None:
    """After the restart the workers' monotonic clock is behind that of their host: the outage looks shorter."""
    for line in (line for lines in logs.last_lives() for line in lines):
        line |= {key: line[key] - 10**9 for key in ("mono_ns", "begin_ns") if key in line}


@unclear("steps of rank 1 on node1 ended before their process began")
def tells_no_time(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(mono_ns=0), ranks=(1,))


@unclear("did steps on node0 after the node was given back")
def works_on_a_node_that_was_given_back(logs: Logs) -> None:
    logs.told("node.released")["mono_ns"] -= 10**9
    logs.put()


@invalid("fault fault1 struck node1, not node0", outages=[Outage(17, "node", victim=1)])
def wrong_node(logs: Logs) -> None:
    logs.plan["faults"][0]["targets"] = [{"node_index": 0, "rank": None}]


@invalid("fault fault1 gave node1 a notice, but never took the node")
def notice_without_an_end(logs: Logs) -> None:
    """The node that was told to go stays, and nobody takes it."""
    logs.plan["faults"][0]["parameters"] = {"notice": "5s"}
    logs.told("fault.injected")["targets"] = [{"node": "node1", "incarnation": 1, "rank": None}]


@fails("16 samples were skipped, first at step 11")
def skips_a_batch(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(first=line["first"] + 16, digest=f"other {line['step']}"))


@fails("16 samples were repeated, first at step 11")
def replays_a_batch(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(first=line["first"] - 16, digest=f"other {line['step']}"))


@fails("learning rate differs from the fault-free run: at step 11")
def schedule_restarts(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(lr=1e-3 * min(1.0, (line["step"] - 10) / 10)))


@fails("at step 12 loss 4.9336742054732712 instead of 4.9336742054722711")
def optimizer_lost(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(loss=line["loss"] + 1e-12 * (line["step"] > 11)))


@fails("said it restored step 17, but went on with step 11")
def lies_about_restore(logs: Logs) -> None:
    for lines in logs.last_lives():
        find(lines, "restored")["step"] = 17


@fails("ranks of one world restored different steps: 5, 10")
def one_rank_restores_another_step(logs: Logs) -> None:
    lines = logs.trainers(rank=1, life=-1)[0]
    find(lines, "restored")["step"] = 5
    for line in steps(lines):
        line["step"] -= 5


@fails("said it restored step 10, but went on with step 18")
def skips_the_recompute(logs: Logs) -> None:
    for rank in (0, 1):
        logs.lose("step", step=range(18), rank=rank, life=-1)


@fails("ended without an error, but only reached step 35 of 40")
def stops_early(logs: Logs) -> None:
    logs.lose("step", step=range(36, 41))


@fails("node0 left the job with exit code 75")
def a_node_leaves_untold(logs: Logs) -> None:
    """One that was only a peer of the killed rank says goodbye like a drained one, and the others go on."""
    next(line for line in logs.harness if line.get("event") == "process.exit" and line["node"] == "node0")["code"] = 75


@fails("at the end in rendezvous")
def stuck(logs: Logs) -> None:
    """After the restart nothing more is heard than the launchers' rendezvous; then the harness gives up."""
    begin = logs.trainers(life=-1)[0][0]["mono_ns"]
    for lines in logs.values():
        remove(lines, lambda line: line["mono_ns"] >= begin and line.get("event") != "run.finished")
    for name in [name for name, lines in logs.items() if not lines]:
        del logs[name]
    end = logs.harness[-1]
    end.update(outcome="aborted", reason="no step for 120 s", mono_ns=end["mono_ns"] + 10**10)
    logs.harness.insert(-1, end | {"event": "abort"})


@invalid("fault1 failed: no such process")
def fault_broke(logs: Logs) -> None:
    logs.harness.append(logs.harness[-1] | {"event": "fault.failed", "fault": "fault1", "error": "no such process"})


@invalid("killed rank 1, but the rank did steps afterwards")
def victim_lives(logs: Logs) -> None:
    victim = logs.trainers(rank=1, life=0)[0]
    last = steps(victim)[-1]
    victim.append(last | {"step": 18, "begin_ns": last["mono_ns"] + 10**9, "mono_ns": last["mono_ns"] + 2 * 10**9})


@unclear("the run was interrupted at step 35 of 40: stopped by the user")
def interrupted(logs: Logs) -> None:
    stops_early(logs)
    logs.harness[-1].update(outcome="interrupted", reason="stopped by the user")


@unclear("(6): never done in the surviving history, though later steps were; 12 events were lost to a full disk")
def full_disk(logs: Logs) -> None:
    logs.lose("step", step=range(20, 26))
    for line in logs.steps(26, 26):
        line["dropped"] = 6


@fails("resumed from step 0 and gave no reason, though a checkpoint of step 10")
def starts_from_scratch(logs: Logs) -> None:
    """After the restart the job does all its steps again, though it has a checkpoint of step 10."""
    for rank, lines in enumerate(logs.last_lives()):
        find(lines, "restored").update(step=0, source="scratch")
        first = steps(lines)[0]
        room = (first["mono_ns"] - first["begin_ns"]) // 12
        repeated = []
        for number, line in enumerate(logs.steps(last=10, rank=rank, life=0)):
            begin = first["begin_ns"] + number * room
            repeated.append(line | {"begin_ns": begin, "mono_ns": begin + room - 10 + rank})
        first["begin_ns"] += 10 * room
        at = lines.index(first)
        lines[at:at] = repeated


def an_outage_of_the_store(logs: Logs) -> None:
    """The store answers with errors for a while, after the save of step 10 and before the kill."""
    first, last = (steps(logs.trainers(rank=0, life=0)[0], step, step)[0] for step in (12, 14))
    struck(logs, "eio", first["mono_ns"], last["mono_ns"], kind="storage_error", may=["spoil", "stop"])


@fails("resumed from step 0 and gave no reason, though a checkpoint of step 10")
def starts_from_scratch_after_an_outage(logs: Logs) -> None:
    """The store was out for a while, and what lay there had been saved before."""
    an_outage_of_the_store(logs)
    starts_from_scratch(logs)


@fails("resumed from step 0 and gave no reason, though a checkpoint of step 10")
def starts_from_scratch_after_a_hang(logs: Logs) -> None:
    """The same where nothing was killed: the job had to stop over the fault, and its checkpoints are as they were."""
    starts_from_scratch(logs)
    acted_as(logs, "hang", kills=False, stops=True, spoils=False)


@unclear("unexplained death: rank 0 on node0 ended with exit code 1, after it reported an error,")
def fails_of_its_own_beside_a_hang(logs: Logs) -> None:
    """Rank 1 hangs, over which a healthy job may have to stop; rank 0 falls over a bug of its own meanwhile."""
    acted_as(logs, "hang", kills=False, stops=True, spoils=False)
    find(logs.trainers(rank=0, life=0)[0], "exiting").update(reason="error")


@invalid("slow was undone after 1 ms; its planned duration is 10s")
def healed_too_early(logs: Logs) -> None:
    """The plan says ten seconds; the fault was undone after a millisecond, and the job went on stepping."""
    logs.plan["faults"] += [{"id": "slow", "fault": "nic_bandwidth", "parameters": {"duration": "10s"}}]
    at = steps(logs.trainers(rank=0, life=0)[0])[4]["mono_ns"]
    target = [{"node": "node0", "incarnation": 1, "rank": None}]
    slow: dict[str, Any] = {"fault": "slow", "kind": "nic_bandwidth", "targets": target, "kills": False}
    injected = logs.told("fault.injected") | slow | {"mono_ns": at}
    effect = {"event": "fault.effect", "measured": 1, "expected": 1, "unit": "mbit", "ok": True, "mono_ns": at + 1}
    healed = {"event": "fault.healed", "fault": "slow", "mono_ns": at + 10**6, "wall_ns": injected["wall_ns"]}
    logs.put(injected, injected | effect, healed)


@fails(
    "went on with 1 rank; it needs at least 2",
    outages=[Outage(15, "shrink", victim=1, regrow_after=12)],
    job=Job(nodes=2, steps=40, every=10, min_nodes=2),
)
def shrinks_too_far(logs: Logs) -> None:
    """Goes on with one node where the job needs two."""


def a_rank_has_no_log(logs: Logs) -> None:
    del logs[next(name for name, lines in logs.items() if lines is logs.trainers(rank=1, life=-1)[0])]


# Recovered, and not whole again.


@fails("the restore drill ended before it had restored anything", job=LONG)
def leaves_nothing_to_load(logs: Logs) -> None:
    drilled(logs, outcome="failed", step=60, reason="the command ended with 1")


@fails("of step 60, failed", job=LONG)
def last_save_fails(logs: Logs) -> None:
    [*logs.all("checkpoint.committed")][-1].update(event="checkpoint.failed", error="no space left")


@fails(
    "the job left GPUs idle in its last",
    outages=[Outage(25, "shrink", victim=1)],
    job=Job(nodes=2, steps=160, every=10),
)
def replacement_never_used(logs: Logs) -> None:
    """The node that was lost for good comes back at once, as far as the harness can see, and nobody uses it."""
    lost = logs.told("node.released")
    logs.put(lost | {"event": "node.allocated", "incarnation": 2, "gpus": 1})


@invalid("fault1 was healed, but its effect did not end", job=LONG)
def a_link_stays_slow(logs: Logs) -> None:
    """The fault was healed, and what was measured then says that it was not."""
    acted_as(logs, "partition", kills=False, stops=True, spoils=False)
    effect_ended(logs, ok=False)


# Healthy neighbours


@passes
def a_link_is_healed(logs: Logs) -> None:
    acted_as(logs, "partition", kills=False, stops=True, spoils=False)
    effect_ended(logs, ok=True)


# One change each.


def each_step(change: Callable[[Line], object], *ranks: int) -> Mutant:
    """After the restart, on both ranks unless some are named."""
    return lambda logs: after_resume(logs, change, ranks or (0, 1))


def without_steps(*numbers: int, rank: int | None = None) -> Mutant:
    """In all lives, or in the last one of this rank."""
    return lambda logs: logs.lose("step", step=numbers, rank=rank, life=None if rank is None else -1)


def told(event: str, **fields: Any) -> Mutant:
    return lambda logs: logs.told(event).update(fields)


def untold(event: str) -> Mutant:
    return lambda logs: logs.harness.remove(logs.told(event))


def exits_with(code: int, instead: int) -> Mutant:
    """What launchers tell of workers that ended with this code."""
    agents = lambda logs: (line for name in logs if name.startswith("agent") for line in logs[name])  # noqa: E731
    return lambda logs: change((line for line in agents(logs) if line.get("code") == code), code=instead)


def unsaved(*saves: int) -> Mutant:
    return lambda logs: without_saves(logs, *saves)


def changed(bend: Mutant, updates_only: bool = True) -> Mutant:
    """The fault starts the job with other settings of the optimizer, or with other code."""

    def both(logs: Logs) -> None:
        acted_as(logs, "made_up", may=["kill", "move"], changes=True, updates_only=updates_only)
        bend(logs)

    return both


def no_launcher(logs: Logs) -> None:
    del logs[next(name for name in logs if name.startswith("agent-node0"))]


loss_is_nan = each_step(lambda line: line.update(loss="nan") if line["step"] > 30 else None)
shuffled = each_step(lambda line: line.update(digest=f"other {line['step']}"))
twice_more = unclear("ranks 0 and 1 died 4 times", outages=[*KILL, Outage(9, "crash"), Outage(3, "crash")])
never = {"id": "second", "fault": "rank_kill", "targets": []}
ALONE, OTHERS_DID = "(of 2) went on to step 40 alone; the others stopped at step", "but other ranks did"
FAILED = {"outcome": "failed", "reason": "the command on node0 ended with 1: KeyError"}
for name, register, bend in (
    (
        "is_absent_in_the_middle",
        fails(f"did not do steps 20 to 29, {OTHERS_DID}"),
        without_steps(*range(20, 30), rank=1),
    ),
    ("comes_late", fails(f"did not do steps 11 to 19, {OTHERS_DID}"), without_steps(*range(20), rank=1)),
    ("claims_steps", fails("never done in the surviving history"), without_steps(*range(20, 30))),
    ("goes_on_without_a_rank", fails(f"rank 0 {ALONE} 20"), without_steps(*range(21, 41), rank=1)),
    ("goes_on_alone_from_the_start", fails(f"rank 0 {ALONE} 10"), without_steps(*range(41), rank=1)),
    ("only_one_tells_steps", fails("alone; the others told no step"), lambda logs: logs.lose("step", rank=1)),
    ("works_on_a_gpu_that_it_never_had", unclear("on the unallocated GPU 0 of node0"), told("node.allocated", gpus=0)),
    ("victim_drains", invalid("should have killed rank 1, but the rank exited by itself"), exits_with(-9, 75)),
    ("peer_segfaults_behind_a_shell", unclear("rank 0 on node0 ended with exit code 139"), exits_with(1, 139)),
    ("launcher_tells_nothing", unclear("the launcher on node0 left no log"), no_launcher),
    ("shuffles_differently", fails("consumed other samples than the fault-free run, first at step 11"), shuffled),
    ("loss_is_nan", fails("at step 31 loss nan instead of"), loss_is_nan),
    ("command_failed", fails("KeyError"), told("run.finished", **FAILED)),
    ("no_effect_measured", invalid("fault1 was injected, but no effect was measured"), untold("fault.effect")),
    ("effect_too_small", invalid("measured 0 deaths, expected 1"), told("fault.effect", measured=0, ok=False)),
    ("never_injected", invalid("fault second never struck"), lambda logs: logs.plan["faults"].append(never)),
    ("harness_killed", unclear("the harness's log has no end"), untold("run.finished")),
    ("dies_twice_by_itself", twice_more, lambda logs: None),
    ("slower_for_good", fails("39 steps after the recovery took", job=LONG), lambda logs: slower(logs, 3.0, 11, 60)),
    ("saves_no_more", fails("5 of 5 checkpoints", job=LONG), unsaved(20, 30, 40, 50, 60)),
    ("saves_far_more_rarely", fails("4 of 5 checkpoints", job=LONG), unsaved(20, 30, 50, 60)),
    ("hangs_in_the_exit", fails("to end after its last step", job=LONG), lambda logs: exit_takes(logs, 600)),
    ("slower_by_other_settings", fails("39 steps after", job=LONG), changed(lambda logs: slower(logs, 10, 11, 60))),
    ("slower_by_other_code", passes, changed(lambda logs: slower(logs, 10, 11, 60), updates_only=False)),
    ("other_settings_and_no_save", fails("5 of 5 checkpoints", job=LONG), changed(unsaved(20, 30, 40, 50, 60))),
    ("other_code_and_no_save", unclear("was changed on purpose"), changed(unsaved(20, 30, 40), updates_only=False)),
    ("other_code_saves_more_rarely", passes, changed(unsaved(30, 50), updates_only=False)),
    ("takes_the_save_before_an_outage", passes, an_outage_of_the_store),
    ("a_little_slower", passes, lambda logs: slower(logs, 1.2, 11, 60)),
    ("saves_late_once", passes, lambda logs: saved_late(logs, 40, 46)),
    ("exits_a_little_later", passes, lambda logs: exit_takes(logs, 15)),
):
    register(bend, name)


@fails("at step 11 ranks 0 and 1 disagree on the sample position")
def one_rank_replays_a_batch(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(first=line["first"] - 16), ranks=(1,))


@fails("at step 11 ranks 0 and 1 disagree on the loss")
def gradient_not_averaged(logs: Logs) -> None:
    after_resume(logs, lambda line: line.update(loss=line["loss"] * 1.01), ranks=(1,))


@invalid("fault1 struck rank 1, not rank 0")
def wrong_target(logs: Logs) -> None:
    """The plan aimed at rank 0; rank 1 was killed."""
    logs.plan["faults"][0]["targets"] = [{"node_index": 0, "rank": 0}]
