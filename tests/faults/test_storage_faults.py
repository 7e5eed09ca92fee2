"""Storage faults in whole runs, with a trainer that saves often: they strike, are measured, and are healed."""

import itertools
import pathlib
from types import SimpleNamespace
from typing import Any

import pytest
import small_jobs
from small_jobs import named

from harness.api.testing import FaultContext
from harness.backends.contract import Verb
from harness.backends.local.backend import BACKEND
from harness.faults.contract import Target, build_fault
from harness.plan.capabilities import check_capabilities
from harness.run.job import execute

if Verb.STORAGE not in BACKEND.probe().verbs:
    pytest.skip(BACKEND.probe().missing[Verb.STORAGE], allow_module_level=True)

TRAINER = pathlib.Path(__file__).with_name("storing_trainer.py")


def run(
    tmp_path: pathlib.Path, fault: str, /, steps: int = 60, **parameters: Any
) -> tuple[list[dict[str, Any]], pathlib.Path]:
    command = ["{python}", "-S", str(TRAINER), "{run_dir}", str(steps)]
    plan = small_jobs.job("stored", command, small_jobs.fault("bad", fault, {"step": 12}, **parameters), steps=steps)
    check_capabilities(plan, BACKEND.probe())
    run_dir = tmp_path / "run"
    outcome = execute(plan, run_dir, BACKEND)
    assert outcome.outcome == "completed", outcome.reason
    assert str(run_dir) not in pathlib.Path("/proc/mounts").read_text()
    events = small_jobs.told(run_dir)
    assert named(events, "fault.failed") == []
    assert named(events, "fault.healed") and named(events, "fault.injected")
    return events, run_dir


def over(events: list[dict[str, Any]]) -> bool:
    """Whether the end of the effect was measured, after it was undone."""
    (end,) = named(events, "fault.ended")
    assert events.index(end) > events.index(named(events, "fault.effect")[-1])
    return bool(end["ok"] and end["measured"] == 0 and end["unit"] == "operations refused or late")


def effect(events: list[dict[str, Any]], unit: str) -> dict[str, Any]:
    (found,) = [event for event in named(events, "fault.effect") if event["unit"] == unit]
    assert found["ok"], found
    return found


def test_errors_reach_the_trainer_and_end(tmp_path: pathlib.Path) -> None:
    events, run_dir = run(tmp_path, "storage_error", duration="500ms", path="*data.bin")
    failures = named(events, "checkpoint.failed")
    measured = effect(events, "operations failed")["measured"]
    assert 0 < measured <= len(failures) <= measured + 1, "one more may fail between the measurement and the end"
    assert {event["error"] for event in failures} == {"Input/output error"}
    assert named(events, "checkpoint.committed")[-1]["step"] == 60
    assert (run_dir / "checkpoints" / "step-00000060").exists() and over(events)


def test_a_full_disk_takes_what_fits(tmp_path: pathlib.Path) -> None:
    events, _ = run(tmp_path, "storage_full", free="50kB", duration="500ms")
    assert effect(events, "bytes that still fitted")["measured"] == 50_000
    assert {event["error"] for event in named(events, "checkpoint.failed")} == {"No space left on device"}
    assert over(events)


def test_slowness_is_as_asked(tmp_path: pathlib.Path) -> None:
    """Other work makes it slower still, never faster."""
    events, _ = run(tmp_path, "storage_slow", rate="4mbit", duration="2s")
    assert 0 < effect(events, "Mbit/s")["measured"] <= 5
    assert over(events)


def test_what_is_never_answered_is_measured_and_goes_on_after_it(tmp_path: pathlib.Path) -> None:
    events, _ = run(tmp_path, "storage_hang", duration="2s", path="*data.bin")
    assert effect(events, "operations without an answer")["measured"] == 1
    first, last = named(events, "fault.effect")
    assert first["detail"].endswith("threads in state D: 1") and last["detail"].endswith("threads in state D: 1")
    assert last["measured"] > first["expected"] and last["unit"] == "s without an answer at most"
    begins = [each["begin_ns"] for each in named(events, "step")]
    assert max(later - begin for begin, later in itertools.pairwise(begins)) > 1e9, "this trainer waits for its saves"
    assert named(events, "checkpoint.failed") == [] and over(events)


@pytest.mark.parametrize(
    "kind, unit", [("prefix", "bytes left"), ("fsync_lied", "bytes lost"), ("rename_lost", "renames lost")]
)
def test_a_torn_checkpoint_and_the_node_that_wrote_it(tmp_path: pathlib.Path, kind: str, unit: str) -> None:
    path = "*data.bin" if kind == "prefix" else "*step-*"
    torn = {"kind": kind, "after_bytes": "64KiB", "path": path, "replacement": {"after": "100ms"}}
    events, run_dir = run(tmp_path, "checkpoint_torn_write", steps=30, **torn)
    effect(events, unit)
    restored = [event["step"] for event in named(events, "restored")]
    assert restored == [0, 10], "the torn checkpoint of step 15 is not what the replacement starts from"
    assert (run_dir / "checkpoints" / "step-00000030").exists()


@pytest.mark.parametrize(("tried", "judged"), [((5, 0), [True]), ((5, 7), [True, True]), ((0, 0), [False, False])])
def test_a_node_that_did_nothing_is_not_judged_unless_nobody_did(tried: tuple[int, ...], judged: list[bool]) -> None:
    """Only rank 0 may write; but a fault that nobody met has not acted."""
    healed: list[int] = []
    context: Any = FaultContext(pathlib.Path("/nowhere"), nodes=len(tried))
    for node, number in zip(context.cluster.nodes, tried, strict=True):
        counts = {"matched": number, "tried": number, "failed": number}
        acting = SimpleNamespace(counts=lambda told=counts: told, heal=lambda number=number: healed.append(number))
        node.disturb_storage = lambda directory, rule, acting=acting: acting
    fault, targets = build_fault("storage_error", {}), [Target(index) for index in range(len(tried))]
    fault.inject(targets, context)
    assert [ok for _, _, _, ok in context.effects] == judged
    fault.heal(targets, context)
    assert sorted(healed) == sorted(tried), "all are healed, the idle ones as well"
