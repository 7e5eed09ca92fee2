"""Is the job whole again? Each broken class beside a healthy neighbour that passes."""

import json
import pathlib
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import EXPECT, SAVES, Bend, acted_as, bent, expecting, fault_free_of, load, together, verdict
from scorecards import assert_verdict
from simulator import Job, Logs, Outage, change, clocks, find, remove, simulate
from whole import (
    drilled,
    effect_ended,
    exit_takes,
    others_take,
    saved_late,
    slower,
    stalls,
    step_end,
    stretched,
    without_saves,
)

from harness.evidence.logs import beside, part_of
from harness.evidence.usual import Pace
from harness.judge.assumption import spoilt
from harness.judge.bounds import Bounds, LastCheckpointBounds, PaceBounds, RhythmBounds, UseBounds
from harness.judge.facts.analysis import Analysis
from harness.judge.guarantees import again_no_standstill
from harness.judge.questions import whole_again
from harness.judge.questions.whole_again import _after_the_fault, _idle_steps
from harness.judge.score import Evidence, S, Scorecard, judge
from harness.judge.thresholds import WRITTEN_NS
from harness.judge.verdict import Code, Doubt, Ground, Kind, Verdict
from harness.log.planned_size import PlannedSize
from harness.timeline.timeline import Timeline
from harness.units import format_duration

JOB = Job(nodes=2, steps=80, every=10)
KILL = [Outage(17, "rank", victim=1)]
FAULT_FREE = fault_free_of(JOB)
EXACT = {"loss_continuity": {"mode": "exact"}}
ENVELOPE = {"loss_continuity": {"mode": "envelope"}}


def judged(bend: Bend, expect: dict[str, Any] | None = None, job: Job = JOB) -> Scorecard:
    return verdict(simulate(job, KILL, seed=5), bend, expect, FAULT_FREE if job == JOB else fault_free_of(job))


def reasons(card: Scorecard) -> str:
    return " · ".join(card.reasons)


def busy_host(share: float) -> Bend:
    return together(lambda logs: slower(logs, 3.0, 11, 80), lambda logs: others_take(logs, share, 11, 80))


def saves_are_foretold(logs: Logs) -> None:
    """All of them are told once, right after the first step of the new process: steps that are still to come."""
    lines = logs.trainers(rank=0)[-1]
    saves = [line for line in lines if line.get("event") in SAVES]
    remove(lines, lambda line: line in saves)
    place = lines.index(find(lines, "step"))
    lines[place + 1 : place + 1] = [save | clocks(lines[place]) for save in saves]


def begins_saves(logs: Logs, *numbers: int, ends: str = "", life: int = -1) -> None:
    """Rank 0 begins saves at these steps, too; `ends`: the event of their ends, if any."""
    lines = logs.trainers(rank=0, life=life)[0]
    for number in numbers:
        line = next(line for line in lines if line.get("step", 0) >= min(number, 79) and line.get("event") == "step")
        for event in filter(None, ("checkpoint.started", ends)):
            save = {"event": event, "step": number, "kind": "periodic", "path": f"checkpoints/step-{number}"}
            lines.insert(lines.index(line) + 1, save | {"duration_ns": 1} | clocks(line, len(event) % 18))


@pytest.mark.parametrize(
    ("bend", "expected", "reason"),
    [
        (lambda logs: slower(logs, 3.0, 11, 80), Verdict.FAIL, "its median step"),
        (busy_host(0.6), Verdict.INCONCLUSIVE, "×; other programs took 55% more of the host's CPUs then"),
        (busy_host(0.15), Verdict.FAIL, "its median step"),
        (lambda logs: stalls(logs, 1.0, every=6), Verdict.FAIL, "its median step 0.9"),
        (lambda logs: stalls(logs, 1.0, every=30), Verdict.PASS, ""),
        (lambda logs: stalls(logs, 1.0, every=10, after=1), Verdict.FAIL, "×; allowed: "),  # at each save
        (lambda logs: slower(logs, 1.25, 11, 80), Verdict.PASS, ""),
        (lambda logs: slower(logs, 2.2, 11, 80), Verdict.INCONCLUSIVE, "pace.max_slowdown"),
        (lambda logs: slower(logs, 3.0, 11, 55), Verdict.INCONCLUSIVE, "not all the time"),
        (lambda logs: slower(logs, 3.0, 11, 30), Verdict.PASS, ""),
        (lambda logs: slower(logs, 6.0, 66, 80), Verdict.INCONCLUSIVE, "× in the end; allowed for a while: "),
        (lambda logs: without_saves(logs, *range(20, 90, 10)), Verdict.FAIL, "7 in a row"),
        (lambda logs: without_saves(logs, 20, 30, 50, 60, 80), Verdict.FAIL, "2 in a row"),
        (lambda logs: without_saves(logs, 20, 40, 60, 80), Verdict.FAIL, "4 of 7 checkpoints"),
        (saves_are_foretold, Verdict.FAIL, "in a row"),
        (lambda logs: without_saves(logs, 50), Verdict.PASS, ""),
        (lambda logs: begins_saves(logs, 23, 26), Verdict.FAIL, "2 of 9 checkpoints that were due or begun, as that"),
        (lambda logs: begins_saves(logs, *range(25, 80, 10)), Verdict.FAIL, "6 of 13 checkpoints"),
        (lambda logs: begins_saves(logs, 23, 26, ends="checkpoint.failed"), Verdict.FAIL, "2 in a row"),
        (lambda logs: begins_saves(logs, 23, 26, ends="checkpoint.committed"), Verdict.PASS, ""),
        (lambda logs: begins_saves(logs, 10**9), Verdict.PASS, ""),
        (lambda logs: begins_saves(logs, 16, 17, life=0), Verdict.PASS, ""),  # the kill ended these
        (lambda logs: saved_late(logs, 50, 56), Verdict.PASS, ""),
        (lambda logs: exit_takes(logs, 600), Verdict.FAIL, "took 10 min 0 s to end after its last step"),
        (lambda logs: exit_takes(logs, 20), Verdict.PASS, ""),
    ],
)
def test_broken_and_its_healthy_neighbour(bend: Bend, expected: Verdict, reason: str) -> None:
    assert_verdict(judged(bend, EXACT), expected, reason)


@pytest.mark.parametrize(
    ("bend", "name", "wider"),
    [
        (lambda logs: slower(logs, 3.0, 11, 80), "pace", {"max_slowdown": 4}),
        (lambda logs: without_saves(logs, 20, 40, 60), "checkpoint_rhythm", {"min_percent": 40}),
        (lambda logs: exit_takes(logs, 600), "exit_time", {"max": "20m"}),
    ],
)
def test_each_can_be_widened_and_switched_off(bend: Bend, name: str, wider: dict[str, Any]) -> None:
    assert judged(bend, EXACT).verdict is Verdict.FAIL
    assert judged(bend, EXACT | {name: wider}).verdict is Verdict.PASS
    off = judged(bend, EXACT | {name: "off"})
    assert off.verdict is Verdict.PASS
    assert "switches it off" in " ".join(off.not_judged.values()) and "not judged" in off.reasons[0]


def test_a_host_that_was_as_busy_before_the_fault_accuses_nobody() -> None:
    def busy(logs: Logs) -> None:
        begin = next(logs.steps(rank=0))["mono_ns"]
        stretched(logs, begin, step_end(logs, 80), 2.5)

    card = judged(busy, EXACT)
    assert card.verdict is Verdict.PASS, card.reasons
    assert "and 2.74 × already before the first fault" in card.not_judged["pace"]


def test_pauses_that_the_fault_free_run_makes_as_well_are_no_slow_pace() -> None:
    pauses: Bend = lambda logs: stalls(logs, 1.0, every=6)  # noqa: E731
    assert_verdict(verdict(simulate(JOB, KILL, 5), pauses, EXPECT, bent(JOB, pauses)), Verdict.PASS)


SLOW = Pace(40, 160, 40, median=4, at_least=3.5, best=3, slowest=3.5, last=3.5, before=1, worst=1.1, known=True)
FAST = replace(SLOW, taken=40, median=1, at_least=0.9, best=0.8, slowest=1, last=1)


@pytest.mark.parametrize(
    ("pace", "doubt"),
    [
        (SLOW, None),
        (replace(SLOW, known=False, best=1), "pace-known"),
        (replace(SLOW, best=1.5, at_least=2), "host-idle"),
        (replace(SLOW, at_least=2.09, others=0.5), "host-idle"),
        (replace(SLOW, at_least=2.2), None),
        (replace(SLOW, worst=2.5), "host-idle"),
        (replace(SLOW, at_least=2.9, others=0.16), "host-idle"),
        (replace(SLOW, others=0.16), None),
        (replace(FAST, known=False, others=1), None),
        (replace(FAST, slowest=3.1, last=1.6), "host-idle"),
        (replace(FAST, slowest=9), None),  # it was as fast as it must be in the end
        (replace(FAST, before=0.3), "pace-known"),
        (replace(FAST, before=0.4), None),
        (replace(FAST, slowest=1.6, last=1.6, before=0.5), None),  # it would excuse a recovery that never ended, too
    ],
)
def test_why_nothing_follows_from_a_pace(pace: Pace, doubt: str | None) -> None:
    found = spoilt([Ground(Kind.DURATION, of=pace, bound=1.5)], Analysis(FAULT_FREE))
    assert (found and found.assumption) == doubt


NOW = "but 3.20 × its time before the first fault in the end, too"
FASTER = "before the first fault the job took only 0.50 × the time of its fault-free run, and 1.52 × that since"
BUSY = "1.00 × the 0 µs of the fault-free run, and 1.60 × already before the first fault"


@pytest.mark.parametrize(
    ("pace", "verdict", "bound", "why"),
    [
        (replace(FAST, slowest=1.6, last=1.6, before=0.5), Verdict.INCONCLUSIVE, "≤ 1.5 ×", NOW),
        (replace(FAST, slowest=1.6, last=1.4, median=0.7, before=0.5), Verdict.PASS, "≤ 1.5 ×", ""),
        (replace(FAST, slowest=1.6, before=0.7), Verdict.PASS, "≤ 1.5 ×", ""),
        (replace(FAST, slowest=1.6, before=1), Verdict.PASS, "≤ 1.5 ×", ""),
        (replace(FAST, median=0.75, before=0.5), Verdict.PASS, "≤ 1.5 ×", ""),
        (replace(FAST, median=0.76, before=0.5), None, "", FASTER),
        (replace(FAST, at_least=1.6, before=1.6), None, "", BUSY),
        (replace(FAST, at_least=1.5, before=1.6), Verdict.PASS, "≤ 1.5 ×", ""),  # as fast as it must be
        (replace(FAST, at_least=1.6, before=1.5), Verdict.PASS, "≤ 1.5 × of 1.50 × before the fault", ""),
        (replace(FAST, at_least=0.9, before=1.6), Verdict.PASS, "≤ 1.5 ×", ""),
    ],
)
def test_a_pace_that_does_not_fail(pace: Pace, verdict: Verdict | None, bound: str, why: str) -> None:
    """None hides behind a slow fault-free run, and none is held against a host that was busy before."""
    _, found = whole_again.pace(cast(Analysis, SimpleNamespace(pace=pace)), PaceBounds(max_slowdown=1.5))
    if isinstance(found, str):
        assert verdict is None and found.endswith(why)
        return
    [told] = found
    assert (told.verdict, told.bound) == (verdict, bound) and why in told.reason
    assert told.observed == f"1.00 ×, at least {pace.at_least:.2f} ×"
    lost = verdict is Verdict.INCONCLUSIVE
    assert (told.code, told.doubt) == ((Code.PACE_SLOW_AGAIN, Doubt.FAULT_FREE_SLOW) if lost else ("", ""))


@pytest.mark.parametrize(
    ("bounds", "name", "least", "less"),
    [
        (PaceBounds, "max_slowdown", 1, 0.99),
        (RhythmBounds, "max_missed", 0, -1),
        (UseBounds, "max_idle_steps", 1, 0),
        (LastCheckpointBounds, "max_steps_behind", 0, -1),
    ],
)
def test_a_bound_may_ask_for_as_much_as_can_be(bounds: type[Bounds], name: str, least: int, less: float) -> None:
    assert getattr(bounds(**{name: least}), name) == least
    with pytest.raises(ValueError, match=f"greater than or equal to {least}"):
        bounds(**{name: less})


@pytest.mark.parametrize(
    ("usual_s", "took_s", "told"),
    [
        ([3, 1], 15, False),
        ([3, 1], 15.01, True),  # five times the longest of any fault-free run
        ([1, 3], 15, False),
        ([0.5], 4, False),
        ([0.5], 4.01, True),
        ([], 99, False),
    ],
)
def test_a_job_stands_still_for_longer_than_any_fault_free_run(usual_s: list[float], took_s: float, told: bool) -> None:
    """Of three steps the second one takes so long."""
    end = np.array([1 * S, 2 * S, 2 * S + round(took_s * S), 3 * S + round(took_s * S)])
    rows = {"epoch": np.zeros(4, np.int64), "world_size": np.ones(4, np.int64), "step": np.arange(1, 5), "end": end}
    run = SimpleNamespace(progress=SimpleNamespace(**rows), checkpoints=[], work_changed_at=99 * S)
    usual = [SimpleNamespace(begin=np.array([0, 9]), end=np.array([round(each * S), 10])) for each in usual_s]
    evidence: Any = SimpleNamespace(run=run, usual=SimpleNamespace(times=usual), disturbed=[])
    text = f"the job stood still for {took_s:.2f} s after step 2, while no fault was at work"
    longest = f"(at most {format_duration(round(max(usual_s, default=0) * S))} in the fault-free run)"
    assert [each.words for each in again_no_standstill.breaches(evidence)] == ([f"{text} {longest}"] if told else [])
    evidence.disturbed = [(3 * S, 4 * S)]
    assert [*again_no_standstill.breaches(evidence)] == []


@pytest.mark.parametrize(
    ("begun", "ended", "due"),
    [
        (19 * S, 20 * S - WRITTEN_NS, True),
        (19 * S, 20 * S - WRITTEN_NS + 1, False),
        (20 * S - 1, 25 * S, False),
        (20 * S, 25 * S, True),  # it was begun when the other one was due, so nobody had to wait
        (None, 25 * S, True),
        (19 * S, None, True),
    ],
)
def test_no_save_is_due_while_another_one_is_written(begun: int | None, ended: int | None, due: bool) -> None:
    """Those of steps 10 and 30 are made and that of step 20 is not. Each step ends at its number, in seconds."""
    step = np.arange(1, 41)
    run: Any = SimpleNamespace(progress=SimpleNamespace(step=step, end=step * S))
    saves: Any = SimpleNamespace(steps=np.array([10, 30]), good=[SimpleNamespace(begun=begun, ended=ended)])
    made = _after_the_fault(run, saves, np.array([10, 20, 30]), [])
    assert made.tolist() == ([True, False, True] if due else [True, True])


def test_fewer_than_ten_steps_after_the_recovery_have_no_pace() -> None:
    card = verdict(simulate(replace(JOB, steps=30), KILL, seed=5), lambda logs: slower(logs, 9.0, 20, 30), EXPECT)
    assert "pace" in card.not_judged and card.verdict is Verdict.PASS, card.reasons


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2000), noise=st.sampled_from([0.0, 0.1, 0.2]), pauses=st.sampled_from([0.0, 0.04]))
def test_weather_is_never_a_lost_pace(seed: int, noise: float, pauses: float) -> None:
    card = verdict(simulate(replace(JOB, noise=noise, pauses=pauses), KILL, seed), fault_free=FAULT_FREE)
    assert card.verdict is Verdict.PASS, card.reasons


# GPUs in use


def never_used(logs: Logs) -> None:
    """The lost node is replaced at once, as the harness says; the job goes on with one rank to its end."""
    gone = logs.told("node.released")
    logs.put({"event": "node.allocated", "node": gone["node"], "incarnation": 2, "gpus": 1} | clocks(gone, 10**8))


def shrunk(*bends: Bend, steps_: int = 200, **expect: Any) -> Scorecard:
    job = Job(nodes=2, steps=steps_, every=10)
    history = simulate(job, [Outage(25, "shrink", victim=1)], 4)
    calibration = [fault_free_of(replace(job, nodes=1), seed) for seed in (1, 2)]
    return verdict(history, together(*bends), ENVELOPE | expect, calibration=calibration)


@pytest.mark.parametrize(
    ("fault_free", "ready", "idle"),
    [
        ([], [0, 0], 3),  # a GPU for each rank
        ([(2, 0)], [0, 0], 3),
        ([(2, 2), (4, 2)], [0, 0], 0),  # or as many as any fault-free run has
        ([(2, 2)], [0, 20], 2),
        ([(2, 2)], [1, 21], 1),
        ([(2, 2)], [0, 31], 0),
        ([(2, 2)], [0, 0, 0], 4),
    ],
)
def test_steps_in_a_row_without_some_gpu(fault_free: list[tuple[int, int]], ready: list[int], idle: int) -> None:
    """Steps begin at 0, 10, 20 and 30; two ranks do the first one, and one the others."""
    progress = replace(FAULT_FREE.progress, **{f.name: np.zeros(4, np.int64) for f in fields(FAULT_FREE.progress)})
    progress = replace(progress, begin=np.array([0, 10, 20, 30]), world_size=np.array([2, 1, 1, 1]))
    others = [SimpleNamespace(slots=[0] * gpus, epochs=[SimpleNamespace(size=size)]) for gpus, size in fault_free]
    others.append(SimpleNamespace(slots=[0] * 9, epochs=[]))
    run = SimpleNamespace(progress=progress, planned_size=PlannedSize.of({}))
    evidence: Any = SimpleNamespace(run=run, fault_free_runs=others)
    assert _idle_steps(evidence, ready) == idle


def test_a_replacement_that_idles_for_good_is_found_unless_it_may_have_come_too_late() -> None:
    assert shrunk().verdict is Verdict.PASS
    assert_verdict(shrunk(never_used), Verdict.FAIL, "left GPUs idle in its last", "node1")
    assert shrunk(never_used, gpus_in_use={"max_idle_steps": 500}).verdict is Verdict.PASS
    a_spare = shrunk(never_used, lambda logs: logs.plan["workload"].update(max_nodes=1))
    assert not any("left GPUs idle" in reason for reason in a_spare.reasons), a_spare.reasons
    card = shrunk(never_used, steps_=60)
    assert card.verdict is Verdict.PASS, card.reasons
    assert "may have come too late" in card.not_judged["GPUs in use"]
    card = shrunk(never_used, lambda logs: logs.plan["faults"][0].update(parameters={"replacement": "none"}))
    assert "brings no replacement" in card.not_judged["GPUs in use"]
    assert card.reasons == ["fault fault1 was to bring no replacement, and node1 came back"]


@pytest.mark.parametrize("spares", [0, 1])
def test_a_spare_that_idles_after_a_node_was_lost_for_good_is_found(spares: int) -> None:
    def lost_for_good(logs: Logs) -> None:
        logs.plan["faults"][0].update(parameters={"replacement": "none"})
        logs.plan["workload"].update(nodes=2 + spares, max_nodes=2, min_nodes=1)
        logs.put(*[logs.told("node.allocated") | {"node": "node2"}] * spares)

    card = shrunk(lost_for_good)
    assert_verdict(card, Verdict.FAIL if spares else Verdict.PASS, "left GPUs idle in its last" * spares)
    assert ("GPUs in use" in card.not_judged) is not bool(spares)


def test_a_replacement_that_a_slow_engine_started_late_is_not_missed() -> None:
    def started_late(logs: Logs) -> None:
        stamp = clocks(logs.harness[-1], -(10**9))
        header = stamp | {"writer": "agent-node1.2-7", "role": "agent", "node": "node1", "incarnation": 2, "pid": 7}
        usual = next(lines[0] for name, lines in logs.items() if name.startswith("agent"))
        logs["agent-node1.2-7"] = [usual | header, stamp | {"event": "agent.started"}]

    card = shrunk(never_used, started_late)
    assert not any("left GPUs idle" in reason for reason in card.reasons), card.reasons
    assert "may have come too late" in card.not_judged["GPUs in use"]


def test_a_node_that_was_excluded_with_a_word_is_not_missed() -> None:
    def excluded(logs: Logs) -> None:
        stamp = clocks(logs.harness[-1], -(10**9))
        header = logs.trainers(rank=0, life=-1)[0][0] | stamp | {"node": "node1", "incarnation": 2, "pid": 77}
        logs["trainer-node1.2-0-77"] = [header, stamp | {"event": "notice", "source": "straggler"}]

    assert not any("left GPUs idle" in reason for reason in shrunk(never_used, excluded).reasons)


# Last checkpoint


def drill_card(drill: Timeline | str, bend: Bend = lambda logs: None, **finished: Any) -> Scorecard:
    history = simulate(JOB, KILL, seed=5)
    logs = expecting(history.logs(), EXPECT)
    bend(logs)
    if finished:
        drilled(logs, **finished)
    return judge(Evidence(load(history, logs), FAULT_FREE, drill=drill), "drilled")


def drill_log(*told: tuple[int | None, str, int | None], world: int = 2) -> Timeline:
    """A drill of so many ranks. Of each: the step that it restored, from where, and the first step that it did."""
    known = sorted(FAULT_FREE.processes, key=lambda process: process.rank)
    known = [replace(process, world_size=world, restored=1) for process in known]
    workers = [
        replace(known[rank % 2], rank=rank, restored_step=step, source=source, first_step=first)
        for rank, (step, source, first) in enumerate(told)
    ]

    def over(logs: Logs) -> None:
        logs.lose("step", *SAVES)
        logs.harness[-1] |= {"outcome": "interrupted", "reason": "enough is known"}

    return replace(bent(JOB, over), processes=workers)


def drill_took(**told: Any) -> Timeline:
    """Both ranks restored the save of step 80, and rank 1 told more of it."""
    drill = restored(80, 80)
    took = [{"at": 1, "step": 80} | more for more in ({}, told)]
    return replace(drill, processes=[replace(p, took=each) for p, each in zip(drill.processes, took, strict=True)])


def then_told(**more: Any) -> Timeline:
    """Both ranks restored the save of step 80; rank 1 told `more` of that, or another restore."""
    first, second = restored(80, 80).processes
    told = {"event": "restored", "at": second.last_seen, "step": 80, "source": "c/step-80"}
    return replace(BOTH, processes=[first, replace(second, idle=(told, told | more))])


def restored(*steps: int | None, world: int = 2) -> Timeline:
    return drill_log(*((step, "", None) for step in steps), world=world)


BOTH = restored(80, 80)
RESTORED = {"outcome": "restored", "restored_step": 80}


@pytest.mark.parametrize(
    ("drill", "finished", "expected", "reason"),
    [
        (BOTH, RESTORED, Verdict.PASS, ""),
        (restored(60), RESTORED | {"restored_step": 60}, Verdict.FAIL, "took the checkpoint of step 60"),
        ("", {"outcome": "scratch"}, Verdict.FAIL, "started from scratch"),
        ("", {"outcome": "failed", "reason": "it ended with 1"}, Verdict.FAIL, "ended before it had restored"),
        ("", {"outcome": "timeout"}, Verdict.INCONCLUSIVE, "it did not end in time"),
        ("", {"outcome": "error"}, Verdict.INCONCLUSIVE, "it could not be made"),
        ("", RESTORED | {"restored_step": None}, Verdict.INCONCLUSIVE, "has no end in the log"),
        ("", RESTORED, Verdict.INCONCLUSIVE, "left no log"),
        ("x.jsonl:3", RESTORED, Verdict.INCONCLUSIVE, "x.jsonl:3"),
        (restored(), RESTORED, Verdict.INCONCLUSIVE, "only 0 of its 2 ranks say"),
        (restored(80, 70), RESTORED, Verdict.INCONCLUSIVE, "went on from the save of step 70, not from the save of"),
    ],
)
def test_the_restore_drill(drill: Timeline | str, finished: dict[str, Any], expected: Verdict, reason: str) -> None:
    card = drill_card(drill, **finished)
    assert card.verdict is expected, card.reasons
    assert reason in reasons(card) and "last checkpoint" not in card.not_judged


def test_without_a_drill_the_log_may_say_that_the_last_save_is_lost() -> None:
    def last_fails(logs: Logs) -> None:
        for line in [line for line in logs.all("checkpoint.committed") if line["step"] == 80]:
            line.update(event="checkpoint.failed", error="disk full")

    assert "last checkpoint" in drill_card("").not_judged
    for bend, reason in (
        (last_fails, "of step 80, failed"),
        (lambda logs: logs.lose("checkpoint.committed", step=[80]), "of step 80, was started but never committed"),
    ):
        assert_verdict(drill_card("", bend), Verdict.FAIL, reason)


@pytest.mark.parametrize(("ended_with_1", "accused"), [(0, True), (1, False)])
def test_who_began_the_last_save_and_ended_badly_may_not_have_come_to_its_end(ended_with_1: int, accused: bool) -> None:
    """Rank 1 began it, and rank 0 those before it."""

    def bend(logs: Logs) -> None:
        begun = [*logs.all("checkpoint.started")][-1]
        logs.lose(*SAVES, step=[80])
        logs.last_lives()[1].insert(-1, begun)
        logs.last_lives()[ended_with_1][-1]["code"] = 1

    text = "the last checkpoint, of step 80, was started but never committed"
    assert (text in drill_card("", bend).reasons) is accused


def test_a_rank_that_begins_a_save_after_another_one_committed_it_is_not_accused() -> None:
    """As far as the clocks of two hosts tell."""

    def bend(logs: Logs) -> None:
        begun, committed = ([*logs.all(f"checkpoint.{what}")][-1] for what in ("started", "committed"))
        logs.last_lives()[1].insert(-1, begun | clocks(committed, 10**6))

    assert_verdict(drill_card("", bend), Verdict.PASS)


def test_the_drill_s_log_is_read_whatever_it_holds(tmp_path: pathlib.Path) -> None:
    run, events = load(simulate(JOB, (), seed=5)), tmp_path / "drill" / "events"
    assert beside(run, tmp_path).drill == ""
    events.mkdir(parents=True)
    assert "empty" in str(beside(run, tmp_path).drill)
    lines = [{"schema": 1, "role": "trainer", "rank": 0, "world_size": 1}, {"event": "restored", "step": 7}]
    told = [json.dumps(line | {"wall_ns": 1, "mono_ns": 1}) + "\n" for line in lines]
    (events / "a.jsonl").write_text("".join(told))
    drill = beside(run, tmp_path).drill
    assert isinstance(drill, Timeline)
    assert [(each.rank, each.restored_step, each.world_size) for each in drill.processes] == [(0, 7, 1)]
    (events / "b.jsonl").write_text("nonsense\n")
    assert "b.jsonl:1" in str(beside(run, tmp_path).drill)


# End of effects


def gentle(logs: Logs) -> None:
    acted_as(logs, "hang", kills=False, stops=True, spoils=False)


@pytest.mark.parametrize(("ok", "expected"), [(True, Verdict.PASS), (False, Verdict.INVALID)])
def test_a_heal_that_did_not_heal_is_no_pass(ok: bool, expected: Verdict) -> None:
    card = judged(together(gentle, lambda logs: effect_ended(logs, ok)))
    assert card.verdict is expected, card.reasons
    assert "end of the faults' effects" not in card.not_judged
    unmeasured = judged(gentle)
    assert unmeasured.verdict is Verdict.PASS, unmeasured.reasons
    assert "fault1" in unmeasured.not_judged["end of the faults' effects"]


def test_a_part_of_a_run_keeps_the_drill() -> None:
    run, drill = fault_free_of(Job(nodes=2, steps=30)), restored(30, 30)
    assert part_of(Evidence(run, run, drill=drill)).drill is drill


@pytest.mark.parametrize(
    ("drill", "reason"),
    [
        (restored(80), "only 1 of its 2 ranks"),
        (restored(80, world=1), "only 1 of its 2 ranks"),
        (restored(80, 80, world=3), "were a world of 3, not of 2"),
        (restored(90, 90), "did not report as committed"),
        (drill_log((80, "", None), (80, "/away/step-00000080", None)), "rank 1 restored /away/step-00000080, which is"),
        (drill_took(content="other", saved="committed"), "rank 1 restored a state, which no longer holds what was"),
        (restored(80, None), "only 1 of its 2 ranks say that they restored step 80"),
        (then_told(step=0, source="scratch"), "only 1 of its 2 ranks say that they restored step 80"),
        (then_told(fallback=[{"path": "c/step-80"}]), "rank 1 said it passed c/step-80 over, and that it restored it"),
        (drill_log((80, "", None), (None, "", 62)), "only 1 of its 2 ranks say that they restored step 80"),
    ],
)
def test_a_drill_proves_a_committed_checkpoint_on_every_rank(drill: Timeline, reason: str) -> None:
    step = drill.processes[0].restored_step
    assert_verdict(drill_card(drill, outcome="restored", restored_step=step), Verdict.INCONCLUSIVE, reason)


@pytest.mark.parametrize("restarts_took", [["model"], ["model", "optimizer"]])
@pytest.mark.parametrize("drill_took_in", [["model"], ["model", "optimizer"]])
def test_a_drill_restores_as_much_as_the_restarts_did(restarts_took: list[str], drill_took_in: list[str]) -> None:
    def bend(logs: Logs) -> None:
        change(logs.all("restored"), entered=restarts_took)

    card = drill_card(drill_took(entered=drill_took_in), bend, **RESTORED)
    alone = [text for text in card.reasons if "rank 1 or a restart of the run restored its model alone" in text]
    assert bool(alone) is (restarts_took != drill_took_in), card.reasons


@pytest.mark.parametrize(
    "drill",
    [
        drill_log((80, "step-00000080", None), (80, "peer", None)),  # what names no place proves nothing
        drill_log((80, "/runs/x/drill/checkpoints/step-00000080", None), (80, "", None)),
        drill_log((None, "", 81), (None, "", 81)),  # seen by their first steps
        then_told(entered=["optimizer"], fallback=[{"path": "other/step-80"}]),  # one save in two goes
    ],
)
def test_a_drill_that_tells_less_is_believed_where_nothing_speaks_against_it(drill: Timeline) -> None:
    assert_verdict(drill_card(drill, outcome="restored", restored_step=80), Verdict.PASS)


def test_a_drill_that_was_not_made_or_told_nothing_leaves_it_unjudged() -> None:
    card = drill_card("", lambda logs: logs.plan["workload"].update(restore_drill=False))
    assert card.verdict is Verdict.PASS and card.not_judged["last checkpoint"] == "restore_drill is off", card.reasons
    card = drill_card("", outcome="untold", reason="the commands ended with 0")
    assert card.verdict is Verdict.PASS and "the commands ended with 0" in card.not_judged["last checkpoint"]


@pytest.mark.parametrize(("share", "expected"), [(0.7, Verdict.INCONCLUSIVE), (0.3, Verdict.PASS)])
def test_a_lost_pace_does_not_hide_behind_a_fault_free_run_on_a_busy_host(share: float, expected: Verdict) -> None:
    """It took four times as long there; after the recovery the steps take 2.3 times as long as before the fault."""
    usual = fault_free_of(replace(JOB, step_ms=4 * JOB.step_ms))
    usual = replace(usual, host_load=[{"others": share, "at": usual.begin}])
    late = simulate(JOB, [Outage(37, "rank", victim=1)], seed=5)
    card = verdict(late, lambda logs: slower(logs, 2.3, 31, 80), None, usual)
    assert card.verdict is expected, card.reasons
    assert ("before its first fault" in reasons(card)) is (expected is Verdict.INCONCLUSIVE), card.reasons


def test_a_job_that_was_faster_is_never_called_slower() -> None:
    """Each ratio says beside what it is."""
    card = judged(lambda logs: slower(logs, 6.0, 66, 80), EXACT)
    assert "1.83 × the 3.07 s of the fault-free run, but 3.61 × for a while, and 3.61 × in the end" in card.reasons[0]
    assert not any("slower" in reason for reason in card.reasons)


@pytest.mark.parametrize(("since", "expected"), [(31, Verdict.PASS), (66, Verdict.INCONCLUSIVE)])
def test_a_slow_stretch_that_is_over_is_a_remark(since: int, expected: Verdict) -> None:
    """A busy host makes one; a recovery that left the job slow does not end."""
    card = judged(lambda logs: slower(logs, 4.5 if since < 60 else 6.0, since, since + 14), EXACT)
    told = next(line for line in card.expectations if line.name == "pace.max_slowdown")
    assert (card.verdict, told.verdict) == (expected, expected), card.reasons
    assert told.observed.endswith(" × now and then") is (expected is Verdict.PASS), told.observed
