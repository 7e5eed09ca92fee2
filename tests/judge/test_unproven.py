"""Runs that look well and prove nothing: never a pass. And what looks odd and is well: no accusation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from judging import Logs, by_a_command, fault_free_of, load, remove, steps, trainers, verdict
from mutants.bent import JOB, KILL, starts_from_scratch
from simulator import Outage, simulate

from harness.judge.facts import ranks
from harness.judge.score import Verdict
from harness.report import model, view
from harness.timeline.timeline import Timeline

EXACT = {"loss_continuity": {"mode": "exact"}}


def plan_of(logs: Logs) -> dict[str, Any]:
    plan: dict[str, Any] = next(line for line in logs["harness"] if line.get("event") == "plan")["plan"]
    return plan


def bent_fault_free(bend: Callable[[Logs], object], seed: int = 77) -> Timeline:
    history = simulate(JOB, seed=seed)
    logs = history.logs()
    bend(logs)
    return load(history, logs)


@pytest.mark.parametrize(
    ("fault_free", "reason"),
    [
        (fault_free_of(replace(JOB, steps=20)), "20 steps are not in the fault-free run"),
        (fault_free_of(replace(JOB, nodes=1, ranks_per_node=2)), "another seed, workload or number of ranks"),
        (bent_fault_free(lambda logs: plan_of(logs).update(seed=8)), "another seed, workload or number of ranks"),
        (
            bent_fault_free(lambda logs: plan_of(logs)["workload"].update(args=["--global-batch", "32"])),
            "another seed, workload or number of ranks",
        ),
        (
            bent_fault_free(lambda logs: logs["harness"][-1].update(outcome="failed")),
            "was disturbed or did not finish",
        ),
        (load(simulate(JOB, [Outage(9, "crash")], seed=3)), "was disturbed or did not finish"),
    ],
)
def test_a_fault_free_run_that_does_not_speak_for_this_run(fault_free: Timeline, reason: str) -> None:
    card = verdict(simulate(JOB, KILL, seed=5), expect=EXACT, fault_free=fault_free)
    assert card.verdict is Verdict.INCONCLUSIVE, card.reasons
    assert reason in card.reasons[0]


def quiet_fault(logs: Logs, at: int, healed: int | None = None, **more: object) -> None:
    """A fault that kills nobody strikes at `at`, acts as meant, and lasts until the end."""
    end: dict[str, Any] = logs["harness"][-1]
    told = {"fault": "quiet", "wall_ns": end["wall_ns"]}
    injected = {"event": "fault.injected", "kind": "nic_latency", "kills": False, "mono_ns": at}
    injected |= {"targets": [{"node": "node0", "incarnation": 1, "rank": None}]}
    effect = {"event": "fault.effect", "measured": 1, "expected": 1, "unit": "ms", "ok": True, "mono_ns": at + 1}
    healed_ = {"event": "fault.healed", "mono_ns": end["mono_ns"] if healed is None else healed}
    logs["harness"][-1:-1] = [told | injected | more, told | effect, told | healed_]


def last_step(logs: Logs) -> int:
    return max(line["mono_ns"] for lines in trainers(logs) for line in steps(lines))


@pytest.mark.parametrize("kills", [False, True])
def test_a_fault_that_strikes_when_all_is_done_proves_nothing(kills: bool) -> None:
    def late(logs: Logs) -> None:
        quiet_fault(logs, last_step(logs) + 10, kills=kills)

    card = verdict(simulate(JOB, seed=5), late)
    assert card.verdict is Verdict.INVALID
    assert card.reasons[0] == "fault quiet struck after the job had done all its work"


def test_a_slowdown_that_no_fault_free_run_can_be_held_against_is_unknown() -> None:
    def slow(logs: Logs, **more: object) -> None:
        quiet_fault(logs, steps(trainers(logs, life=-1)[0])[8]["mono_ns"], **more)

    shrunk = simulate(replace(JOB, steps=60), [Outage(15, "shrink", victim=1)], seed=4)
    for expect, score in (
        ({"recovery_time": {"max": "60s"}}, "recovery_time"),
        ({"wasted_gpu_hours": {"max_percent_by_faults": 90}}, "wasted_gpu_hours"),
    ):
        alone, kept = replace(JOB, nodes=1, steps=60), fault_free_of(replace(JOB, steps=60))
        card = verdict(shrunk, slow, expect, kept)
        assert card.verdict is Verdict.INCONCLUSIVE, card.reasons
        assert score in card.reasons[0] and "cannot be measured against the fault-free runs" in card.reasons[0]
        assert verdict(shrunk, slow, expect, kept, [fault_free_of(alone)]).verdict is Verdict.PASS
        card = verdict(shrunk, lambda logs: slow(logs, damages=True, may=["spoil"]), expect, kept)
        assert card.verdict is Verdict.PASS, "what damages files at rest slows nobody"
    for bound, asks in (("max_gpu_seconds_by_faults", True), ("max_percent", False), ("max_gpu_seconds", False)):
        card = verdict(shrunk, slow, {"wasted_gpu_hours": {bound: 90}}, kept)
        assert card.verdict is (Verdict.INCONCLUSIVE if asks else Verdict.PASS), bound
        assert ("GPU time wasted by faults" in card.not_judged) is not asks, "either in the table, or named beside it"
        assert "wasted by faults" not in card.reasons[0].partition("; not judged")[0], "0.0 % was not measured"


def stretched(logs: Logs, since: int, factor: int, until: int = 10**18) -> None:
    """Time runs `factor` times slower between these moments."""
    for line in (line for lines in logs.values() for line in lines):
        for key in line.keys() & {"mono_ns", "begin_ns"}:
            line[key] += (factor - 1) * max(0, min(line[key], until) - since)


def test_a_slow_job_is_not_hidden_by_one_pause_of_the_fault_free_run() -> None:
    def paused(logs: Logs) -> None:
        at = steps(trainers(logs)[0], 20)[0]["mono_ns"]
        stretched(logs, at, 10**5, at + 2 * 10**4)

    def slow(logs: Logs) -> None:
        quiet_fault(logs, at := steps(trainers(logs)[0], 9)[0]["mono_ns"] + 10**7)
        stretched(logs, at, 5)

    expect = {"recovery_time": {"max": "60s"}, "wasted_gpu_hours": {"max_percent_by_faults": 90}}
    card = verdict(simulate(JOB, seed=5), slow, expect, bent_fault_free(paused))
    assert card.verdict is Verdict.INCONCLUSIVE, card.reasons
    assert [line.split(":")[0] for line in card.reasons] == [
        "recovery_time.max",
        "wasted_gpu_hours.max_percent_by_faults",
    ]
    (waste,) = (each for each in view.figures(model.from_scorecard(card)) if each.name == "Wasted by faults")
    assert (waste.value, waste.verdict) == ("–", Verdict.INCONCLUSIVE), "no figure and no tick where nothing is known"

    def unharmed(logs: Logs) -> None:
        quiet_fault(logs, steps(trainers(logs)[0], 9)[0]["mono_ns"] + 10**7)

    card = verdict(simulate(JOB, seed=5), unharmed, expect, bent_fault_free(paused))
    assert card.verdict is Verdict.PASS, card.reasons


def test_a_run_that_was_stopped_says_so_before_what_did_not_come_then() -> None:
    def stopped(logs: Logs) -> None:
        quiet_fault(logs, last_step(logs) + 10)
        (end,) = (line for line in logs["harness"] if line.get("event") == "run.finished")
        end |= {"outcome": "interrupted", "reason": "stopped by the user"}

    card = verdict(simulate(JOB, seed=5), stopped, {"recovery_time": {"max": "60s"}})
    assert len(card.reasons) > 1 and "the run was interrupted" in card.reasons[0], card.reasons


def test_what_no_fault_cost_proves_nothing() -> None:
    def never_struck(logs: Logs) -> None:
        remove(logs["harness"], lambda line: str(line.get("event")).startswith("fault."))
        (told,) = (line for line in logs["harness"] if line.get("event") == "plan")
        told["plan"]["faults"] = [{"id": "kill", "fault": "rank_kill"}]

    expect = {"wasted_gpu_hours": {"max_percent": 90, "max_percent_by_faults": 90}}
    card = verdict(simulate(JOB, KILL, seed=5), never_struck, expect)
    told = {line.name: (line.verdict, line.reason) for line in card.expectations}
    assert told["wasted_gpu_hours.max_percent_by_faults"] == (Verdict.INCONCLUSIVE, "no fault struck")
    assert told["wasted_gpu_hours.max_percent"][0] is Verdict.PASS


def killed_at_the_end(logs: Logs, restored: int, last: int) -> None:
    """The last step is done and its checkpoint is not: rank 1 is killed, and the job starts once more."""
    end = logs["harness"][-1]["mono_ns"]
    for line in logs["harness"]:
        line["mono_ns"] += 10**10 * (line.get("event") in ("process.exit", "node.released", "run.finished"))
    quiet_fault(logs, last_step(logs) + 10, kind="rank_kill", kills=True)
    for rank in (0, 1):
        before = trainers(logs, rank=rank)[0]
        remove(before, lambda line: line.get("event") == "exiting" or (line.get("step") == 40 and "path" in line))
        begin, stamp = end + 5 * 10**8 + rank, {"wall_ns": before[0]["wall_ns"]}
        came: dict[str, Any] = {"event": "restored", "step": restored, "source": "x", "mono_ns": begin + 2} | stamp
        joined = stamp | {"event": "rendezvous", "world_size": 2, "mono_ns": begin + 1}
        later = {key: before[0][key] + begin - before[0]["mono_ns"] for key in ("wall_ns", "mono_ns")}
        again = [before[0] | later | {"pid": 77 + rank}, joined, came]
        for line in steps(before, restored + 1, last):
            begin += 10**7
            again.append(line | {"begin_ns": begin - 10**6, "mono_ns": begin})
        logs[f"trainer-again-{rank}"] = [*again, stamp | {"event": "exiting", "code": 0, "mono_ns": begin + 10}]


@pytest.mark.parametrize(("restored", "last"), [(30, 35), (30, 30), (0, 0)])
def test_a_job_that_went_back_and_ended_there_is_not_done(restored: int, last: int) -> None:
    card = verdict(simulate(JOB, seed=5), lambda logs: killed_at_the_end(logs, restored, last), expect={})
    assert card.verdict is Verdict.FAIL, card.reasons
    assert f"reached step 40 of 40, but went back afterwards: it ended with the state of step {last}" in " ".join(
        card.reasons
    )


def test_a_job_that_did_its_last_steps_again_is_done() -> None:
    card = verdict(simulate(JOB, seed=5), lambda logs: killed_at_the_end(logs, 30, 40), expect=EXACT)
    assert card.verdict is Verdict.PASS, card.reasons


def test_no_reason_is_good_enough_to_begin_from_scratch() -> None:
    def excused(logs: Logs) -> None:
        starts_from_scratch(logs)
        for lines in trainers(logs, life=None):
            for line in lines:
                if line.get("event") == "restored":
                    line["fallback"] = [{"source": "checkpoints/step-10", "reason": "KeyError: 'optimizer'"}]

    card = verdict(simulate(JOB, KILL, seed=5), excused)
    assert card.verdict is Verdict.FAIL
    assert "from step 0 and skipped all saved checkpoints, though a checkpoint of step 10" in card.reasons[0]


def test_workers_that_end_well_in_the_middle_have_not_ended_well() -> None:
    def quit_(logs: Logs) -> None:
        for lines in logs.values():
            for line in lines:
                if line.get("event") in ("exiting", "worker.exit") and line["code"] == 1:
                    line["code"] = 0

    card = verdict(simulate(JOB, [Outage(17, "crash")], seed=5), quit_, EXACT)
    assert card.verdict is Verdict.INCONCLUSIVE
    assert "ended, the first at 2.15 s, with exit code 0 (no fault explains it)" in card.reasons[0]
    assert verdict(simulate(JOB, KILL, seed=5), quit_, EXACT).verdict is Verdict.PASS, "it went with the killed one"


def test_a_node_that_ends_well_while_the_others_go_on_has_left_them() -> None:
    def left(logs: Logs) -> None:
        plan_of(logs)["faults"] = []
        remove(logs["harness"], lambda line: line.get("event", "").startswith("fault."))
        remove(logs["harness"], lambda line: line.get("event") == "node.released" and line["node"] == "node1")
        for line in logs["harness"]:
            if line.get("event") == "process.exit":
                line["code"] = 0

    history = simulate(JOB, [Outage(15, "shrink", victim=1)], seed=4)
    card = verdict(history, left, expect={})
    assert card.verdict is Verdict.FAIL
    assert card.reasons[0].startswith("node1 left the job with exit code 0 at ")


def two_nodes_were_meant(logs: Logs) -> None:
    plan_of(logs)["faults"][0]["targets"] = [{"node_index": 0, "rank": None}, {"node_index": 1, "rank": None}]


def the_node_was_another_one(logs: Logs) -> None:
    quiet_fault(logs, last_step(logs) - 10**9, targets=[{"node": "node0", "incarnation": 2, "rank": None}])


def never_undone(logs: Logs) -> None:
    plan_of(logs)["faults"].append({"id": "quiet", "parameters": {"duration": "1s"}})
    quiet_fault(logs, last_step(logs) - 10**9)
    remove(logs["harness"], lambda line: line.get("event") == "fault.healed")


@pytest.mark.parametrize(
    ("bend", "reason"),
    [
        (two_nodes_were_meant, "fault fault1 struck 1 nodes, not 2"),
        (the_node_was_another_one, "fault quiet struck node0, which was not part of the job at that time"),
        (never_undone, "fault quiet was never undone; its planned duration is 1s"),
    ],
)
def test_a_fault_that_was_not_the_planned_one(bend: Callable[[Logs], None], reason: str) -> None:
    card = verdict(simulate(JOB, [Outage(17, "node", victim=1)], seed=5), bend)
    assert card.verdict is Verdict.INVALID
    assert reason in card.reasons


def without_a_plan(logs: Logs) -> None:
    remove(logs["harness"], lambda line: line.get("event") == "plan")


def with_lost_events(logs: Logs) -> None:
    logs["harness"][-1]["dropped"] = 3


def with_another_harness(logs: Logs) -> None:
    logs["other"] = [dict(line) for line in logs["harness"]]


def with_another_end(logs: Logs) -> None:
    logs["harness"][-1]["outcome"] = "splendid"


@pytest.mark.parametrize(
    ("bend", "reason"),
    [
        (without_a_plan, "the log holds no plan"),
        (with_lost_events, "3 events of the harness were lost"),
        (with_another_harness, "2 harnesses wrote into this log"),
        (with_another_end, "the run ended as splendid"),
    ],
)
def test_a_harness_log_that_is_not_whole(bend: Callable[[Logs], None], reason: str) -> None:
    card = verdict(simulate(JOB, KILL, seed=5), bend)
    assert card.verdict is Verdict.INCONCLUSIVE
    assert reason in card.reasons[0]


def test_steps_that_are_told_now_and_then_are_rolled_back_all_the_same() -> None:
    def sparse(logs: Logs) -> None:
        for lines in trainers(logs):
            remove(lines, lambda line: line.get("event") == "step" and line["step"] % 5 != 0)

    card = verdict(simulate(JOB, KILL, seed=5), sparse, {"metrics": {"steps_rolled_back_max": 0}})
    assert card.metrics["steps_rolled_back"] == 1, "step 15 of those that were told"
    assert card.verdict is Verdict.FAIL


def test_a_node_that_never_takes_part_is_missed() -> None:
    def alone(logs: Logs) -> None:
        for name in [name for name, lines in logs.items() if lines[0].get("rank") == 1]:
            del logs[name]
        for lines in trainers(logs):
            for line in lines:
                line |= {"world_size": 1} if "world_size" in line else {}

    card = verdict(simulate(JOB, seed=5), alone, EXACT)
    assert card.verdict is Verdict.INCONCLUSIVE
    assert card.reasons == ["node1 was allocated from start to end, but took part in no step"]


@pytest.mark.parametrize("agents", [True, False])
def test_a_crash_that_only_the_worker_told_of_is_unexplained(agents: bool) -> None:
    def unseen(logs: Logs) -> None:
        for lines in logs.values():
            remove(lines, lambda line: line.get("event") == "worker.exit")

    job = replace(JOB, agents=agents)
    card = verdict(simulate(job, [Outage(17, "crash")], seed=5), unseen, EXACT)
    assert card.verdict is Verdict.INCONCLUSIVE
    assert card.metrics["deaths_unexplained"] == 2
    assert verdict(simulate(job, KILL, seed=5), unseen).verdict is Verdict.PASS


def untold(logs: Logs) -> None:
    """Nobody says how any worker ended."""
    by_a_command(logs)
    for lines in logs.values():
        remove(lines, lambda line: line.get("event") in ("worker.exit", "exiting"))


def test_workers_that_vanish_without_a_word_are_dead() -> None:
    job = replace(JOB, agents=False)
    card = verdict(simulate(job, [*KILL, Outage(15, "crash")], seed=5), untold, EXACT)
    assert (card.verdict, card.metrics["deaths_unexplained"]) == (Verdict.INCONCLUSIVE, 2)
    assert card.reasons[0].startswith("unexplained deaths: ranks 0 and 1 disappeared without an exit code, the first ")


@pytest.mark.parametrize("agents", [True, False])
@pytest.mark.parametrize("kind", ["rank", "node", "notice", "shrink"])
def test_those_that_a_fault_took_may_vanish_without_a_word(kind: str, agents: bool) -> None:
    card = verdict(simulate(replace(JOB, agents=agents), [Outage(17, kind, victim=1)], seed=5), untold)
    assert (card.verdict, card.metrics["deaths_unexplained"]) == (Verdict.PASS, 0), card.reasons


def loss_from(first: int, change: Callable[[float], object], every: int = 1) -> Callable[[Logs], None]:
    def bend(logs: Logs) -> None:
        for lines in trainers(logs):
            for line in steps(lines, first):
                if line["step"] % every == 0:
                    line["loss"] = change(line["loss"])

    return bend


@pytest.mark.parametrize("value", ["nan", "inf", None])
def test_two_losses_that_are_both_no_number_are_not_the_same_loss(value: object) -> None:
    diverged = loss_from(15, lambda loss: value)
    card = verdict(simulate(JOB, KILL, seed=5), diverged, EXACT, bent_fault_free(diverged))
    assert card.verdict is Verdict.INCONCLUSIVE
    assert card.reasons == ["loss_continuity.mode: the fault-free run reports no finite loss after step 14"]


@pytest.mark.parametrize("mode", ["exact", "ulp"])
@pytest.mark.parametrize("value, expected", [(None, Verdict.INCONCLUSIVE), ("nan", Verdict.FAIL)])
def test_a_loss_that_is_not_told_is_not_one_that_is_no_number(value: object, expected: Verdict, mode: str) -> None:
    expect = {"loss_continuity": {"mode": mode}}
    card = verdict(simulate(JOB, KILL, seed=5), loss_from(15, lambda loss: value), expect)
    assert card.verdict is expected, card.reasons
    told = "rank 0 does not tell its loss at step 15, where it does in the fault-free run"
    assert any(told in text for text in card.reasons) is (value is None)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["loss", "grad_norm", "lr"])
def test_one_step_that_one_rank_does_not_tell_is_no_pass_and_accuses_nobody(name: str, rank: int) -> None:
    def hole(logs: Logs) -> None:
        for lines in trainers(logs, rank=rank):
            for line in steps(lines, 25, 25):
                line[name] = None

    card = verdict(simulate(JOB, KILL, seed=5), hole, EXACT)
    assert card.verdict is Verdict.INCONCLUSIVE and len(card.reasons) == 1, card.reasons
    assert f"rank {rank} does not tell its" in card.reasons[0] and "at step 25" in card.reasons[0]
    only_theirs = verdict(simulate(JOB, KILL, seed=5), expect=EXACT, fault_free=bent_fault_free(hole))
    assert only_theirs.verdict is Verdict.PASS, only_theirs.reasons


def test_a_loss_that_is_told_now_and_then_is_compared_where_it_is() -> None:
    def sparse(logs: Logs) -> None:
        for lines in trainers(logs):
            for line in steps(lines):
                if line["step"] % 7:
                    line["loss"] = None

    card = verdict(simulate(JOB, KILL, seed=5), sparse, EXACT, bent_fault_free(sparse))
    assert card.verdict is Verdict.PASS, card.reasons


@pytest.mark.parametrize("change", [lambda loss: "nan", lambda loss: loss + 50])
def test_calibration_runs_that_went_astray_draw_no_band(change: Callable[[float], object]) -> None:
    astray = bent_fault_free(loss_from(12, change), seed=3)
    expect = {"loss_continuity": {"mode": "envelope"}}
    card = verdict(simulate(JOB, KILL, seed=5), loss_from(20, change), expect, calibration=[astray])
    assert card.verdict is Verdict.INCONCLUSIVE, card.reasons
    assert "give no band" in card.reasons[0]


def test_a_bound_that_is_no_number_is_no_bound() -> None:
    for expect in (
        {"loss_continuity": {"mode": "ulp", "max_ulp": float("nan")}},
        {"loss_continuity": {"max_spike": float("inf")}},
    ):
        card = verdict(simulate(JOB, KILL, seed=5), expect=expect)
        assert card.verdict is Verdict.INCONCLUSIVE and "finite number" in card.reasons[0]


def only_rank_0_tells(logs: Logs) -> None:
    for lines in trainers(logs, rank=1):
        for line in steps(lines):
            del line["loss"], line["grad_norm"], line["lr"], line["digest"]


def only_the_last_rank_tells(logs: Logs) -> None:
    for lines in trainers(logs, rank=0):
        for line in steps(lines):
            del line["loss"]


def each_tells_its_own_loss(logs: Logs) -> None:
    for lines in trainers(logs, rank=1):
        for line in steps(lines):
            line["loss"] += 0.01


@pytest.mark.parametrize("telling", [only_rank_0_tells, only_the_last_rank_tells, each_tells_its_own_loss])
def test_whoever_tells_a_loss_is_compared_with_the_same_rank_of_the_fault_free_run(
    telling: Callable[[Logs], None],
) -> None:
    card = verdict(simulate(JOB, KILL, seed=5), telling, EXACT, bent_fault_free(telling))
    assert card.verdict is Verdict.PASS, card.reasons

    def drifts(logs: Logs) -> None:
        telling(logs)
        for lines in trainers(logs):
            for line in steps(lines, 12):
                line |= {"loss": line["loss"] + 1e-6} if "loss" in line else {}

    card = verdict(simulate(JOB, KILL, seed=5), drifts, EXACT, bent_fault_free(telling))
    assert "at step 12 loss" in " ".join(card.reasons)


def test_a_trainer_that_tells_each_fifth_step_did_not_skip_the_others() -> None:
    def sparse(logs: Logs) -> None:
        for lines in trainers(logs):
            remove(lines, lambda line: line.get("event") == "step" and line["step"] % 5 != 0)

    def lost(logs: Logs) -> None:
        sparse(logs)
        for lines in trainers(logs):
            remove(lines, lambda line: line.get("step") == 25 and "loss" in line)

    card = verdict(simulate(JOB, KILL, seed=5), sparse, EXACT, bent_fault_free(sparse))
    assert card.verdict is Verdict.PASS, card.reasons
    card = verdict(simulate(JOB, KILL, seed=5), lost, EXACT, bent_fault_free(sparse))
    assert "step 25: never done in the surviving history" in card.reasons[0]


def test_a_smaller_batch_is_another_batch_though_none_of_its_samples_is_skipped() -> None:
    def half(logs: Logs) -> None:
        for lines in trainers(logs):
            first = steps(lines)[0]["first"]
            for number, line in enumerate(steps(lines)):
                del line["digest"]
                if lines[0]["world_size"] == 1:
                    line |= {"first": first + 8 * number, "count": 8}

    job, alone = replace(JOB, steps=60), replace(JOB, nodes=1, steps=60)
    history = simulate(job, [Outage(25, "shrink", victim=1)], seed=2)
    card = verdict(history, half, {"loss_continuity": {"mode": "envelope"}}, calibration=[fault_free_of(alone)])
    assert card.verdict is Verdict.FAIL
    assert "consumed other samples than the fault-free run, first at step 21" in card.reasons[0]


def test_what_a_trainer_wrote_and_nobody_read_on_may_have_told_more() -> None:
    def unread(logs: Logs) -> None:
        end = logs["harness"][-1]
        stamps = {key: end[key] for key in ("wall_ns", "mono_ns")}
        logs["harness"].insert(-1, {"event": "reader.failed", "path": "out/a.log", "error": "too long"} | stamps)

    card = verdict(simulate(JOB, KILL, seed=5), unread)
    assert (card.verdict, card.reasons[0]) == (Verdict.INCONCLUSIVE, "out/a.log is no longer read: too long")


def test_a_node_given_back_before_it_was_allocated_is_a_contradiction() -> None:
    def early(logs: Logs) -> None:
        released = next(line for line in logs["harness"] if line.get("event") == "node.released")
        released["mono_ns"], released["wall_ns"] = 1, released["wall_ns"] - released["mono_ns"] + 1

    card = verdict(simulate(JOB, KILL, seed=5), early)
    assert card.verdict is Verdict.INCONCLUSIVE
    assert any("was given back before it was allocated" in reason for reason in card.reasons)


def test_a_node_that_came_anew_had_been_given_back() -> None:
    """The line that says so is lost: it was not kept to the end, and nobody says that it left GPUs idle."""

    def untold(logs: Logs) -> None:
        remove(
            logs["harness"],
            lambda line: line.get("event") == "node.released" and line["incarnation"] == 1 and line["node"] == "node1",
        )

    card = verdict(simulate(JOB, [Outage(17, "node", victim=1)], seed=5), untold)
    assert card.verdict is Verdict.INCONCLUSIVE, card.reasons
    assert any("nobody told when node1 was given back, and it came anew" in reason for reason in card.reasons)


def test_ranks_without_a_step_do_not_differ_from_anything() -> None:
    """The fault-free run went on with a checkpoint of another run, and was over at once."""

    def without_steps(logs: Logs) -> None:
        for lines in trainers(logs):
            remove(lines, lambda line: line.get("event") == "step")

    empty = bent_fault_free(without_steps).steps
    assert ranks.off_the_fault_free_run(empty, empty, "loss", 0.0) is None


def test_a_job_that_never_gets_past_a_damaged_checkpoint_says_so() -> None:
    def bend(logs: Logs) -> None:
        harness = logs["harness"]
        next(line for line in harness if line.get("event") == "fault.injected")["spoils"] = True
        for lines in trainers(logs, life=-1)[:1]:
            remove(lines, lambda line: line.get("event") == "restored")
        for lines in trainers(logs):
            remove(lines, lambda line: line.get("event") == "restored" and line["step"] > 0)
        next(line for line in harness if line.get("event") == "run.finished").update(outcome="failed", reason="boom")

    reasons = " ".join(verdict(simulate(JOB, KILL, seed=5), bend, EXACT).reasons)
    assert "boom; it restored nothing after `" in reasons and "had damaged a checkpoint" in reasons


@pytest.mark.parametrize("newest", [False, True])
def test_a_save_of_which_nobody_told_the_end_may_be_the_one_that_was_restored_or_better(newest: bool) -> None:
    """Step 10 was saved and step 20 was begun, in a job that commits before its next step: a line is lost."""

    def bend(logs: Logs) -> None:
        lines = trainers(logs, rank=0, life=0)[0]
        saves = [line for line in lines if str(line.get("event")).startswith("checkpoint.")]
        if not newest:
            return remove(lines, lambda line: line is saves[-1])
        begun, done = saves[-2], steps(lines)[-3]
        lines.insert(
            lines.index(done) + 1,
            done | begun | {name: done[name] + 1 for name in ("mono_ns", "wall_ns")} | {"step": done["step"]},
        )

    card = verdict(simulate(JOB, KILL, seed=5), bend)
    assert card.verdict is Verdict.INCONCLUSIVE
    step = "15" if newest else "10"
    expected = f"rank 0 never reported whether its checkpoint of step {step} was committed"
    assert card.reasons[0] == f"{expected}, and the job restarted from step 10 after it"


@pytest.mark.parametrize(("seconds", "proven"), [(2, Verdict.PASS), (40, Verdict.INCONCLUSIVE)])
@pytest.mark.parametrize("step", [5, 30])
def test_a_job_that_stands_still_while_no_fault_is_at_work_proves_nothing(
    step: int, seconds: int, proven: Verdict
) -> None:
    def bend(logs: Logs) -> None:
        done = max(line["mono_ns"] for lines in trainers(logs) for line in steps(lines, step, step))
        for lines in logs.values():
            for line in lines:
                late = seconds * 10**9 if line["mono_ns"] > done else 0
                line |= {"mono_ns": line["mono_ns"] + late, "wall_ns": line["wall_ns"] + late}
                if line.get("begin_ns", 0) > done + 10**7:  # the step that stands still has begun
                    line["begin_ns"] += late

    card = verdict(simulate(JOB, KILL, seed=5), bend)
    assert card.verdict is proven, card.reasons
    assert proven is Verdict.PASS or card.reasons[0].startswith("the job stood still for 40.0")


def kill_of(logs: Logs) -> dict[str, Any]:
    return next(line for line in logs["harness"] if line.get("event") == "fault.injected")


def measured_too_early(logs: Logs) -> None:
    kill = kill_of(logs)
    effect = next(line for line in logs["harness"] if line.get("event") == "fault.effect")
    effect |= {key: kill[key] - 2 * 10**9 for key in ("mono_ns", "wall_ns")}
    logs["harness"].sort(key=lambda line: line["mono_ns"])


def given_up_and_done(logs: Logs) -> None:
    end = logs["harness"][-1]
    logs["harness"].insert(
        -1, {"event": "abort", "reason": "no step"} | {k: end[k] - 1 for k in ("mono_ns", "wall_ns")}
    )


def without_any_end(logs: Logs) -> None:
    for lines in logs.values():
        remove(lines, lambda line: line.get("event") == "process.exit")


@pytest.mark.parametrize(
    ("bend", "proven", "reason"),
    [
        (measured_too_early, Verdict.INVALID, "acted only 2.0"),
        (given_up_and_done, Verdict.INCONCLUSIVE, "the harness gave the job up, and yet its log says that the job was"),
        (without_any_end, Verdict.INCONCLUSIVE, "how the command on node0 ended is not known"),
    ],
)
def test_a_log_that_contradicts_itself_or_has_no_end(
    bend: Callable[[Logs], None], proven: Verdict, reason: str
) -> None:
    card = verdict(simulate(JOB, KILL, seed=5), bend)
    assert card.verdict is proven and reason in " ".join(card.reasons), card.reasons


def test_a_checkpoint_that_failed_and_was_then_committed_is_there_to_be_restored() -> None:
    def bend(logs: Logs) -> None:
        lines = trainers(logs, rank=0, life=0)[0]
        done = next(line for line in lines if line.get("event") == "checkpoint.committed" and line["step"] == 10)
        failed = done | {"event": "checkpoint.failed", "error": "again"}
        lines.insert(lines.index(done), failed | {key: done[key] - 1000 for key in ("mono_ns", "wall_ns")})

    card = verdict(simulate(JOB, KILL, seed=5), bend)
    assert not any("restored step 10" in reason for reason in card.reasons), card.reasons


def restored_with(**told: Any) -> Callable[[Logs], None]:
    def bend(logs: Logs) -> None:
        for lines in trainers(logs):
            for line in lines:
                if line.get("event") == "restored" and line["step"] > 0:
                    line |= told

    return bend


def test_a_checkpoint_that_no_longer_holds_what_was_committed_is_not_trusted() -> None:
    card = verdict(simulate(JOB, KILL, seed=5), restored_with(content="a", saved="b"))
    assert card.verdict is Verdict.INCONCLUSIVE and "no longer holds what was committed" in card.reasons[0]
    assert verdict(simulate(JOB, KILL, seed=5), restored_with(content="a", saved="a")).verdict is Verdict.PASS


def test_a_checkpoint_that_was_passed_over_and_restored_is_a_contradiction() -> None:
    bend = restored_with(source="last.pt", fallback=[{"source": "last.pt", "reason": "damaged"}])
    card = verdict(simulate(JOB, KILL, seed=5), bend)
    assert card.verdict is Verdict.INCONCLUSIVE
    assert card.reasons[0].endswith("said it passed last.pt over, and that it restored it")


@pytest.mark.parametrize(
    ("entered", "proven"), [(["model"], Verdict.INCONCLUSIVE), (["model", "optimizer"], Verdict.PASS)]
)
def test_a_model_without_its_optimizer_is_half_a_state(entered: list[str], proven: Verdict) -> None:
    def bend(logs: Logs) -> None:
        restored_with(entered=entered)(logs)
        for lines in trainers(logs):
            for line in steps(lines, 30):
                line["loss"] *= 1 + 1e-9

    roughly = {"loss_continuity": {"mode": "ulp", "max_ulp": 10_000_000}}
    card = verdict(simulate(JOB, KILL, seed=5), bend, roughly)
    assert card.verdict is proven, card.reasons
    exact = verdict(simulate(JOB, KILL, seed=5), restored_with(entered=entered), EXACT)
    assert exact.verdict is Verdict.PASS, exact.reasons


def saved_again_at_15(logs: Logs, **told: Any) -> None:
    """Rank 0 commits another file at step 15, before the kill; the job then restores step 10."""
    lines = trainers(logs, rank=0, life=0)[0]
    for line in lines:
        if line.get("event") == "checkpoint.committed":
            line |= {"path": f"/c/step{line['step']}.pt", "holds": ["model", "optimizer"]}
    step = steps(lines, 15, 15)[0]
    commit = {"event": "checkpoint.committed", "step": 15} | told
    lines.insert(lines.index(step) + 1, commit | {key: step[key] + 1 for key in ("mono_ns", "wall_ns")})


def dumped(logs: Logs) -> None:
    """At its end, which is over the loss of its peer."""
    lines = trainers(logs, rank=0, life=0)[0]
    last, end = steps(lines)[-1], next(line for line in lines if line.get("event") == "exiting")
    end["reason"] = "peer lost"
    commit = {"event": "checkpoint.committed", "step": last["step"], "path": "/c/crash.pt"}
    lines.insert(lines.index(end), commit | {key: end[key] - 1 for key in ("mono_ns", "wall_ns")})


NOT_THE_NEWEST = "resumed from step 10 and gave no reason"


@pytest.mark.parametrize(
    ("bend", "accused"),
    [
        (lambda logs: saved_again_at_15(logs, holds=["model"], path="/c/export.pt"), False),
        (lambda logs: saved_again_at_15(logs, holds=["model", "optimizer"], path="/c/other.pt"), True),
        (lambda logs: saved_again_at_15(logs, path="/c/unknown.pt"), True),
        (dumped, False),
    ],
)
def test_only_what_is_meant_for_a_restart_is_the_newest_checkpoint(bend: Callable[[Logs], None], accused: bool) -> None:
    card = verdict(simulate(JOB, KILL, seed=5), bend)
    assert (NOT_THE_NEWEST in " ".join(card.reasons)) is accused, card.reasons


def seen_only_by_the_harness(logs: Logs, step: int) -> None:
    kill = kill_of(logs)
    seen = {"event": "checkpoint.published", "path": "c/a.pt", "step": step, "bytes": 9}
    seen |= {key: kill[key] - 1000 for key in ("mono_ns", "wall_ns")}
    logs["harness"].insert(logs["harness"].index(kill), seen)
    for lines in trainers(logs):
        remove(lines, lambda line: str(line.get("event")).startswith("checkpoint."))


@pytest.mark.parametrize(("step", "told"), [(15, True), (10, False), (4500, False)])
def test_a_checkpoint_that_only_the_harness_saw_was_there_all_the_same(step: int, told: bool) -> None:
    def bend(logs: Logs) -> None:
        by_a_command(logs)
        seen_only_by_the_harness(logs, step)

    card = verdict(simulate(JOB, KILL, seed=5), bend)
    text = f"{NOT_THE_NEWEST}, though it had saved step {step}, as far as is known"
    assert (text in " ".join(card.reasons)) is told, card.reasons
    assert not told or card.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("other", "proven"),
    [
        (range(11), Verdict.PASS),  # from the begin on: they are other ones in each run
        (range(25, 100), Verdict.INCONCLUSIVE),
        (range(0), Verdict.PASS),
    ],
)
def test_state_that_no_loss_shows_is_in_the_checkpoints(other: range, proven: Verdict) -> None:
    def told(logs: Logs, other: range = range(0)) -> None:
        for lines in trainers(logs):
            for line in lines:
                if line.get("event") == "checkpoint.committed":
                    line |= {"path": f"/c/{line['step']}.pt", "tensors": "b" if line["step"] in other else "a"}

    history = simulate(JOB, KILL, seed=5)
    card = verdict(history, lambda logs: told(logs, other), EXACT, bent_fault_free(told))
    assert card.verdict is proven, card.reasons
    assert proven is Verdict.PASS or "saved other tensors at step 30" in card.reasons[0]


def test_where_only_odd_checkpoints_are_there_they_count() -> None:
    """Weights alone, in a job that later saves its optimizer, too; and a restart from scratch."""

    def bend(logs: Logs) -> None:
        for lines in trainers(logs):
            for line in lines:
                if line.get("event") == "checkpoint.committed":
                    late = line["step"] >= 30
                    line |= {"path": f"/c/{'final' if late else 'step'}{line['step']}.pt"}
                    line |= {"holds": ["model", "optimizer"] if late else ["model"]}
        restored_with(step=0, source="scratch")(logs)

    card = verdict(simulate(JOB, KILL, seed=5), bend)
    assert card.verdict is Verdict.FAIL and "resumed from step 0" in " ".join(card.reasons), card.reasons


def test_saves_that_are_begun_and_never_committed_were_perhaps_there() -> None:
    def bend(logs: Logs) -> None:
        by_a_command(logs)
        saved_again_at_15(logs, event="checkpoint.started")
        for lines in trainers(logs):
            remove(lines, lambda line: line.get("event") == "checkpoint.committed")

    card = verdict(simulate(JOB, KILL, seed=5), bend)
    assert f"{NOT_THE_NEWEST}, though it had saved step 15, as far as is known" in " ".join(card.reasons), card.reasons


@pytest.mark.parametrize("lost", ["workload", "seed", "faults", "expect", "scenario", "abort"])
def test_a_plan_that_lost_a_part_ends_no_judge(lost: str) -> None:
    """What is null in a plan is as good as absent."""

    def bend(logs: Logs) -> None:
        for line in logs["harness"]:
            if line.get("event") == "plan":
                line["plan"][lost] = None

    assert verdict(simulate(JOB), bend).verdict is not None
