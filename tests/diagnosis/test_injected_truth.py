"""The truth of a run: what each fault says of itself, and what a log tells of what was injected."""

import pathlib
from dataclasses import replace
from typing import Any

import pytest
from conformance.test_every_fault import REQUIRED
from diagnosis.known_jobs import BEGIN, WALL, Job
from simulator import Job as SimulatedJob
from simulator import Outage, simulate

from harness import plugins
from harness.diagnosis.injected import ELSEWHERE, RunTruth, Victim, faults_of, truth_of, truth_of_run
from harness.faults import contract
from harness.faults.contract import Fault, fault_names
from harness.log import reading
from harness.log.truth import Decision, Kind, Place, Truth
from harness.timeline import timeline
from harness.timeline.timeline import Beside


def truth(job: Job, folder: pathlib.Path) -> RunTruth:
    return truth_of_run("run", reading.read(job.write(folder) / "events"))


def answers(fault: str, **parameters: Any) -> Truth:
    found = truth_of(fault, REQUIRED.get(fault, {}) | parameters)
    assert isinstance(found, Truth), found
    return found


@pytest.mark.parametrize("fault", sorted(set(fault_names()) - {"own_code"}))
def test_each_fault_says_what_can_be_answered(fault: str) -> None:
    truth = answers(fault)
    assert truth.kinds and truth.decisions and Kind.UNKNOWN not in truth.kinds


def test_parameters_change_the_truth() -> None:
    assert answers("hang", how="freeze_rank").place is Place.RANK
    assert answers("hang", how="freeze_node").place is Place.NODE
    assert answers("data_corruption", kind="missing").place is Place.FILE
    assert answers("data_corruption", kind="nan_batch").place is Place.RANK
    assert answers("partition").either_side and not answers("partition", cut_off_from="control").either_side
    assert Decision.EVICT_NODE in answers("preemption", replacement="none").decisions
    assert Decision.EVICT_NODE not in answers("preemption", replacement={"after": "5s"}).decisions
    for fault in ("gil_hold", "hang", "data_loader_stall"):
        assert answers(fault, duration="3s").benign and not answers(fault, duration="9s").benign


@pytest.mark.parametrize(
    ("fault", "parameters", "why"),
    [
        ("disk_nap", {}, "unknown fault 'disk_nap'"),
        ("own_code", REQUIRED["own_code"], "own_code does not say which answers are right"),
        ("rank_kill", {"hard": True}, "rank_kill: hard: "),
        ("gil_hold", {"duration": "soon"}, "gil_hold: duration: "),
    ],
)
def test_a_fault_whose_truth_is_not_known_is_not_graded_and_said(
    fault: str, parameters: dict[str, Any], why: str, tmp_path: pathlib.Path
) -> None:
    job = Job()
    job.fault(fault, 1, **parameters)
    found = truth(job, tmp_path)
    assert [name for name, _ in found.not_graded] == [fault] and not found.is_control
    assert found.not_graded[0][1].startswith(why)


def test_a_fault_of_a_plug_in_says_its_truth_or_is_not_graded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Fault):
        def describe(self, targets: object) -> str:
            return ""

        def inject(self, targets: object, context: object) -> None: ...

    class Telling(Silent):
        truth = Truth((Kind.STORAGE,), Place.JOB, (Decision.IGNORE,))

    for told, expected in ((Telling, Telling.truth), (Silent, "disk_nap does not say which answers are right")):
        monkeypatch.setattr(plugins.Family, "load", lambda self, name, told=told: told)
        monkeypatch.setattr(contract, "fault_module", lambda name: contract)
        assert truth_of("disk_nap", {}) == expected


def test_a_fault_without_effect_or_never_injected_is_not_graded(tmp_path: pathlib.Path) -> None:
    job = Job()
    job.fault("rank_kill", 1, 1, ok=False)
    assert truth(job, tmp_path / "a").not_graded == [("rank_kill", "its effect was not measured")]
    job = Job()
    job.plan({"id": "kill", "fault": "rank_kill"})
    assert truth(job, tmp_path / "b").not_graded == [("kill", "it was never injected")]
    assert truth(Job(), tmp_path / "c").is_control


@pytest.mark.parametrize("victim", range(3))
@pytest.mark.parametrize("kind", ["rank", "node"])
def test_victims_and_their_index(kind: str, victim: int, tmp_path: pathlib.Path) -> None:
    simulate(SimulatedJob(nodes=3), [Outage(9, kind, victim=victim)]).write(tmp_path)
    (fault,) = truth_of_run("run", reading.read(tmp_path / "events")).faults
    expected = Victim(f"node{victim}", victim, 0) if kind == "rank" else Victim(f"node{victim}")
    assert (fault.victims, fault.at_index_0) == ((expected,), victim == 0)


def test_a_timeline_tells_the_same_and_leaves_out_other_rehearsals(tmp_path: pathlib.Path) -> None:
    simulate(SimulatedJob(nodes=3), [Outage(9, "rank", victim=2), Outage(9, "node", victim=1)]).write(tmp_path)
    run, stored = timeline.load(tmp_path), truth_of_run("run", reading.read(tmp_path / "events"))
    assert faults_of(run).faults == stored.faults and len(stored.faults) == 2
    first, second = (fault.id for fault in stored.faults)
    mine = run.plan | {"faults": [each for each in run.plan["faults"] if each["id"] == second]}
    part = faults_of(replace(run, plan=mine, beside=Beside(faults=frozenset({first}))))
    assert [fault.id for fault in part.faults] == [second] and part.not_graded == [(first, ELSEWHERE)]


def test_in_a_job_of_two_nodes_either_side_of_a_partition_is_right(tmp_path: pathlib.Path) -> None:
    for nodes, names in ((2, {"node0", "node1"}), (3, {"node1"})):
        job = Job(nodes)
        job.fault("partition", 1, cut_off_from="nodes")
        (fault,) = truth(job, tmp_path / str(nodes)).faults
        assert {victim.node for victim in fault.victims} == names


def test_times_and_steps_of_answers_are_put_on_the_runs_clock(tmp_path: pathlib.Path) -> None:
    found = truth(Job(steps=5), tmp_path)
    assert found.moment(WALL + 7, None) == BEGIN + 7 and found.wall_ns(BEGIN) == WALL
    assert found.moment(None, 1) == BEGIN + 107 * 10**6
    assert found.moment(None, None) is found.moment(None, 99) is None
