"""What is told of checkpoints: saved, whole, loaded, and which step they hold. Real torch, several lives of each job."""

import pathlib
from typing import Any

import pytest
from event_files import WriterLog, read_log
from observer import observing

from harness.node.observer.checkpoint_ledger import NAME

CASES = pathlib.Path(__file__).with_name("checkpoint_cases.py")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("lives")
    code, _, err = observing.run([str(CASES), str(folder)], observing.environment(folder), folder)
    assert code == 0 and "Traceback" not in err, err
    return folder


def lives(told: pathlib.Path, case: str) -> list[WriterLog]:
    """The trainer's logs, in the order of its lives."""
    logs = [log for log in read_log(told / "events" / case) if log.header["role"] == "trainer"]
    return sorted(logs, key=lambda log: int(log.header["mono_ns"]))


def named(log: WriterLog, name: str) -> list[dict[str, Any]]:
    return [event for event in log.events if event["event"] == name]


def one(log: WriterLog, name: str) -> dict[str, Any]:
    (found,) = named(log, name)
    return found


def steps(log: WriterLog) -> list[int]:
    return [event["step"] for event in named(log, "step")]


def test_no_hook_failed(told: pathlib.Path) -> None:
    cases = [path.name for path in (told / "events").iterdir() if path.is_dir()]
    failed = {case: named(log, "observer.failed") for case in cases for log in lives(told, case)}
    unknown = {"unknown_step", "put_in_by_hand", "nobody_knows"}
    assert {case: found for case, found in failed.items() if found and case not in unknown} == {}


def test_a_resumed_job_goes_on_counting(told: pathlib.Path) -> None:
    first, second, third = lives(told, "resumed")
    assert [steps(log) for log in (first, second, third)] == [
        list(range(1, 15)),
        list(range(11, 16)),
        list(range(16, 21)),
    ]
    assert one(first, "restored") | {"step": 0, "source": "scratch"} == one(first, "restored")
    saved, restored = one(first, "checkpoint.committed"), one(second, "restored")
    assert (saved["step"], restored["step"], restored["step_by"]) == (10, 10, "ledger")
    assert saved["content"] == restored["saved"] == restored["content"]
    assert saved["path"] == restored["source"] == str(told / "resumed" / "last.pt")
    assert 0 < saved["write_ns"] < saved["duration_ns"]
    assert one(third, "restored")["step"] == 15


@pytest.mark.parametrize("case", ["seldom_last", "seldom_first"])
def test_optimizers_that_step_unequally_often_count_alike_after_a_restart(told: pathlib.Path, case: str) -> None:
    first, second = ({step["step"]: step["loss"] for step in named(log, "step")} for log in lives(told, case))
    restored = one(lives(told, case)[1], "restored")["step"]
    assert min(second) == restored + 1 and len(second) == 8
    assert {step: first[step] for step in second} == second, "the same steps have the same losses"


def test_a_step_of_unequal_optimizers_that_the_ledger_does_not_know_is_unknown(told: pathlib.Path) -> None:
    second = lives(told, "nobody_knows")[1]
    assert steps(second) == [] and named(second, "observer.failed")


def test_a_save_within_a_step_tells_how_far_that_has_come(told: pathlib.Path) -> None:
    (log,) = lives(told, "accumulates")
    found = [
        (save["step"], save["micro_batches"], save["micro_batches_a_step"])
        for save in named(log, "checkpoint.committed")
    ]
    assert found == [(1, 0, 1), (1, 1, 1), (2, 0, 2), (2, 0, 2), (2, 1, 2)], "a batch that is looked at is none"


def test_a_checkpoint_is_whole_when_it_gets_its_name(told: pathlib.Path) -> None:
    first = lives(told, "resumed")[0]
    order = [event["event"] for event in first.events if event["event"] == "step" or "checkpoint" in event["event"]]
    assert order[9:13] == ["step", "checkpoint.started", "checkpoint.committed", "step"]


def test_a_save_that_is_written_elsewhere_is_whole_where_it_is_published(told: pathlib.Path) -> None:
    first, second = lives(told, "written_elsewhere")
    found = [
        (save["step"], pathlib.Path(save["path"]).relative_to(told)) for save in named(first, "checkpoint.committed")
    ]
    names = {1: "copy", 2: "link", 3: "cp", 4: "mv", 6: "memory", 7: "late"}
    assert found == [(step, pathlib.Path(f"written_elsewhere/store/{name}.pt")) for step, name in names.items()]
    assert one(second, "restored")["step"] == 3 and "saved" in one(second, "restored")


def test_the_last_save_is_told_before_others_end_the_process(told: pathlib.Path) -> None:
    (log,) = lives(told, "ended_by_others")
    assert one(log, "checkpoint.committed")["path"] == str(told / "ended_by_others" / "store" / "last.pt")


def test_damaged_bytes_that_are_loaded_are_told(told: pathlib.Path) -> None:
    first, second = lives(told, "damaged")
    restored = one(second, "restored")
    assert restored["saved"] == one(first, "checkpoint.committed")["content"]
    assert restored["content"] != restored["saved"]
    assert restored["step"] == 10 and steps(second)[0] == 11


def test_a_job_that_saves_at_once_under_the_same_name_has_loaded_what_was_there(told: pathlib.Path) -> None:
    restored = one(lives(told, "resumed_and_saved")[1], "restored")
    assert (restored["step"], restored["content"]) == (10, restored["saved"])


def test_a_checkpoint_that_did_not_load_is_told_as_passed_over(told: pathlib.Path) -> None:
    restored = one(lives(told, "fallen_back")[1], "restored")
    assert restored["step"] == 5
    assert [item["source"] for item in restored["fallback"]] == [str(told / "fallen_back" / "b.pt")]


def test_a_start_from_scratch_tells_what_did_not_load(told: pathlib.Path) -> None:
    restored = one(lives(told, "nothing_loads")[1], "restored")
    assert (restored["step"], restored["source"]) == (0, "scratch")
    assert [item["source"] for item in restored["fallback"]] == [str(told / "nothing_loads" / "a.pt")]


def test_a_save_under_a_temporary_name_is_not_whole(told: pathlib.Path) -> None:
    (log,) = lives(told, "in_the_background")
    assert [event["step"] for event in named(log, "checkpoint.started")] == [3, 5]
    saved = one(log, "checkpoint.committed")
    assert (saved["step"], saved["path"]) == (3, str(told / "in_the_background" / "step3.pt"))
    assert saved["mono_ns"] > next(event["mono_ns"] for event in named(log, "step") if event["step"] == 4)


def test_exported_weights_do_not_hold_the_optimizer(told: pathlib.Path) -> None:
    (log,) = lives(told, "exported")
    holds = [(event["step"], event["holds"]) for event in named(log, "checkpoint.committed")]
    assert holds == [(2, ["model", "optimizer"]), (3, ["model"])]


def test_a_save_holds_what_it_held_when_it_was_begun(told: pathlib.Path) -> None:
    (log,) = lives(told, "let_go")
    assert one(log, "checkpoint.committed")["holds"] == ["model", "optimizer"]


def test_the_same_tensors_have_the_same_digest(told: pathlib.Path) -> None:
    first, second = lives(told, "averaged")
    at_8 = named(first, "checkpoint.committed")[-1]["tensors"]
    without, with_average = (event["tensors"] for event in named(second, "checkpoint.committed"))
    assert at_8 == with_average != without


def test_other_files_are_no_checkpoints(told: pathlib.Path) -> None:
    (log,) = lives(told, "no_checkpoint")
    assert [event["event"] for event in log.events if "checkpoint" in event["event"]] == []
    assert one(log, "restored")["source"] == "scratch" and steps(log) == [1, 2, 3, 4]


def test_files_that_belong_together_are_one_checkpoint(told: pathlib.Path) -> None:
    first, second = lives(told, "separate_files")
    saved, restored = one(first, "checkpoint.committed"), one(second, "restored")
    assert sorted(saved["files"]) == ["model.pt", "optimizer.pt", "scheduler.pt"]
    assert (restored["step"], restored["source"]) == (6, saved["path"])
    assert restored["content"] == restored["saved"] == saved["content"]


def test_copies_are_recognised(told: pathlib.Path) -> None:
    first, second = lives(told, "copied_before")
    assert one(first, "checkpoint.committed")["step"] == 3
    assert (one(second, "restored")["step"], steps(second)) == (3, [4])
    assert one(lives(told, "many_copies")[0], "checkpoint.committed")["step"] == 2


@pytest.mark.parametrize("case", ["unknown_step", "put_in_by_hand"])
def test_a_step_that_nothing_tells_is_unknown_and_not_zero(told: pathlib.Path, case: str) -> None:
    restored = one(lives(told, case)[1], "restored")
    assert "step" not in restored and restored.get("source") != "scratch"
    assert steps(lives(told, case)[1]) == []


def test_the_checkpoints_own_entry_is_the_last_resort(told: pathlib.Path) -> None:
    (log,) = lives(told, "own_entry")
    restored = one(log, "restored")
    assert (restored["step"], restored["step_by"], steps(log)) == (70, "checkpoint", [71])


def test_weights_from_elsewhere_begin_a_training(told: pathlib.Path) -> None:
    (log,) = lives(told, "weights_to_begin_with")
    assert one(log, "restored")["step"] == 0 and steps(log) == [1, 2]


def test_a_start_from_scratch_is_told(told: pathlib.Path) -> None:
    second = lives(told, "again_from_scratch")[1]
    assert (one(second, "restored")["source"], steps(second)) == ("scratch", [1])


def test_distributed_checkpoints(told: pathlib.Path) -> None:
    first, second, third = lives(told, "distributed")
    saved = one(first, "checkpoint.committed")
    assert set(saved["files"]) == {".metadata", "__0_0.distcp"} and saved["step"] == 4
    restored = [one(log, "restored") for log in (second, third)]
    assert [event["step"] for event in restored] == [4, 6]
    assert [event["entered"] for event in restored] == [["model", "optimizer"]] * 2
    assert all(event["content"] == event["saved"] for event in restored)
    assert (steps(second), steps(third)) == ([5, 6], [7])


def test_another_node_finds_the_step(told: pathlib.Path) -> None:
    second = lives(told, "moved_node")[1]
    assert second.header["node"] == "node1"
    assert not (told / "events" / "moved_node" / "node1" / NAME).is_symlink()
    assert (one(second, "restored")["step"], one(second, "restored")["step_by"]) == (10, "ledger")


def test_a_save_that_fails_is_told(told: pathlib.Path) -> None:
    (log,) = lives(told, "not_saved")
    assert one(log, "checkpoint.failed")["step"] == 2
    assert named(log, "checkpoint.committed") == []
