"""Reads the state of this machine's GPUs by NVIDIA's management library (NVML). Values that NVML does not report are
left out, not set to 0."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.node.emitter import abnormal

KIB = 1024
SIMULATED = "Simulated GPU"  # its name, by the library of the fault gpu_health
GPU_IS_LOST = 15  # NVML_ERROR_GPU_IS_LOST
XIDS_MAX, XID_MASK = 1000, 0xFFFFFFFF  # of one look; of an error's number
NVLINK_ERROR_KINDS = 4  # replays, recoveries, bad checksums of flits and of data


@dataclass(frozen=True)
class Sample:
    """Values measured on one GPU at one time. A value is `None` if the GPU or its driver does not report it."""

    gpu: int
    busy_percent: float | None = None  # share of the driver's last sampling period with a running kernel
    memory_bytes: int | None = None
    memory_bytes_total: int | None = None
    nvlink_bytes: int | None = None  # sent and received on all links, since the driver started to count
    temperature_c: int | None = None
    throttle_reasons: int | None = None  # bits, as `nvmlClocksEventReason…`
    ecc_corrected: int | None = None  # errors since the driver was loaded
    ecc_uncorrected: int | None = None
    nvlink_errors: int | None = None  # of all links: replays, recoveries and bad checksums
    xid: int | None = None  # the newest error of the driver since the first look
    xids: int | None = None  # how many there were
    lost: bool | None = None  # fallen off the bus


@contextlib.contextmanager
def opened() -> Iterator[Any]:
    """Yields the initialised NVIDIA management library (NVML), or `None` if the library or the driver is missing."""
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
    """Returns known facts about this machine's GPUs: `gpu` (model), `gpus` (number), `driver` and `cuda_driver`."""
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


class Xids:
    """Collects the errors (Xid numbers) that the GPU driver reports from now on: for each GPU, their count and the last
    one."""

    def __init__(self, nvml: Any):
        self.count, self.last = dict[int, int](), dict[int, int]()
        self._nvml, self._events = nvml, _told(lambda: nvml.nvmlEventSetCreate())  # an old package may lack it
        self._numbers: dict[int | None, int] = {}  # by address: a lost GPU does not tell its number
        for number in range(_told(nvml.nvmlDeviceGetCount) or 0) if self._events is not None else ():
            _told(lambda: self._register(number))  # noqa: B023

    def _register(self, number: int) -> None:
        gpu = self._nvml.nvmlDeviceGetHandleByIndex(number)
        self._nvml.nvmlDeviceRegisterEvents(gpu, self._nvml.nvmlEventTypeXidCriticalError, self._events)
        self._numbers[_address(gpu)] = number

    def new(self) -> list[tuple[int, int]]:
        """Returns the GPU index and the Xid number of each driver error since the last call, the oldest first."""
        found = []
        for _ in range(XIDS_MAX if self._events is not None else 0):
            event = _told(lambda: self._nvml.nvmlEventSetWait(self._events, 0))
            if event is None:
                break
            number, xid = self._numbers.get(_address(event.device), -1), int(event.eventData) & XID_MASK
            self.count[number], self.last[number] = self.count.get(number, 0) + 1, xid
            found.append((number, xid))
        return found


def _address(gpu: Any) -> int | None:
    return ctypes.cast(gpu, ctypes.c_void_p).value


def samples(nvml: Any, xids: Xids | None = None) -> list[Sample]:
    if xids:
        xids.new()
    return [sample(nvml, number, xids) for number in range(_told(nvml.nvmlDeviceGetCount) or 0)]


def unwell(limit_s: float = 10.0) -> list[str]:
    """Returns a description of each GPU problem that NVIDIA's library reports. The library is called in a thread,
    because it may hang."""
    told, asked = list[str](), threading.Event()

    def ask() -> None:
        with opened() as library:
            for gpu in samples(library) if library else []:
                slowed = (gpu.throttle_reasons or 0) & abnormal.GPU_SLOWED
                ecc = f"GPU {gpu.gpu} had {gpu.ecc_uncorrected} uncorrectable ECC errors since its driver was loaded"
                told.extend([f"GPU {gpu.gpu} has fallen off the bus"] if gpu.lost else [])
                told.extend([ecc] if gpu.ecc_uncorrected else [])
                told.extend([f"the clocks of GPU {gpu.gpu} are held down by heat, power or hardware"] if slowed else [])
        asked.set()

    threading.Thread(target=ask, daemon=True).start()
    return list(told) if asked.wait(limit_s) else [*told, f"NVML does not answer within {limit_s:g} s"]


def number_of(local_rank: int, visible: str | None, uuids: Sequence[str | None]) -> int | None:
    """Returns NVML's index of the GPU that CUDA calls `local_rank`, or `None` if there is no such GPU. `visible` is
    CUDA_VISIBLE_DEVICES (GPU numbers or prefixes of UUIDs), or `None` for all GPUs. `uuids` holds the UUIDs of all
    GPUs."""
    named = range(len(uuids)) if visible is None else [each.strip() for each in visible.split(",")]
    name = str(named[local_rank]) if local_rank < len(named) else ""
    if name.isdecimal():
        return int(name) if int(name) < len(uuids) else None
    return next((place for place, uuid in enumerate(uuids) if name and uuid and uuid.startswith(name)), None)


def uuids(nvml: Any) -> list[str | None]:
    def uuid(number: int) -> str | None:
        return _text(_told(lambda: nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(number))))

    return [uuid(number) for number in range(_told(nvml.nvmlDeviceGetCount) or 0)]


def sample(nvml: Any, number: int, xids: Xids | None = None) -> Sample:
    seen: dict[str, Any] = {"xid": xids.last.get(number), "xids": xids.count.get(number)} if xids else {}
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
    except Exception as error:
        return Sample(number, lost=getattr(error, "value", None) == GPU_IS_LOST or None, **seen)
    seen |= _health(nvml, handle)
    busy = _told(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    simulated = _text(_told(lambda: nvml.nvmlDeviceGetName(handle))) == SIMULATED
    memory = None if simulated else _told(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))  # none of it is ever in use
    return Sample(
        number,
        None if busy is None else float(busy),
        None if memory is None else int(memory.used),
        None if memory is None else int(memory.total),
        _nvlink_bytes(nvml, handle),
        **seen,
    )


def _health(nvml: Any, handle: Any) -> dict[str, int | None]:
    def errors(kind: str) -> int | None:
        told = _told(lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, getattr(nvml, kind), nvml.NVML_VOLATILE_ECC))
        return None if told is None else int(told)

    reasons = _told(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    return {
        "temperature_c": _told(lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
        "throttle_reasons": None if reasons is None else int(reasons),
        "ecc_corrected": errors("NVML_MEMORY_ERROR_TYPE_CORRECTED"),
        "ecc_uncorrected": errors("NVML_MEMORY_ERROR_TYPE_UNCORRECTED"),
        "nvlink_errors": _nvlink_errors(nvml, handle),
    }


def _nvlink_errors(nvml: Any, handle: Any) -> int | None:
    found = [
        _told(lambda: nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, kind))  # noqa: B023
        for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 0))
        for kind in range(NVLINK_ERROR_KINDS)
    ]
    told = [int(each) for each in found if each is not None]
    return sum(told) if told else None


def _nvlink_bytes(nvml: Any, handle: Any) -> int | None:
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
    try:
        return ask()
    except Exception:
        return None


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
