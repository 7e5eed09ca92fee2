"""Runs that look well and prove nothing: never a pass. And what looks odd and is well: no accusation."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from judging import ENVELOPE, EXACT, SAVES, Bend, bent, by_a_command, fault_free_of, load, struck, together, verdict
from mutants.bent import JOB, KILL, starts_from_scratch
from scorecards import assert_verdict
from simulator import Line, Logs, Outage, change, clocks, find, remove, simulate, steps

from harness.evidence import ranks
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.report import run_report, view
from harness.timeline.timeline import Timeline


def bent_fault_free(bend: Bend, seed: int = 77) -> Timeline:
    return bent(JOB, bend, seed=seed)


def judged(*bends: Bend, expect: dict[str, Any] | None = None, outages: list[Outage] = KILL) -> Scorecard:
    return verdict(simulate(JOB, outages, seed=5), together(*bends), expect)


def quiet_fault(logs: Logs, at: int, **more: Any) -> None:
    place = [{"node": "node0", "incarnation": 1, "rank": None}]
    struck(logs, "quiet", at, **{"healed": logs.harness[-1]["mono_ns"] - 1, "targets": place} | more)


def saves(logs: Logs) -> Iterator[Line]:
    return logs.all("checkpoint.committed")


@pytest.mark.parametrize(
    ("fault_free", "reason"),
    [
        (fault_free_of(replace(JOB, steps=20)), "20 steps are not in the fault-free run"),
        (bent_fault_free(lambda logs: logs.harness[-1].update(outcome="failed")), "cannot be compared: it did not"),
        (load(simulate(JOB, [Outage(9, "crash")], seed=3)), "cannot be compared: a process of it died"),
    ],
)
def test_a_fault_free_run_that_does_not_speak_for_this_run(fault_free: Timeline, reason: str) -> None:
    card = verdict(simulate(JOB, KILL, seed=5), expect=EXACT, fault_free=fault_free)
    assert_verdict(card, Verdict.INCONCLUSIVE, first=reason)


def last_step(logs: Logs) -> int:
    return max(line["mono_ns"] for line in logs.steps())


def stopped(logs: Logs) -> None:
    """That is said before what did not come then."""
    quiet_fault(logs, last_step(logs) + 10)
    logs.told("run.finished").update(outcome="interrupted", reason="stopped by the user")


def test_a_slowdown_that_no_fault_free_run_can_be_held_against_is_unknown() -> None:
    def slow(logs: Logs, **more: object) -> None:
        quiet_fault(logs, steps(logs.trainers(life=-1)[0])[8]["mono_ns"], **more)

    shrunk = simulate(replace(JOB, steps=60), [Outage(15, "shrink", victim=1)], seed=4)
    for expect, score in (
        ({"recovery_time": {"max": "60s"}}, "recovery_time"),
        ({"wasted_gpu_hours": {"max_percent_by_faults": 90}}, "wasted_gpu_hours"),
    ):
        alone, kept = replace(JOB, nodes=1, steps=60), fault_free_of(replace(JOB, steps=60))
        card = verdict(shrunk, slow, expect, kept)
        assert_verdict(card, Verdict.INCONCLUSIVE, score, first="cannot be measured against the fault-free runs")
        assert verdict(shrunk, slow, expect, kept, [fault_free_of(alone)]).verdict is Verdict.PASS
        card = verdict(shrunk, lambda logs: slow(logs, damages=True, may=["spoil"]), expect, kept)
        assert card.verdict is Verdict.PASS, "what damages files at rest slows nobody"
    for bound, asks in (("max_gpu_seconds_by_faults", True), ("max_percent", False), ("max_gpu_seconds", False)):
        card = verdict(shrunk, slow, {"wasted_gpu_hours": {bound: 90}}, kept)
        assert card.verdict is (Verdict.INCONCLUSIVE if asks else Verdict.PASS), bound
        assert ("GPU time wasted by faults" in card.not_judged) is not asks, "either in the table, or named beside it"
        assert "wasted by faults" not in card.reasons[0].partition("; not judged")[0], "0.0 % was not measured"


def stretched(logs: Logs, since: int, factor: int, until: int = 10**18) -> None:
    for line in (line for lines in logs.values() for line in lines):
        for key in line.keys() & {"mono_ns", "begin_ns"}:
            line[key] += (factor - 1) * max(0, min(line[key], until) - since)


def test_a_slow_job_is_not_hidden_by_one_pause_of_the_fault_free_run() -> None:
    def paused(logs: Logs) -> None:
        at = steps(logs.trainers()[0], 20)[0]["mono_ns"]
        stretched(logs, at, 10**5, at + 2 * 10**4)

    def slow(logs: Logs) -> None:
        quiet_fault(logs, at := steps(logs.trainers()[0], 9)[0]["mono_ns"] + 10**7)
        stretched(logs, at, 5)

    expect = {"recovery_time": {"max": "60s"}, "wasted_gpu_hours": {"max_percent_by_faults": 90}}
    card = verdict(simulate(JOB, seed=5), slow, expect, bent_fault_free(paused))
    assert card.verdict is Verdict.INCONCLUSIVE, card.reasons
    bounds = ["recovery_time.max", "wasted_gpu_hours.max_percent_by_faults"]
    assert [line.split(":")[0] for line in card.reasons] == bounds
    (waste,) = (each for each in view.figures(run_report.from_scorecard(card)) if each.name == "Wasted by faults")
    assert (waste.value, waste.verdict) == ("–", Verdict.INCONCLUSIVE), "no figure and no tick where nothing is known"

    def unharmed(logs: Logs) -> None:
        quiet_fault(logs, steps(logs.trainers()[0], 9)[0]["mono_ns"] + 10**7)

    assert_verdict(verdict(simulate(JOB, seed=5), unharmed, expect, bent_fault_free(paused)), Verdict.PASS)


def test_what_no_fault_cost_proves_nothing() -> None:
    def never_struck(logs: Logs) -> None:
        remove(logs.harness, lambda line: str(line.get("event")).startswith("fault."))
        logs.plan["faults"] = [{"id": "kill", "fault": "rank_kill"}]

    card = judged(never_struck, expect={"wasted_gpu_hours": {"max_percent": 90, "max_percent_by_faults": 90}})
    told = {line.name: (line.verdict, line.reason) for line in card.expectations}
    assert told["wasted_gpu_hours.max_percent_by_faults"] == (Verdict.INCONCLUSIVE, "no fault struck")
    assert told["wasted_gpu_hours.max_percent"][0] is Verdict.PASS


def killed_at_the_end(logs: Logs, restored: int, last: int) -> None:
    """The last step is done and its checkpoint is not: rank 1 is killed, and the job starts once more."""
    end = logs.harness[-1]["mono_ns"]
    for line in logs.harness:
        line["mono_ns"] += 10**10 * (line.get("event") in ("process.exit", "node.released", "run.finished"))
    quiet_fault(logs, last_step(logs) + 10, kind="rank_kill", kills=True)
    for rank in (0, 1):
        before = logs.trainers(rank=rank)[0]
        remove(before, lambda line: line.get("event") == "exiting" or (line.get("step") == 40 and "path" in line))
        begin, stamp = end + 5 * 10**8 + rank, {"wall_ns": before[0]["wall_ns"]}
        header = before[0] | clocks(before[0], begin - before[0]["mono_ns"]) | {"pid": 77 + rank}
        joined = stamp | {"event": "rendezvous", "world_size": 2, "mono_ns": begin + 1}
        came = stamp | {"event": "restored", "step": restored, "source": "x", "mono_ns": begin + 2}
        again = [header, joined, came]
        for line in steps(before, restored + 1, last):
            begin += 10**7
            again.append(line | {"begin_ns": begin - 10**6, "mono_ns": begin})
        logs[f"trainer-again-{rank}"] = [*again, stamp | {"event": "exiting", "code": 0, "mono_ns": begin + 10}]


@pytest.mark.parametrize(("restored", "last"), [(30, 35), (30, 30), (0, 0), (30, 40)])
def test_a_job_that_went_back_and_ended_there_is_not_done(restored: int, last: int) -> None:
    card = judged(lambda logs: killed_at_the_end(logs, restored, last), expect=EXACT, outages=[])
    text = f"reached step 40 of 40, but went back afterwards: it ended with the state of step {last}"
    assert_verdict(card, Verdict.FAIL if last < 40 else Verdict.PASS)
    assert (text in " ".join(card.reasons)) is (last < 40)


def begins_from_scratch_with_a_reason(logs: Logs) -> None:
    starts_from_scratch(logs)
    change(logs.all("restored"), fallback=[{"source": "checkpoints/step-10", "reason": "KeyError: 'optimizer'"}])


def ends_well_in_the_middle(logs: Logs) -> None:
    ended = (line for lines in logs.values() for line in lines if line.get("event") in ("exiting", "worker.exit"))
    change((line for line in ended if line["code"] == 1), code=0)


def ends_well_while_the_other_goes_on(logs: Logs) -> None:
    logs.plan["faults"] = []
    remove(logs.harness, lambda line: line.get("event", "").startswith("fault."))
    remove(logs.harness, lambda line: line.get("event") == "node.released" and line["node"] == "node1")
    change((line for line in logs.harness if line.get("event") == "process.exit"), code=0)


def two_nodes_were_meant(logs: Logs) -> None:
    logs.plan["faults"][0]["targets"] = [{"node_index": 0, "rank": None}, {"node_index": 1, "rank": None}]


def the_node_was_another_one(logs: Logs) -> None:
    quiet_fault(logs, last_step(logs) - 10**9, targets=[{"node": "node0", "incarnation": 2, "rank": None}])


def never_undone(logs: Logs) -> None:
    logs.plan["faults"].append({"id": "quiet", "parameters": {"duration": "1s"}})
    quiet_fault(logs, last_step(logs) - 10**9)
    remove(logs.harness, lambda line: line.get("event") == "fault.healed")


def is_not_read_to_its_end(logs: Logs) -> None:
    failed = {"event": "reader.failed", "path": "out/a.log", "error": "too long"}
    logs.harness.insert(-1, failed | clocks(logs.harness[-1]))


def given_back_before_it_came(logs: Logs) -> None:
    released = logs.told("node.released")
    released |= clocks(released, 1 - released["mono_ns"])


@pytest.mark.parametrize(("outcome", "known"), [("completed", False), ("interrupted", True)])
def test_steps_after_the_harness_ended_the_job_are_no_gap_of_the_ledger(outcome: str, known: bool) -> None:
    def given_back_early(logs: Logs) -> None:
        at = min(line["mono_ns"] for line in logs.steps(40, 40)) - 10**9
        for released in (line for line in logs.harness if line.get("event") == "node.released"):
            released |= clocks(released, at - released["mono_ns"])
        logs.told("run.finished")["outcome"] = outcome

    card = judged(given_back_early, outages=[])
    assert ("after the node was given back: the ledger is incomplete" in " ".join(card.reasons)) is not known


def each_fifth_step(logs: Logs) -> None:
    logs.lose("step", step=[step for step in range(1000) if step % 5])


def never_given_back(logs: Logs) -> None:
    """The line that says so is lost: node 1 was not kept to the end, and nobody says that it left GPUs idle."""
    lost = {"event": "node.released", "node": "node1", "incarnation": 1}
    remove(logs.harness, lambda line: lost.items() <= line.items())


def test_steps_that_are_told_now_and_then_are_rolled_back_all_the_same() -> None:
    card = verdict(simulate(JOB, KILL, seed=5), each_fifth_step, {"metrics": {"steps_rolled_back_max": 0}})
    assert card.metrics["steps_rolled_back"] == 1, "step 15 of those that were told"
    assert card.verdict is Verdict.FAIL


def never_takes_part(logs: Logs) -> None:
    for name in [name for name, lines in logs.items() if lines[0].get("rank") == 1]:
        del logs[name]
    change((line for line in logs.trainers(rank=0)[0] if "world_size" in line), world_size=1)


def one_is_a_spare(logs: Logs) -> None:
    logs.plan["workload"]["max_nodes"] = 1


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
    by_a_command(logs)
    for lines in logs.values():
        remove(lines, lambda line: line.get("event") in ("worker.exit", "exiting"))


@pytest.mark.parametrize("agents", [True, False])
@pytest.mark.parametrize("kind", ["rank", "node", "notice", "shrink"])
def test_those_that_a_fault_took_may_vanish_without_a_word(kind: str, agents: bool) -> None:
    card = verdict(simulate(replace(JOB, agents=agents), [Outage(17, kind, victim=1)], seed=5), untold)
    assert (card.verdict, card.metrics["deaths_unexplained"]) == (Verdict.PASS, 0), card.reasons


def loss_from(first: int, to: Callable[[float], object], every: int = 1) -> Bend:
    return lambda logs: change(
        (line for line in logs.steps(first) if line["step"] % every == 0), loss=lambda line: to(line["loss"])
    )


@pytest.mark.parametrize("value", ["nan", "inf", None])
def test_two_losses_that_are_both_no_number_are_not_the_same_loss(value: object) -> None:
    diverged = loss_from(15, lambda loss: value)
    card = verdict(simulate(JOB, KILL, seed=5), diverged, EXACT, bent_fault_free(diverged))
    assert_verdict(card, Verdict.INCONCLUSIVE)
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
    hole: Bend = lambda logs: change(logs.steps(25, 25, rank=rank), **{name: None})  # noqa: E731
    card = verdict(simulate(JOB, KILL, seed=5), hole, EXACT)
    assert len(card.reasons) == 1
    assert_verdict(card, Verdict.INCONCLUSIVE, f"rank {rank} does not tell its", "at step 25")
    assert_verdict(verdict(simulate(JOB, KILL, seed=5), expect=EXACT, fault_free=bent_fault_free(hole)), Verdict.PASS)


def test_calibration_runs_that_went_astray_draw_no_band() -> None:
    astray = bent_fault_free(loss_from(12, lambda loss: loss + 50), seed=3)
    away = loss_from(20, lambda loss: loss + 50)
    card = verdict(simulate(JOB, KILL, seed=5), away, ENVELOPE, calibration=[astray])
    assert_verdict(card, Verdict.INCONCLUSIVE, first="give no band")


@pytest.mark.parametrize(
    ("telling", "first"),
    [
        (lambda logs: change(logs.steps(rank=1), "loss", "grad_norm", "lr", "digest"), 12),
        (lambda logs: change(logs.steps(rank=0), "loss"), 12),
        (lambda logs: change(logs.steps(rank=1), loss=lambda line: line["loss"] + 0.01), 12),
        (lambda logs: change((line for line in logs.steps() if line["step"] % 7), "loss"), 14),
    ],
    ids=["only rank 0", "only rank 1", "each its own", "seldom"],
)
def test_whoever_tells_a_loss_is_compared_with_the_same_rank_of_the_fault_free_run(telling: Bend, first: int) -> None:
    def drifts(logs: Logs) -> None:
        change((line for line in logs.steps(12) if "loss" in line), loss=lambda line: line["loss"] + 1e-6)

    history, fault_free = simulate(JOB, KILL, seed=5), bent_fault_free(telling)
    assert_verdict(verdict(history, telling, EXACT, fault_free), Verdict.PASS)
    card = verdict(history, together(telling, drifts), EXACT, fault_free)
    assert f"at step {first} loss" in " ".join(card.reasons)


def test_a_trainer_that_tells_each_fifth_step_did_not_skip_the_others() -> None:
    history, fault_free = simulate(JOB, KILL, seed=5), bent_fault_free(each_fifth_step)
    assert_verdict(verdict(history, each_fifth_step, EXACT, fault_free), Verdict.PASS)
    lost = together(each_fifth_step, lambda logs: logs.lose("step", step=[25]))
    card = verdict(history, lost, EXACT, fault_free)
    assert "step 25: never done in the surviving history" in card.reasons[0]


def test_a_smaller_batch_is_another_batch_though_none_of_its_samples_is_skipped() -> None:
    def half(logs: Logs) -> None:
        for lines in logs.trainers():
            first = steps(lines)[0]["first"]
            for number, line in enumerate(steps(lines)):
                del line["digest"]
                if lines[0]["world_size"] == 1:
                    line |= {"first": first + 8 * number, "count": 8}

    job, alone = replace(JOB, steps=60), replace(JOB, nodes=1, steps=60)
    history = simulate(job, [Outage(25, "shrink", victim=1)], seed=2)
    card = verdict(history, half, ENVELOPE, calibration=[fault_free_of(alone)])
    assert_verdict(card, Verdict.FAIL, first="consumed other samples than the fault-free run, first at step 21")


def test_ranks_without_a_step_do_not_differ_from_anything() -> None:
    """The fault-free run went on with a checkpoint of another run, and was over at once."""
    empty = bent_fault_free(lambda logs: logs.lose("step")).steps
    assert ranks.off_the_fault_free_run(empty, empty, "loss", 0.0) is None


def test_a_job_that_never_gets_past_a_damaged_checkpoint_says_so() -> None:
    def bend(logs: Logs) -> None:
        logs.told("fault.injected")["spoils"] = True
        remove(logs.trainers(life=-1)[0], lambda line: line.get("event") == "restored")
        logs.lose("restored", step=range(1, 1000))
        logs.told("run.finished").update(outcome="failed", reason="boom")

    reasons = " ".join(judged(bend, expect=EXACT).reasons)
    assert "boom; it restored nothing after `" in reasons and "had damaged a checkpoint" in reasons


@pytest.mark.parametrize("newest", [False, True])
def test_a_save_of_which_nobody_told_the_end_may_be_the_one_that_was_restored_or_better(newest: bool) -> None:
    """Step 10 was saved and step 20 was begun, in a job that commits before its next step: a line is lost."""

    def bend(logs: Logs) -> None:
        lines = logs.trainers(rank=0, life=0)[0]
        begun, saved = (line for line in lines if line.get("event") in SAVES)
        if newest:
            done = steps(lines)[-3]
            lines.insert(lines.index(done) + 1, begun | clocks(done, 1) | {"step": done["step"]})
        else:
            lines.remove(saved)

    card = judged(bend)
    assert card.verdict is Verdict.INCONCLUSIVE
    expected = f"rank 0 never reported whether its checkpoint of step {15 if newest else 10} was committed"
    assert card.reasons[0] == f"{expected}, and the job restarted from step 10 after it"


@pytest.mark.parametrize(("seconds", "proven"), [(2, Verdict.PASS), (40, Verdict.INCONCLUSIVE)])
@pytest.mark.parametrize("step", [5, 30])
def test_a_job_that_stands_still_without_a_fault_proves_nothing(step: int, seconds: int, proven: Verdict) -> None:
    def bend(logs: Logs) -> None:
        done = max(line["mono_ns"] for lines in logs.trainers() for line in steps(lines, step, step))
        for lines in logs.values():
            for line in lines:
                late = seconds * 10**9 if line["mono_ns"] > done else 0
                line |= {"mono_ns": line["mono_ns"] + late, "wall_ns": line["wall_ns"] + late}
                if line.get("begin_ns", 0) > done + 10**7:  # the step that stands still has begun
                    line["begin_ns"] += late

    card = verdict(simulate(JOB, KILL, seed=5), bend)
    assert_verdict(card, proven, first="the job stood still for 40.0" if proven is Verdict.INCONCLUSIVE else "")


def measured_too_early(logs: Logs) -> None:
    logs.told("fault.effect").update(clocks(logs.told("fault.injected"), -2 * 10**9))
    logs.put()


def given_up_and_done(logs: Logs) -> None:
    logs.harness.insert(-1, {"event": "abort", "reason": "no step"} | clocks(logs.harness[-1], -1))


def never_ends(logs: Logs) -> None:
    remove(logs.harness, lambda line: line.get("event") == "process.exit")


def failed_and_then_committed(logs: Logs) -> None:
    lines = logs.trainers(rank=0, life=0)[0]
    done = next(line for line in saves(logs) if line["step"] == 10)
    lines.insert(lines.index(done), done | {"event": "checkpoint.failed", "error": "again"} | clocks(done, -1000))


def saves_weights_alone_at_first(logs: Logs) -> None:
    """Later it saves its optimizer, too. It starts from scratch."""
    for line in saves(logs):
        late = line["step"] >= 30
        line |= {"path": f"/c/{'final' if late else 'step'}{line['step']}.pt"}
        line |= {"holds": ["model", "optimizer"] if late else ["model"]}
    restored_with(step=0, source="scratch")(logs)


def only_begins_its_saves(logs: Logs) -> None:
    by_a_command(logs)
    saved_again_at_15(logs, event="checkpoint.started")
    logs.lose("checkpoint.committed")


def restored_with(**told: Any) -> Bend:
    return lambda logs: change((line for line in logs.all("restored") if line["step"] > 0), **told)


@pytest.mark.parametrize(
    ("entered", "proven"), [(["model"], Verdict.INCONCLUSIVE), (["model", "optimizer"], Verdict.PASS)]
)
def test_a_model_without_its_optimizer_is_half_a_state(entered: list[str], proven: Verdict) -> None:
    def bend(logs: Logs) -> None:
        restored_with(entered=entered)(logs)
        change(logs.steps(30), loss=lambda line: line["loss"] * (1 + 1e-9))

    roughly = {"loss_continuity": {"mode": "ulp", "max_ulp": 10_000_000}}
    assert_verdict(verdict(simulate(JOB, KILL, seed=5), bend, roughly), proven)
    assert_verdict(judged(restored_with(entered=entered), expect=EXACT), Verdict.PASS)


@pytest.mark.parametrize(("off", "first"), [(1.0, True), (1e-9, False)], ids=["other-losses", "slow"])
def test_a_state_that_was_not_restored_is_told_before_losses_that_follow_from_it(off: float, first: bool) -> None:
    def bend(logs: Logs) -> None:
        restored_with(entered=["model"])(logs)
        change(logs.steps(30), loss=lambda line: line["loss"] * (1 + off))

    roughly = {"loss_continuity": {"mode": "ulp", "max_ulp": 10_000_000}, "recovery_time": {"max": "1ms"}}
    card = verdict(simulate(JOB, KILL, seed=5), bend, roughly)
    assert_verdict(card, Verdict.FAIL)
    half = "ranks 0 and 1 restored their model, and nothing shows that their optimizer's state was restored"
    assert half in card.reasons and (card.reasons[0] == half) == first


def saved_again_at_15(logs: Logs, **told: Any) -> None:
    """Rank 0 commits another file at step 15, before the kill; the job then restores step 10."""
    for line in saves(logs):
        line |= {"path": f"/c/step{line['step']}.pt", "holds": ["model", "optimizer"]} if line["step"] < 20 else {}
    lines = logs.trainers(rank=0, life=0)[0]
    step = steps(lines, 15, 15)[0]
    lines.insert(lines.index(step) + 1, {"event": "checkpoint.committed", "step": 15} | told | clocks(step, 1))


def dumped(logs: Logs) -> None:
    """At its end, which is over the loss of its peer."""
    lines = logs.trainers(rank=0, life=0)[0]
    end = find(lines, "exiting")
    end["reason"] = "peer lost"
    commit = {"event": "checkpoint.committed", "step": steps(lines)[-1]["step"], "path": "/c/crash.pt"}
    lines.insert(lines.index(end), commit | clocks(end, -1))


NOT_THE_NEWEST = "resumed from step 10 and gave no reason"
EXPORTED = {"holds": ["model"], "path": "/c/export.pt"}
SAVED = {"holds": ["model", "optimizer"], "path": "/c/other.pt"}
PASSED_OVER = {"source": "last.pt", "fallback": [{"source": "last.pt", "reason": "damaged"}]}


@pytest.mark.parametrize(
    ("bend", "proven", "reason"),
    [
        (lambda logs: logs.harness[-1].update(dropped=3), Verdict.INCONCLUSIVE, "3 events of the harness were lost"),
        (lambda logs: logs.update(other=copy.deepcopy(logs.harness)), Verdict.INCONCLUSIVE, "2 harnesses wrote into"),
        (lambda logs: logs.harness[-1].update(outcome="splendid"), Verdict.INCONCLUSIVE, "the run ended as splendid"),
        (is_not_read_to_its_end, Verdict.INCONCLUSIVE, "out/a.log is no longer read: too long"),
        (given_back_before_it_came, Verdict.INCONCLUSIVE, "was given back before it was allocated"),
        (measured_too_early, Verdict.INVALID, "was measured 2.0"),
        (given_up_and_done, Verdict.INCONCLUSIVE, "the harness gave the job up, and yet its log says that the job was"),
        (never_ends, Verdict.INCONCLUSIVE, "how the command on node0 ended is not known"),
        (restored_with(content="a", saved="a"), Verdict.PASS, ""),
        (restored_with(**PASSED_OVER), Verdict.INCONCLUSIVE, "said it passed last.pt over, and that it restored it"),
        (failed_and_then_committed, Verdict.PASS, ""),
        (begins_from_scratch_with_a_reason, Verdict.FAIL, "from step 0 and skipped all saved checkpoints, though a"),
        (saves_weights_alone_at_first, Verdict.FAIL, "resumed from step 0"),
        (lambda logs: saved_again_at_15(logs, **EXPORTED), Verdict.PASS, ""),
        (lambda logs: saved_again_at_15(logs, **SAVED), Verdict.FAIL, NOT_THE_NEWEST),
        (lambda logs: saved_again_at_15(logs, path="/c/unknown.pt"), Verdict.FAIL, NOT_THE_NEWEST),
        (dumped, Verdict.PASS, ""),
        (only_begins_its_saves, Verdict.FAIL, f"{NOT_THE_NEWEST}, though it had saved step 15, as far as is"),
    ],
)
def test_what_follows_from_an_odd_log(bend: Bend, proven: Verdict, reason: str) -> None:
    card = judged(bend)
    assert_verdict(card, proven, reason)


CRASH, LOSS, SHRINK = ([Outage(17, kind, victim=1)] for kind in ("crash", "node", "shrink"))
DONE = "fault quiet struck after the job had done all its work"


@pytest.mark.parametrize(
    ("bend", "outages", "proven", "reason"),
    [
        (lambda logs: quiet_fault(logs, last_step(logs) + 10), [], Verdict.INVALID, DONE),
        (lambda logs: quiet_fault(logs, last_step(logs) + 10, kills=True), [], Verdict.INVALID, DONE),
        (stopped, [], Verdict.INVALID, "the run was interrupted at step 40 of 40: stopped by the user"),
        (never_takes_part, [], Verdict.INCONCLUSIVE, "node1 was allocated from start to end, but took part in no step"),
        (together(never_takes_part, one_is_a_spare), [], Verdict.INCONCLUSIVE, "no fault struck"),
        (ends_well_in_the_middle, CRASH, Verdict.INCONCLUSIVE, "with exit code 0 (no fault explains it)"),
        (ends_well_in_the_middle, KILL, Verdict.PASS, ""),  # it went with the killed one
        (ends_well_while_the_other_goes_on, SHRINK, Verdict.FAIL, "node1 left the job with exit code 0 at "),
        (two_nodes_were_meant, LOSS, Verdict.INVALID, "fault fault1 struck node1, not node0 and node1"),
        (the_node_was_another_one, LOSS, Verdict.INVALID, "fault quiet struck node0, which was not part of the job"),
        (never_undone, LOSS, Verdict.INVALID, "fault quiet was never undone; its planned duration is 1s"),
        (never_given_back, LOSS, Verdict.INCONCLUSIVE, "node1 came anew, but no event tells that it was given back"),
    ],
)
def test_what_follows_from_another_story(bend: Bend, outages: list[Outage], proven: Verdict, reason: str) -> None:
    assert_verdict(judged(bend, outages=outages), proven, first=reason)


def seen_only_by_the_harness(logs: Logs, step: int) -> None:
    seen = {"event": "checkpoint.published", "path": "c/a.pt", "step": step, "bytes": 9}
    logs.put(seen | clocks(logs.told("fault.injected"), -1000))
    logs.lose(*SAVES)


@pytest.mark.parametrize(("step", "told"), [(15, True), (10, False), (4500, False)])
def test_a_checkpoint_that_only_the_harness_saw_was_there_all_the_same(step: int, told: bool) -> None:
    card = judged(by_a_command, lambda logs: seen_only_by_the_harness(logs, step))
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
        for line in saves(logs):
            line |= {"path": f"/c/{line['step']}.pt", "tensors": "b" if line["step"] in other else "a"}

    history = simulate(JOB, KILL, seed=5)
    card = verdict(history, lambda logs: told(logs, other), EXACT, bent_fault_free(told))
    assert_verdict(card, proven, first="saved other tensors at step 30" if proven is Verdict.INCONCLUSIVE else "")


@pytest.mark.parametrize("lost", ["workload", "seed", "faults", "expect", "scenario", "abort"])
def test_a_plan_that_lost_a_part_ends_no_judge(lost: str) -> None:
    assert judged(lambda logs: logs.plan.update({lost: None}), outages=[]).verdict is not None


@pytest.mark.parametrize(("other_losses", "expected"), [(False, Verdict.FAIL), (True, Verdict.INCONCLUSIVE)])
def test_an_unplanned_end_may_be_another_one_if_other_losses_led_there(other_losses: bool, expected: Verdict) -> None:
    def goes_on(logs: Logs) -> None:
        for lines in logs.last_lives():
            last = steps(lines)[-1]
            last |= {"loss": last["loss"] * 1.01} if other_losses else {}
            lines.insert(lines.index(last) + 1, last | {"step": 41} | clocks(last, 1))

    usual = bent_fault_free(lambda logs: logs.plan.update(workload=logs.plan["workload"] | {"steps": None}))
    card = verdict(simulate(JOB, KILL, seed=5), goes_on, {}, usual)
    assert_verdict(card, expected, "the job went on to step 41; its fault-free run ended after step 40")
