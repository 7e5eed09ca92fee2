"""What is told of checkpoints: saved, whole, loaded, and which step they hold. Real torch, several lives of each job."""

import pathlib
from typing import Any

import pytest
from event_files import WriterLog, read_log
from observer import observing

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
    unknown = lives(told, "nobody_knows")[1]  # to the ledger
    assert steps(unknown) == [] and named(unknown, "observer.failed")


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


SCRATCH = {"step": 0, "source": "scratch"}


@pytest.mark.parametrize(
    ("case", "restored", "done", "passed_over"),
    [
        ("damaged", {"step": 10}, [*range(11, 16)], []),
        # Saved again at once under the same name: what was there was loaded.
        ("resumed_and_saved", {"step": 10}, [11], []),
        ("fallen_back", {"step": 5}, [6, 7], ["b.pt"]),
        ("nothing_loads", SCRATCH, [1, 2], ["a.pt"]),
        ("no_checkpoint", SCRATCH, [1, 2, 3, 4], []),
        ("again_from_scratch", SCRATCH, [1], []),
        ("weights_to_begin_with", {"step": 0}, [1, 2], []),
        ("copied_before", {"step": 3}, [4], []),
        ("own_entry", {"step": 70, "step_by": "checkpoint"}, [71], []),  # the last resort
        ("moved_node", {"step": 10, "step_by": "ledger"}, [*range(11, 16)], []),
        # A step that nothing tells is unknown, and not zero.
        ("unknown_step", {}, [], []),
        ("put_in_by_hand", {}, [], []),
    ],
)
def test_what_the_last_life_restored_and_did(
    told: pathlib.Path, case: str, restored: dict[str, Any], done: list[int], passed_over: list[str]
) -> None:
    last = lives(told, case)[-1]
    found = one(last, "restored")
    assert restored.items() <= found.items() and steps(last) == done
    assert [item["source"] for item in found.get("fallback", ())] == [str(told / case / name) for name in passed_over]
    if not restored:
        assert "step" not in found and found.get("source") != "scratch"
    if case in ("damaged", "resumed_and_saved"):
        saved = one(lives(told, case)[0], "checkpoint.committed")["content"]
        assert (found["saved"], found["content"] == saved) == (saved, case == "resumed_and_saved")
    assert case != "no_checkpoint" or not [event for event in last.events if "checkpoint" in event["event"]]
    assert last.header["node"] == ("node1" if case == "moved_node" else "node0")


def test_a_save_under_a_temporary_name_is_not_whole(told: pathlib.Path) -> None:
    (log,) = lives(told, "in_the_background")
    assert [event["step"] for event in named(log, "checkpoint.started")] == [3, 5]
    saved = one(log, "checkpoint.committed")
    assert (saved["step"], saved["path"]) == (3, str(told / "in_the_background" / "step3.pt"))
    assert saved["mono_ns"] > next(event["mono_ns"] for event in named(log, "step") if event["step"] == 4)


@pytest.mark.parametrize(
    ("case", "saves"),
    [
        ("exported", [(2, "last.pt", ["model", "optimizer"]), (3, "weights.pt", ["model"])]),
        ("let_go", [(1, "last.pt", ["model", "optimizer"])]),  # what it held when it was begun
        ("ended_by_others", [(1, "store/last.pt", ["model", "optimizer"])]),  # told before the process ends
        ("copied_before", [(3, "last.pt", ["model"])]),
        ("many_copies", [(2, "last.pt", ["model"])]),
        ("not_saved", []),
    ],
)
def test_what_was_saved_and_what_it_holds(
    told: pathlib.Path, case: str, saves: list[tuple[int, str, list[str]]]
) -> None:
    first = lives(told, case)[0]
    found = [(event["step"], event["path"], event["holds"]) for event in named(first, "checkpoint.committed")]
    assert found == [(step, str(told / case / path), holds) for step, path, holds in saves]
    assert case != "not_saved" or one(first, "checkpoint.failed")["step"] == 2


def test_the_same_tensors_have_the_same_digest(told: pathlib.Path) -> None:
    first, second = lives(told, "averaged")
    at_8 = named(first, "checkpoint.committed")[-1]["tensors"]
    without, with_average = (event["tensors"] for event in named(second, "checkpoint.committed"))
    assert at_8 == with_average != without


def test_files_that_belong_together_are_one_checkpoint(told: pathlib.Path) -> None:
    first, second = lives(told, "separate_files")
    saved, restored = one(first, "checkpoint.committed"), one(second, "restored")
    assert sorted(saved["files"]) == ["model.pt", "optimizer.pt", "scheduler.pt"]
    assert (restored["step"], restored["source"]) == (6, saved["path"])
    assert restored["content"] == restored["saved"] == saved["content"]


def test_distributed_checkpoints(told: pathlib.Path) -> None:
    first, second, third = lives(told, "distributed")
    saved = one(first, "checkpoint.committed")
    assert set(saved["files"]) == {".metadata", "__0_0.distcp"} and saved["step"] == 4
    restored = [one(log, "restored") for log in (second, third)]
    assert [event["step"] for event in restored] == [4, 6]
    assert [event["entered"] for event in restored] == [["model", "optimizer"]] * 2
    assert all(event["content"] == event["saved"] for event in restored)
    assert (steps(second), steps(third)) == ([5, 6], [7])
