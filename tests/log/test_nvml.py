"""What is told of GPUs: what the library says, and nothing where there is none."""

import sys
import types
from typing import Any

import pytest

from harness.node.emitter import nvml


def library(**more: Any) -> types.ModuleType:
    """One GPU, as the library of NVIDIA tells of it."""
    module = types.ModuleType("pynvml")

    def refuse(*_: object) -> None:
        raise RuntimeError("not supported")

    given: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetName": lambda _: b"NVIDIA H200",
        "nvmlSystemGetDriverVersion": lambda: "580.1",
        "nvmlSystemGetCudaDriverVersion": lambda: 12080,
        "nvmlDeviceGetUtilizationRates": lambda _: types.SimpleNamespace(gpu=0),
        "nvmlDeviceGetMemoryInfo": lambda _: types.SimpleNamespace(used=5, total=10),
        "nvmlDeviceGetFieldValues": refuse,
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": 138,
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": 139,
    }
    vars(module).update(given | more)
    return module


def test_facts_and_a_sample_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library())
    assert nvml.facts() == {"gpu": "NVIDIA H200", "gpus": 1, "driver": "580.1", "cuda_driver": "12.8"}
    with nvml.opened() as opened:
        assert nvml.samples(opened) == [nvml.Sample(0, 0.0, 5, 10, None)]  # idle is 0, without NVLink is nothing


def test_bytes_of_nvlink_are_those_of_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    def values(_: int, fields: list[tuple[int, int]]) -> list[Any]:
        assert [scope for _, scope in fields] == [0xFFFFFFFF] * 2
        return [types.SimpleNamespace(nvmlReturn=0, value=types.SimpleNamespace(ullVal=n)) for n in (3, 4)]

    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlDeviceGetFieldValues=values))
    with nvml.opened() as opened:
        assert nvml.samples(opened)[0].nvlink_bytes == 7 * 1024


@pytest.mark.parametrize("broken", [None, "no driver"])
def test_without_a_library_or_a_driver_nothing_is_told(monkeypatch: pytest.MonkeyPatch, broken: str | None) -> None:
    def refuse() -> None:
        raise RuntimeError(broken)

    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlInit=refuse) if broken else None)
    assert nvml.facts() == {}
    with nvml.opened() as opened:
        assert opened is None
