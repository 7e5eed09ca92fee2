"""Facts on this machine's GPUs, by NVIDIA's library. Without the library or a GPU there are none, never a zero."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

KIB = 1024


@dataclass(frozen=True)
class Sample:
    """One GPU at one moment. `None`: not told by this GPU or its driver."""

    gpu: int
    busy_percent: float | None = None  # share of the driver's last sampling period with a running kernel
    memory_bytes: int | None = None
    memory_bytes_total: int | None = None
    nvlink_bytes: int | None = None  # sent and received on all links, since the driver started to count


@contextlib.contextmanager
def opened() -> Iterator[Any]:
    """Yields the initialised library; `None` if it is not installed, or there is no driver."""
    try:
        pynvml = importlib.import_module("pynvml")  # not the standard library's; few nodes have it
        pynvml.nvmlInit()
    except Exception:  # the package is missing, the driver is missing, or the two do not fit
        yield None
        return
    try:
        yield pynvml
    finally:
        with contextlib.suppress(Exception):
            pynvml.nvmlShutdown()


def facts() -> dict[str, Any]:
    """Returns `gpu` (the model), `gpus` (how many), `driver`, `cuda_driver`; empty without a GPU."""
    with opened() as nvml:
        count = _told(nvml.nvmlDeviceGetCount) if nvml else None
        if not count:
            return {}
        version = _told(nvml.nvmlSystemGetCudaDriverVersion)
        told = {
            "gpu": _text(_told(lambda: nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0)))),
            "gpus": count,
            "driver": _text(_told(nvml.nvmlSystemGetDriverVersion)),
            "cuda_driver": f"{version // 1000}.{version % 1000 // 10}" if version else None,
        }
        return {name: value for name, value in told.items() if value is not None}


def samples(nvml: Any) -> list[Sample]:
    """Samples every GPU of this machine. `nvml` is from `opened`."""
    return [_sample(nvml, number) for number in range(_told(nvml.nvmlDeviceGetCount) or 0)]


def _sample(nvml: Any, number: int) -> Sample:
    handle = _told(lambda: nvml.nvmlDeviceGetHandleByIndex(number))
    if handle is None:
        return Sample(number)
    busy = _told(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    memory = _told(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    return Sample(
        number,
        None if busy is None else float(busy),
        None if memory is None else int(memory.used),
        None if memory is None else int(memory.total),
        _nvlink_bytes(nvml, handle),
    )


def _nvlink_bytes(nvml: Any, handle: Any) -> int | None:
    """The two counters of the GPU as a whole, in KiB; `None` for a GPU without NVLink."""
    both = [
        (getattr(nvml, f"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_{way}", None), 0xFFFFFFFF)  # all links together
        for way in ("TX", "RX")
    ]
    if any(field is None for field, _ in both):
        return None
    found = _told(lambda: nvml.nvmlDeviceGetFieldValues(handle, both))
    if found is None or any(value.nvmlReturn != 0 for value in found):
        return None
    return sum(int(value.value.ullVal) for value in found) * KIB


def _told(ask: Callable[[], Any]) -> Any:
    """Returns the driver's answer; `None` if it refuses."""
    try:
        return ask()
    except Exception:
        return None


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
