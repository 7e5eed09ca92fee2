"""The truth of a run: the table of faults, and what a log tells of what was injected."""

import pathlib

import pytest
from diagnosis.known_jobs import BEGIN, WALL, Job
from simulator import Job as SimulatedJob
from simulator import Outage, simulate

from harness.diagnosis.answer import Kind
from harness.diagnosis.injected import RunTruth, Victim, truth_of_run
from harness.diagnosis.truth import TRUTHS, Place, truth_of
from harness.faults.contract import fault_names
from harness.log import reading


def truth(job: Job, folder: pathlib.Path) -> RunTruth:
    return truth_of_run("run", reading.read(job.write(folder) / "events"))


def test_each_fault_of_the_catalogue_has_a_row() -> None:
    assert TRUTHS.keys() == set(fault_names())


@pytest.mark.parametrize("fault", [name for name, row in TRUTHS.items() if row])
def test_a_row_can_be_answered(fault: str) -> None:
    row = truth_of(fault, {})
    assert row and row.kinds and row.decisions and Kind.UNKNOWN not in row.kinds
    assert (Kind.NONE in row.kinds) <= row.benign


def test_parameters_change_the_truth() -> None:
    for fault, parameters, place in (
        ("hang", {"how": "freeze_rank"}, Place.RANK),
        ("hang", {"how": "freeze_node"}, Place.NODE),
        ("data_corruption", {"kind": "missing"}, Place.FILE),
        ("data_corruption", {"kind": "nan_batch"}, Place.RANK),
    ):
        row = truth_of(fault, parameters)
        assert row and row.place is place
    assert [
        bool(row and row.benign) for row in (truth_of("gil_hold", {"duration": each}) for each in ("3s", "9s"))
    ] == [True, False]
    assert truth_of("own_code", {}) is None and truth_of("disk_nap", {}) is None


def test_a_fault_of_a_plug_in_is_not_graded_and_said(tmp_path: pathlib.Path) -> None:
    job = Job()
    job.fault("disk_nap", 1)
    found = truth(job, tmp_path)
    assert found.not_graded == [("disk_nap", "the table of truths has no row for 'disk_nap'")] and not found.is_control


def test_a_fault_without_effect_or_never_injected_is_not_graded(tmp_path: pathlib.Path) -> None:
    job = Job()
    job.fault("rank_kill", 1, 1, ok=False)
    assert truth(job, tmp_path / "a").not_graded == [("rank_kill", "its effect was not measured")]
    job = Job()
    job.plan({"id": "kill", "fault": "rank_kill"})
    assert truth(job, tmp_path / "b").not_graded == [("kill", "it was never injected")]
    assert truth(Job(), tmp_path / "c").is_control


@pytest.mark.parametrize("victim", range(3))
def test_victims_and_their_index(victim: int, tmp_path: pathlib.Path) -> None:
    simulate(SimulatedJob(nodes=3), [Outage(after=9, kind="rank", victim=victim)]).write(tmp_path / "rank")
    (fault,) = truth_of_run("run", reading.read(tmp_path / "rank" / "events")).faults
    assert (fault.victims, fault.at_index_0) == ((Victim(f"node{victim}", victim, 0),), victim == 0)
    simulate(SimulatedJob(nodes=3), [Outage(after=9, kind="node", victim=victim)]).write(tmp_path / "node")
    (fault,) = truth_of_run("run", reading.read(tmp_path / "node" / "events")).faults
    assert (fault.victims, fault.at_index_0) == ((Victim(f"node{victim}"),), victim == 0)


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
