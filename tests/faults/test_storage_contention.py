"""Users who hammer a disk: they are there, they are counted, and they are gone."""

import importlib.util
import os
import pathlib
from typing import Any

import pytest
from faults.fault_context import means

from harness.api.testing import FaultContext
from harness.faults.contract import Target, build_fault
from harness.faults.storage_contention import summarize

psutil = pytest.importorskip("psutil")
if importlib.util.find_spec("locust") is None:
    pytest.skip("locust is not installed", allow_module_level=True)


class Context(FaultContext):
    details: list[str]

    def effect(self, measured: float, expected: float, unit: str, ok: bool, detail: str = "") -> None:
        super().effect(measured, expected, unit, ok)
        self.details = [detail]


def children() -> list[int]:
    return [child.pid for child in psutil.Process(os.getpid()).children(recursive=True)]


def test_users_read_and_write_and_leave_nothing(tmp_path: pathlib.Path) -> None:
    context = Context(tmp_path, waits=True)
    fault = build_fault("storage_contention", {"users": 3, "duration": "6s", "block": "16KiB"})
    fault.inject([Target(0)], means(context))
    ((rate, _, unit, ok),) = context.effects
    assert ok and rate > 0 and unit == "requests/s" and " 0 failed" in context.details[0]
    assert any(path.name.startswith("block-") for path in (tmp_path / "checkpoints").rglob("*"))
    fault.see_end([Target(0)], means(context))
    for _ in range(2):
        fault.heal([Target(0)], means(context))
        fault.see_end([Target(0)], means(context))
    assert [end[-1] for end in context.ends] == [False, True, True]
    assert list((tmp_path / "checkpoints").iterdir()) == [] and children() == []


def test_figures_are_added_up() -> None:
    def entry(count: int, times: dict[str, int], begin: float, end: float) -> dict[str, Any]:
        told = {"num_requests": count, "num_failures": 1, "response_times": times}
        return told | {"start_time": begin, "last_request_timestamp": end}

    entries = [entry(90, {"5": 90}, 100.0, 105.0), entry(10, {"7": 5, "50": 5}, 101.0, 110.0)]
    assert summarize(entries) == (100, 2, 10.0, 7.0)
    assert summarize([]) == (0, 0, 0.0, 0.0)
