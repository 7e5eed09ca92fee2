"""Logs that hold hardly anything: what is not told is taken as the page says, and nothing is made up."""

import dataclasses
import itertools
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timeline.test_phases_edge import Logs, S, phases

from harness.evidence import ledger
from harness.evidence.usual import Slowed, Usual
from harness.judge.bounds import WasteBounds
from harness.judge.facts.analysis import Analysis
from harness.judge.score import Evidence, judge, questions
from harness.judge.verdict import Code, Verdict, unknown
from harness.log.consequences import May
from harness.report import figures as figures_of
from harness.timeline import timeline
from harness.timeline.lineage import cells
from harness.timeline.phases import Event, Mark


@pytest.fixture
def logs(tmp_path: pathlib.Path) -> Logs:
    return Logs(tmp_path)


def accounts(run: timeline.Timeline) -> dict[str, float]:
    booked = ledger.settle(run, {}, [])
    return {name: amount / S for name, amount in booked.accounts.items() if amount}


def test_a_run_in_which_nobody_started(logs: Logs) -> None:
    logs.node(0, 1, 0)
    logs.node(1, 1, 2)
    run = logs.finish(10)
    assert phases(run) == [("startup", 0, 10)]
    assert accounts(run) == {"startup": 18}
    assert (run.reached_step, run.finished, run.outcome, len(run.steps), run.epochs) == (0, False, "completed", 0, [])
    assert Slowed(run, Usual([])).degraded == [] and Usual([run]).bands == {}
    card = judge(Evidence(run, run), "x")
    assert card.verdict is Verdict.INCONCLUSIVE
    assert card.reasons[0] == "the log holds no step of the job, so its progress is not known"
    assert card.metrics["job_success"] is False and figures_of.metrics(card)["samples_per_second"] is None


def test_without_a_gpu_nothing_can_be_said_of_waste(logs: Logs) -> None:
    logs.steps(logs.worker(0, 1, 1, 2, 3), 1, 3, 3)
    run = logs.finish(10)
    told = questions()["wasted_gpu_hours"].score(Analysis(run), WasteBounds(max_percent=50))
    nothing = unknown(Code.LEDGER_NO_GPU, "wasted_gpu_hours: no allocated GPU is in the log")
    assert (list(told.expectations), list(told.reasons), told.summary) == ([], [nothing], "")
    assert not questions()["wasted_gpu_hours"].score(Analysis(run), None).reasons, "nobody asked"


def test_of_a_job_of_unknown_size_no_one_knows_how_well_it_used_its_gpus(logs: Logs) -> None:
    logs.node(0, 1, 0)
    run = logs.finish(10)
    for workload, ettr in (({}, None), ({"nodes": 2}, 0.0), ({"ranks_per_node": 2}, None)):
        nameless = dataclasses.replace(run, plan={"workload": workload})
        assert figures_of.scores(judge(Evidence(nameless), "x"))["wasted_gpu_hours"]["ettr"] == ettr


@pytest.mark.parametrize(
    ("kills", "injected", "healed", "gone", "belongs"),
    [
        (True, 50, None, None, True),  # a kill before the last complete step: the job felt it later
        (False, 99, None, None, True),
        (False, 99, 100, None, True),
        (False, 99, 99, None, False),  # healed before the job stopped
        (False, 100, 100, None, True),
        (False, 200, None, None, True),
        (False, 201, None, None, False),  # after all was regained
        (True, 150, None, 160, True),
        (True, 150, None, 200, True),
        (True, 150, None, 201, False),  # had its notice, and is taken in another episode
        (True, 150, None, 150, True),  # taken at once
        (True, 201, None, 201, False),
        (True, 150, None, 149, True),  # that was the end of something else
    ],
)
def test_episode_of_a_fault(kills: bool, injected: int, healed: int | None, gone: int | None, belongs: bool) -> None:
    """Progress stopped at 100 and was regained at 200."""
    target = {"node": "a", "incarnation": 1, "rank": None}
    may = frozenset({May.KILL} if kills else ())
    fault = timeline.FaultRecord("f", "kind", (target,), injected, (), None, healed, None, may=may)
    ends = {} if gone is None else {("a", 1): gone}
    assert timeline._belongs(fault, 100, 200, ends) is belongs


def test_a_log_of_the_harness_alone(logs: Logs) -> None:
    run = logs.finish(0)
    assert (run.begin, run.end, run.slots, run.segments) == (0, 0, [], [])
    assert judge(Evidence(run), "x").scores["wasted_gpu_hours"]["percent"] == 0.0


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_trainer_that_tells_of_nothing_but_its_steps(tmp_path: pathlib.Path, nodes: int) -> None:
    """No rank, no node, no begin of a step, no launcher: one process on the host that wrote."""
    logs = Logs(tmp_path, nodes)
    logs.log("harness", 0, "node.allocated", node="h", incarnation=1)
    name = logs.open("trainer", "trainer", 1)
    for step in range(1, 7):
        logs.log(name, 2 + step, "step", step=step)
    run = logs.finish(9)
    [process] = run.processes
    assert (process.rank, process.local_rank, process.node, process.incarnation, process.pid) == (0, 0, "h", 1, 0)
    assert (process.world_size, process.started, process.exited, process.exit_code) == (nodes, S, None, None)
    steps = run.steps
    assert steps.begin.tolist() == [3 * S, *(n * S for n in range(3, 8))], "each began when the one before ended"
    assert (steps.first.tolist(), steps.count.tolist(), steps.digest.tolist()) == ([-1] * 6, [-1] * 6, [0] * 6)
    assert (steps.data_ns.sum(), steps.checkpoint_ns.sum(), steps.sync_ns.sum()) == (0, 0, 0)
    assert run.progress.step.tolist() == [1, 2, 3, 4, 5, 6] and run.finished
    assert [epoch.unheard for epoch in run.epochs] == [nodes - 1]
    told = "1 of 2 ranks left no log of steps 1 to 6: what they did is not known"
    assert (told in judge(Evidence(run), "x").reasons) is (nodes == 2)
    assert told not in judge(Evidence(run, run), "x").reasons, "without a fault it is the same"
    if nodes == 1:
        assert accounts(run) == {"startup": 1, "rendezvous": 2, "productive": 5, "teardown": 1}


def test_exits_are_matched_by_place_where_there_is_no_process_id(logs: Logs) -> None:
    for node in (0, 1):
        logs.node(node, 1, 0)
        agent = logs.agent(node)
        logs.worker(node, 1, 1, 2, 3)
        logs.log(agent, 5 + node, "worker.exit", local_rank=0, rank=node, code=3 + node)
        logs.log(agent, 8, "worker.exit", local_rank=0, rank=node, code=9)
    run = logs.finish(10)
    found = sorted((p.rank, p.exited, p.exit_code) for p in run.processes)
    assert found == [(0, 5 * S, 3), (1, 6 * S, 4)], "an exit is of one process, and the first"


def test_a_pid_decides_where_two_workers_stood_in_one_place(logs: Logs) -> None:
    logs.node(0, 1, 0)
    agent = logs.agent(0)
    logs.worker(0, 1, 1)
    logs.worker(0, 2, 2)
    logs.log(agent, 5, "worker.exit", local_rank=0, rank=0, pid=10, code=7)
    run = logs.finish(10)
    assert [(p.pid, p.exit_code) for p in run.processes] == [(10, 7), (20, None)]


def test_a_worker_without_an_exit_is_gone_when_its_successor_comes(logs: Logs) -> None:
    logs.nodes()
    logs.both(1, 1, 1, 3)
    logs.both(2, 8, 1, 6)
    run = logs.finish(17)
    assert phases(run)[-7:] == [
        ("interrupted_step", 6, 8),
        ("rendezvous", 8, 9),
        ("restore", 9, 10),
        ("first_step", 10, 11),
        ("recompute", 11, 14),
        ("running", 14, 16),
        ("finish", 16, 17),
    ]
    assert [(e.t_stop / S, e.t_first and e.t_first / S, e.t_regained and e.t_regained / S) for e in run.episodes] == [
        (6, 11, 14)
    ]
    assert int((~run.steps.survives).sum()) == 6


def test_a_survivor_that_steps_on_beside_a_newcomer_is_in_its_world(logs: Logs) -> None:
    """It joins nothing anew and says nothing: only its steps tell."""
    logs.nodes()
    survivor, _ = logs.both(1, 1, 1, 3)
    logs.kill(1, 6.5, "kill")
    logs.steps(logs.worker(1, 2, 7, 8, 9), 4, 6, 9)
    logs.steps(survivor, 4, 6, 9)
    run = logs.finish(13)
    assert run.progress.step.tolist() == [1, 2, 3, 4, 5, 6] and run.finished
    assert [(epoch.first, epoch.last, epoch.processes) for epoch in run.epochs] == [(1, 3, (0, 1)), (4, 6, (0, 2))]
    assert [(e.t_stop / S, e.end / S, e.faults) for e in run.episodes] == [(6, 10, ("kill",))]
    assert bool(run.steps.survives.all())


def test_a_survivor_that_joins_again_and_goes_back_is_in_one_epoch_with_the_newcomer(logs: Logs) -> None:
    logs.nodes()
    survivor, _ = logs.both(1, 1, 1, 3)
    logs.kill(1, 6.5, "kill")
    logs.steps(logs.worker(1, 2, 7, 8, 9), 2, 6, 9)
    logs.log(survivor, 8, "rendezvous", world_size=2)
    logs.steps(survivor, 2, 6, 9)
    run = logs.finish(15)
    assert [(epoch.first, epoch.last, epoch.kept) for epoch in run.epochs] == [(1, 3, 1), (2, 6, 2**62)]
    assert run.progress.step.tolist() == [1, 2, 3, 2, 3, 4, 5, 6]
    assert int((~run.steps.survives).sum()) == 4


def test_a_job_that_stops_again_before_it_is_back_never_recovered(logs: Logs) -> None:
    logs.nodes()
    logs.both(1, 1, 1, 4)
    logs.both(2, 8, 3, 3)
    logs.log("harness", 20, "abort", reason="no step")
    run = logs.finish(21)
    [episode] = run.episodes
    assert (episode.t_stop, episode.t_first, episode.t_regained) == (7 * S, 11 * S, None)
    assert (episode.furthest_step, episode.end) == (4, 21 * S)


Stretch = tuple[int | None, int, int, int | None]


def lives(logs: Logs, *stretches: Stretch) -> timeline.Timeline:
    """Both ranks start again and again: each time they restore a step, do steps, and may save one of them."""
    at = 1.0
    for life, (restored, first, last, saved) in enumerate(stretches, 1):
        for rank in (0, 1):
            name = logs.worker(rank, life, at, at + 1)
            logs.log(name, at + 2, "restored", **{} if restored is None else {"step": restored})
            logs.steps(name, first, last, at + 2)
            if rank == 0 and saved is not None:
                logs.log(name, at + 3 + saved - first + 0.5, "checkpoint.committed", step=saved)
        at += 10
    return logs.finish(at)


def survivors(run: timeline.Timeline) -> list[tuple[int, int, int]]:
    """Per epoch its first and last step, and up to which one it survives."""
    return [(epoch.first, epoch.last, min(epoch.kept, epoch.last)) for epoch in run.epochs]


@pytest.mark.parametrize(
    ("stretches", "survived"),
    [
        ([(0, 1, 5, 3), (3, 4, 6, None)], [(1, 5, 3), (4, 6, 6)]),
        ([(0, 1, 5, 5), (3, 4, 4, 4), (4, 5, 6, None)], [(1, 5, 3), (4, 4, 4), (5, 6, 6)]),  # it was saved last
        ([(0, 1, 5, 4), (3, 4, 4, None), (4, 5, 6, None)], [(1, 5, 4), (4, 4, -1), (5, 6, 6)]),  # it was saved first
        ([(0, 1, 2, 2), (0, 1, 4, 3), (2, 3, 5, None), (3, 4, 6, None)], [(1, 2, -1), (1, 4, 3), (3, 5, -1), (4, 6, 6)]),
        ([(0, 1, 2, None), (0, 1, 4, None), (2, 3, 5, None), (3, 4, 6, None)], [(1, 2, -1), (1, 4, 2), (3, 5, 3), (4, 6, 6)]),
        ([(0, 1, 5, 3), (3, 4, 3, None)], [(1, 5, 3)]),  # it went back, and nothing came of it
        ([(0, 1, 5, 3), (0, 1, 0, None)], [(1, 5, -1)]),
        ([(0, 1, 5, 3), (None, 1, 0, None)], [(1, 5, 5)]),  # it does not say from which step it goes on
        ([(0, 1, 4, 3), (0, 1, 4, 3), (2, 3, 5, None), (3, 4, 6, None)], [(1, 4, -1), (1, 4, 3), (3, 5, -1), (4, 6, 6)]),
        ([(0, 1, 3, None), (5, 6, 8, None), (4, 5, 7, None)], [(1, 3, 3), (6, 8, -1), (5, 7, 7)]),
        ([(0, 1, 3, 3), (5, 6, 8, None)], [(1, 3, 3), (6, 8, 8)]),  # nobody has seen steps 4 and 5
    ],
)  # fmt: skip
def test_what_survives_is_what_the_last_state_descends_from(
    logs: Logs, stretches: list[Stretch], survived: list[tuple[int, int, int]]
) -> None:
    run = lives(logs, *stretches)
    assert survivors(run) == survived
    kept = {step for first, _, upto in survived for step in range(first, upto + 1)}
    assert set(run.steps.step[run.steps.survives].tolist()) == kept


def test_a_job_that_begins_anew_and_does_nothing_has_no_step_to_compare(tmp_path: pathlib.Path) -> None:
    """All its steps are rolled back. That is judged, and not only said to be beyond the scorer."""
    runs = []
    for name, stretches in (("run", [(0, 1, 5, 3), (0, 1, 0, None)]), ("fault_free", [(0, 1, 6, None)])):
        (tmp_path / name).mkdir()
        runs.append(lives(Logs(tmp_path / name), *stretches))
    card = judge(Evidence(runs[0], runs[1]), "x")
    assert card.scores["loss_continuity"]["steps_compared"] == 0
    assert not [text for text in card.reasons if "crashed" in text]


def test_a_step_that_never_ends_is_of_the_world_that_stepped_last(logs: Logs) -> None:
    run = lives(logs, (0, 1, 5, 3), (3, 4, 4, None))
    assert (run.segments[-1].phase, run.segments[-1].epoch) == ("interrupted_step", 1)


def test_who_stands_still_is_in_no_new_world(logs: Logs) -> None:
    logs.nodes()
    logs.both(1, 1, 1, 3)
    logs.kill(1, 6.5, "kill")
    logs.worker(1, 2, 7, 8, 9)
    found = phases(logs.finish(15))
    assert not [phase for phase, begin, _ in found if begin > 6 and phase in ("restore", "first_step")]


def test_two_worlds_that_step_at_the_same_time_are_doubted(logs: Logs) -> None:
    for life, begin in ((1, 4), (2, 5.5)):
        for rank in (0, 1):
            logs.steps(logs.worker(rank, life, life, begin - 1, begin - 0.5), 1, 3, begin)
    [problem] = logs.finish(12).problems
    assert problem == "two worlds completed steps at the same time: one of them went on after the other had taken over"


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 4)), max_size=30), st.sampled_from([1, 10**6]))
def test_rows_are_numbered_by_their_keys_however_far_apart(rows: list[tuple[int, int]], scale: int) -> None:
    keys = [np.array([row[place] * scale for row in rows], np.int64) for place in (0, 1)]
    number, count = cells(*keys)
    assert len(number) == len(rows) and all(0 <= n < count for n in number.tolist())
    for one, other in itertools.combinations(range(len(rows)), 2):
        assert (number[one] == number[other]) == (rows[one] == rows[other])
    if scale > 1 and len(set(rows)) > 1:
        assert count <= max(8 * len(rows) + 1000, len(set(rows)))


def test_what_comes_after_the_harness_gave_up_is_not_the_job_s_doing(logs: Logs) -> None:
    logs.nodes()
    for name in logs.both(1, 1, 1, 3):
        logs.log(name, 25, "exiting", code=1, reason="error")
    logs.kill(1, 7, "kill")
    logs.log("harness", 20, "abort", reason="no step")
    run = logs.finish(30)
    assert phases(run)[-2:] == [("interrupted_step", 6, 7), ("detect", 7, 30)]
    assert (run.aborted, run.outcome_reason) == (20 * S, "no step")


def test_a_log_without_the_harness_is_read_and_doubted(tmp_path: pathlib.Path) -> None:
    logs = Logs(tmp_path)
    logs.steps(logs.worker(0, 1, 1, world_size=1), 1, 3, 3)
    (tmp_path / "events" / "harness.jsonl").unlink()
    run = timeline.load(tmp_path)
    assert list(run.problems) == ["the harness wrote nothing into this log"]
    assert (run.begin, run.end, run.outcome, run.plan, run.slots) == (S, 6 * S, None, {}, [])
    card = judge(Evidence(run), "x")
    assert card.verdict is Verdict.INCONCLUSIVE
    assert "the log holds no plan: what was asked for is not known" in card.reasons


def test_a_fault_that_kills_nobody_must_be_noticed_anew(logs: Logs) -> None:
    """An alarm while all was well is no evidence of what struck later; one in the outage is."""
    logs.nodes()
    name, _ = logs.both(1, 1, 1, 3)
    logs.log(name, 4.5, "anomaly", kind="straggler", detail="")
    logs.log(name, 9, "anomaly", kind="hang", detail="")
    told = {"kind": "hang", "targets": [], "kills": False, "stops": True}
    logs.log("harness", 5.5, "fault.injected", fault="a", **told)
    logs.log("harness", 10, "fault.injected", fault="b", **told)
    logs.log("harness", 5.6, "fault.effect", fault="a", measured=1, expected=1, unit="x", ok=True, detail="d")
    run = logs.finish(12)
    assert phases(run)[-3:-1] == [("running", 4, 6), ("detect", 6, 9)]
    assert phases(run)[-1][0] not in ("detect", "interrupted_step"), "b struck an outage that had been noticed"
    effect = {"fault": "a", "measured": 1, "expected": 1, "unit": "x", "ok": True, "detail": "d", "at": round(5.6 * S)}
    assert run.faults[0].effects == (effect,)


@pytest.mark.parametrize(
    ("teller", "said", "noticed"),
    [
        ("trainer-0-1", {"event": "phase", "name": "drain", "edge": "begin"}, True),
        ("trainer-0-1", {"event": "phase", "name": "drain", "edge": "end"}, False),
        ("trainer-0-1", {"event": "phase", "name": "checkpoint.write", "edge": "begin"}, False),
        ("trainer-0-1", {"event": "anomaly", "kind": "hang"}, True),
        ("trainer-0-1", {"event": "exiting", "reason": "done"}, True),
        ("trainer-0-1", {"event": "checkpoint.failed", "step": 3}, False),
        ("harness", {"event": "process.exit", "node": "node1", "incarnation": 1, "code": 1}, True),
        ("harness", {"event": "process.exit", "node": "node1", "incarnation": 1, "code": 0}, True),
        # That a node the fault struck is gone only the harness knows; the store beside the nodes is nobody's worker.
        ("harness", {"event": "process.exit", "node": "node0", "incarnation": 1, "code": 1}, False),
        ("harness", {"event": "process.exit", "node": "control", "incarnation": 1, "code": 1}, False),
        ("harness", {"event": "process.exit", "node": "control", "incarnation": 1, "code": 0}, False),
    ],
)
def test_what_shows_that_the_job_knows(logs: Logs, teller: str, said: dict[str, Any], noticed: bool) -> None:
    logs.nodes()
    logs.both(1, 1, 1, 3)
    struck = [{"node": "node0", "incarnation": 1, "rank": None}]
    logs.log("harness", 7, "fault.injected", fault="a", kind="hang", targets=struck, kills=False)
    logs._line(teller, 9, said)
    run = logs.finish(12)
    assert run.evidence.tolist() == ([9 * S] if noticed else [])
    if teller != "harness":
        detect = next(s for s in run.segments if s.phase == "detect")
        assert (detect.begin, detect.end) == (7 * S, 9 * S if noticed else 12 * S)


def test_what_is_told_of_a_fault(logs: Logs) -> None:
    told: list[tuple[str, str, dict[str, Any]]] = [
        *(("a", "armed", {}), ("a", "injecting", {}), ("a", "injected", {"kind": "hang"}), ("a", "recovered", {})),
        *(("a", "armed", {}), ("a", "injected", {}), ("a", "healed", {})),
        ("a", "injected", {"kills": True, "stops": True, "spoils": True}),
        ("b", "failed", {"reason": "no such node", "detail": "x"}),
        ("c", "failed", {"error": "gone", "reason": "x"}),
        ("d", "failed", {"detail": "late"}),
        ("e", "failed", {}),
        *(("f", "injected", {}), ("f", "injecting", {}), ("f", "injected", {"kills": True})),
    ]
    for at, (fault, event, fields) in enumerate(told, 1):
        logs.log("harness", at, f"fault.{event}", fault=fault, **fields)
    run = logs.finish(21)
    failed = [("b", "no such node"), ("c", "gone"), ("d", "late"), ("e", "it failed")]
    assert [(f.id, f.error, f.kind) for f in run.faults[2:6]] == [(*each, "") for each in failed]
    assert not any(f.kills or f.stops or f.spoils for f in run.faults[2:6]), "they never acted"
    assert [(f.injected, f.spoils) for f in run.faults[6:]] == [(13 * S, True), (15 * S, False)]
    first, second = run.faults[:2]
    assert (first.injected, first.strikes, first.recovered, first.healed) == (3 * S, (3 * S,), 4 * S, None)
    assert (first.kind, first.kills, first.stops, first.spoils, first.targets) == ("hang", False, False, True, ())
    assert (second.injected, second.strikes, second.healed) == (6 * S, (6 * S, 8 * S), 7 * S), "it struck twice"
    assert (second.recovered, second.kills, second.stops, second.spoils) == (None, True, True, True)


def test_where_things_were_said(logs: Logs) -> None:
    logs.node(1, 3, 0)
    name = logs.worker(1, 1, 1, 2, 3, incarnation=3)
    logs.log(name, 4, "checkpoint.committed", step=1, path="x")
    logs.log(name, 5, "")
    agent = logs.open("agent", "agent", 0, node="node1", incarnation=3)
    logs.log(agent, 6, "worker.exit", local_rank=0)
    logs.log("harness", 7, "process.exit", node="node1", incarnation=3)
    run = logs.finish(12)
    [saved] = run.checkpoints
    assert (saved["rank"], saved["node"], saved["incarnation"], saved["process"]) == (1, "node1", 3, 0)
    assert [(e["node"], e["incarnation"], e["rank"], e["code"]) for e in run.exits] == [
        ("node1", 3, -1, 0),
        ("node1", 3, None, 0),
    ], "an exit without a code is a clean one"


@pytest.mark.parametrize(
    ("workload", "ranks"), [({"nodes": 3, "ranks_per_node": 4}, 12), ({"nodes": 3}, 3), ({"ranks_per_node": 4}, 4)]
)
def test_untold_worlds_are_as_planned(tmp_path: pathlib.Path, workload: dict[str, int], ranks: int) -> None:
    logs = Logs(tmp_path)
    (tmp_path / "events" / "harness.jsonl").unlink()
    logs.open("harness", "harness", 0)
    logs.log("harness", 0, "plan", plan={"workload": workload, "faults": []})
    logs.open("trainer", "trainer", 1)
    assert logs.finish(3).processes[0].world_size == ranks


@pytest.mark.parametrize(
    ("reason", "kept"),
    [("completed", True), ("failed", True), ("aborted", True), ("interrupted", True), ("lost", False), (None, False)],
)
def test_a_node_is_kept_until_the_run_is_over_however_it_ended(logs: Logs, reason: str | None, kept: bool) -> None:
    logs.node(0, 1, 1)
    for at in (5, 6):
        logs.log("harness", at, "node.released", node="node0", incarnation=1, reason=reason)
    logs.log("harness", 7, "node.allocated", node="node1", incarnation=1, gpus=1)
    told = [(slot.node, slot.allocated, slot.released, slot.kept) for slot in logs.finish(9).slots]
    assert told == [("node0", S, 5 * S, kept), ("node1", 7 * S, 9 * S, True)]  # never given back


@pytest.mark.parametrize("stepped", [[], [1], [1, 2]])
def test_a_first_step_that_never_comes_is_of_no_epoch(logs: Logs, stepped: list[int]) -> None:
    """These worlds stepped, the last one got as far as having restored."""
    for rank in (0, 1):
        logs.node(rank, 1, 0)
        for life in stepped:
            logs.steps(logs.worker(rank, life, 7 * life, 7 * life + 1, 7 * life + 2), 1, 3, 7 * life + 2)
        logs.worker(rank, 3, 22, 23, 24)
    last = logs.finish(30).segments[-1]
    assert (last.phase, last.begin, last.end, last.epoch) == ("first_step", 24 * S, 30 * S, -1)


@pytest.mark.parametrize(("at", "stopped"), [(4 * S - 1, [4 * S - 1]), (4 * S, [])])
def test_a_fault_before_the_first_step_has_stopped_the_job(logs: Logs, at: int, stopped: list[int]) -> None:
    logs.both(1, 1, 1, 3)
    changes = [Event(at + 1, Mark.KILL_STRIKE), Event(at, Mark.KILL_STRIKE), Event(S, Mark.STRIKE)]
    found = timeline._struck_at_start(logs.finish(9), changes)
    assert [(each.t_stop, each.t_first, each.furthest_step) for each in found] == [(t, 4 * S, 0) for t in stopped]


@pytest.mark.parametrize(("said", "draining"), [({}, True), ({"code": 0}, True), ({"code": 1}, False)])
def test_a_worker_that_leaves_without_a_code_leaves_in_order(logs: Logs, said: dict[str, int], draining: bool) -> None:
    logs.nodes()
    for worker in logs.both(1, 1, 1, 3):
        logs.log(worker, 6.5, "notice")
    logs.log(worker, 8, "exiting", **said)
    during = [phase for phase, begin, end in phases(logs.finish(20)) if begin <= 9 < end]
    assert (during == ["drain"]) is draining


def test_a_clock_of_unknown_uncertainty_is_taken_as_exact(logs: Logs) -> None:
    logs.log("harness", 1, "clock", host="far", offset_ns=5)
    logs._line("trainer", 2, {"schema": 1, "role": "trainer", "host": "far", "clock": "other"})
    assert logs.finish(3).uncertainty_ns == 0
