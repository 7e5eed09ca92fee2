"""Makes GPUs look faulty to a node's processes: a C library replaces NVIDIA's management library (NVML), and returns
values from a file.

The processes of a node load the C library from their start, because it is first in LD_LIBRARY_PATH. The C library reads
the node's file at each call, so that running processes see changes. Calls that the C library does not implement go to
the node's real NVML, if there is one. The GPUs themselves and processes outside of the node are not affected.

    python -m harness.node.gpu_health      prints, several times a second, the values that a process of this node gets
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import pathlib
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import CannotRunError
from harness.node import boot, compiling, owner_names

SOURCE = pathlib.Path(__file__).with_name("gpu_health.c")
FOLDER = "gpu"  # below the run's
LIBRARY = "libnvidia-ml.so.1"
PASSED_ON = "libchaos-real-nvml.so"  # empty: the real library is its auxiliary one, if the node has it
# Where drivers put it: Debian and Ubuntu, Red Hat, Google's and AWS's container hosts, NixOS, Windows' Linux.
PLACES = tuple(
    f"{folder}/{LIBRARY}"
    for folder in (
        *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"),
        *("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/run/opengl-driver/lib", "/usr/lib/wsl/lib"),
    )
)
FIELDS = (
    *("nothing", "lost", "hang", "temperature", "power", "busy", "sm_clock", "throttle", "ecc_corrected"),
    *("ecc_uncorrected", "remapped", "nvlinks_down", "nvlink_errors", "xid", "xids"),
)  # `nothing` is never changed; `xids` counts the errors, and `xid` is the newest one
DEVICES_MAX = 64
UNCHANGED = -(2**63)
LOOK_S = 0.1
WATCHES_S_MAX = 600.0
EVENTS_KEPT = 64
_COUNT, _DEVICE = struct.Struct("=q"), struct.Struct(f"={len(FIELDS)}q")
_HEALTHY = (UNCHANGED,) * len(FIELDS)


def prepare(run_dir: pathlib.Path, places: Sequence[str] = PLACES) -> dict[str, str]:
    """Builds the library that makes GPUs look faulty, and returns the environment variables that processes of nodes
    need. `places` are the paths at which the real library may be on a node. Raises `CannotRunError` if the library
    cannot be built."""
    folder = run_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    auxiliary = [f"-Wl,--auxiliary={place}" for place in places]
    compiling.build(folder / PASSED_ON, "-x", "c", "/dev/null", f"-Wl,-soname,{PASSED_ON}", *auxiliary)
    numbers = [f"-DF_{name.upper()}={number}" for number, name in enumerate(FIELDS)]
    numbers += [f"-DFIELDS={len(FIELDS)}", f"-DDEVICES_MAX={DEVICES_MAX}"]
    named = ",".join(f'"{place}"' for place in places)
    links = ["-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN", str(folder / PASSED_ON), "-ldl", f"-Wl,-soname,{LIBRARY}"]
    hidden = "-fvisibility=hidden"
    compiling.build(folder / LIBRARY, hidden, *numbers, f"-DPLACES={named}", str(SOURCE), *links)
    return {boot.GPU_ENV: str(folder)}


def make_states(run_dir: pathlib.Path, nodes: Sequence[str], gpus: int) -> None:
    """Creates, for each node, the file with the simulated GPU health, before the node's processes start. Does nothing
    in a run without simulated GPU health."""
    for node in nodes if (run_dir / FOLDER).is_dir() else ():
        if not (run_dir / FOLDER / node).exists():
            _write(run_dir, node, gpus, {})


def set_health(run_dir: pathlib.Path, node: str, device: int, health: Mapping[str, int]) -> None:
    """Sets the values that processes of the node read for a GPU; running processes see the change. An empty `health`
    restores the real values. If `health` has an `xid`, processes of the node also get one GPU error with this Xid
    number."""
    content = (run_dir / FOLDER / node).read_bytes()
    devices = dict(enumerate(_DEVICE.iter_unpack(content[_COUNT.size :])))
    before = dict(zip(FIELDS, devices[device]))  # errors stay: who looks later must hear of them, and nobody twice
    wanted = {"xid": before["xid"], "xids": max(0, before["xids"]) + ("xid" in health)} | dict(health)
    devices[device] = tuple(wanted.get(field, UNCHANGED) for field in FIELDS)
    _write(run_dir, node, _COUNT.unpack_from(content)[0], devices)


def _write(run_dir: pathlib.Path, node: str, gpus: int, devices: Mapping[int, Sequence[int]]) -> None:
    fresh = run_dir / FOLDER / f".{node}.new"
    records = (_DEVICE.pack(*devices.get(number, _HEALTHY)) for number in range(DEVICES_MAX))
    fresh.write_bytes(_COUNT.pack(gpus) + b"".join(records))
    fresh.chmod(0o644)
    fresh.replace(run_dir / FOLDER / node)


@functools.cache
def why_not() -> str | None:
    """Tries to make a GPU look faulty on this machine. Returns the reason if that fails, else `None`."""
    with owner_names.temporary_folder() as run_dir:
        try:
            marks = prepare(run_dir) | {"CHAOS_NODE": "probe"}
            make_states(run_dir, ["probe"], 1)
            command = boot.command(sys.executable, boot.place(), __name__, ["once"])
            env = boot.with_delivered({**os.environ, **marks}, boot.place())
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=compiling.COMPILE_S_MAX)
            seen = json.loads(done.stdout)
        except CannotRunError as error:
            return str(error)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return f"a library cannot be loaded into a process here: {error}"
    return None if seen["ours"] and seen["devices"] else "a library in the place of NVIDIA's tells no GPU here"


# What a process of the node is told


class _Event(ctypes.Structure):
    _fields_ = (
        *(("device", ctypes.c_void_p), ("type", ctypes.c_ulonglong), ("data", ctypes.c_ulonglong)),
        *(("instance", ctypes.c_uint), ("compute", ctypes.c_uint)),
    )


def _figure(call: Any, handle: ctypes.c_void_p, *before: int, wide: bool = False) -> int | None:
    value = ctypes.c_ulonglong() if wide else ctypes.c_uint()
    return value.value if call(handle, *before, ctypes.byref(value)) == 0 else None


def _device(nvml: Any, number: int) -> dict[str, Any]:
    handle = ctypes.c_void_p()
    if error := nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)):
        return {"gpu": number, "error": error}
    uuid, rates, rows = ctypes.create_string_buffer(96), (ctypes.c_uint * 2)(), (ctypes.c_uint * 4)()
    nvml.nvmlDeviceGetUUID(handle, uuid, 96)
    busy = nvml.nvmlDeviceGetUtilizationRates(handle, rates)
    at = [ctypes.byref(rows, 4 * place) for place in range(4)]
    remapped = nvml.nvmlDeviceGetRemappedRows(handle, *at)
    links = [_figure(nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(18)]
    return {
        "gpu": number,
        "uuid": uuid.value.decode(errors="replace"),
        "temperature": _figure(nvml.nvmlDeviceGetTemperature, handle, 0),
        "power": _figure(nvml.nvmlDeviceGetPowerUsage, handle),
        "busy": None if busy else rates[0],
        "sm_clock": _figure(nvml.nvmlDeviceGetClockInfo, handle, 1),
        "throttle": _figure(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle, wide=True),
        "ecc_corrected": _figure(nvml.nvmlDeviceGetTotalEccErrors, handle, 0, 0, wide=True),
        "ecc_uncorrected": _figure(nvml.nvmlDeviceGetTotalEccErrors, handle, 1, 0, wide=True),
        "remapped": None if remapped else rows[1],
        "nvlinks_down": sum(state == 0 for state in links),
        "nvlink_errors": _figure(nvml.nvmlDeviceGetNvLinkErrorCounter, handle, 0, 0, wide=True),
    }


def _watch(once: bool) -> None:
    nvml = ctypes.CDLL(LIBRARY)
    ours = pathlib.Path(os.environ.get(boot.GPU_ENV, "/"), LIBRARY)
    maps = pathlib.Path("/proc/self/maps").read_text()
    if error := nvml.nvmlInit_v2():
        sys.exit(f"nvmlInit_v2 answers {error}")
    count, events, xids = ctypes.c_uint(), ctypes.c_void_p(), list[list[int]]()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    nvml.nvmlEventSetCreate(ctypes.byref(events))
    handles: dict[int | None, int] = {}
    for number in range(count.value):
        handle = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)) == 0:
            nvml.nvmlDeviceRegisterEvents(handle, ctypes.c_ulonglong(8), events)
            handles[handle.value] = number
    end, event = time.monotonic() + WATCHES_S_MAX, _Event()
    while time.monotonic() < end:
        devices = [_device(nvml, number) for number in range(min(count.value, DEVICES_MAX))]
        while nvml.nvmlEventSetWait_v2(events, ctypes.byref(event), 0) == 0:
            xids = [*xids[1 - EVENTS_KEPT :], [handles.get(event.device, -1), int(event.data)]]
        told = {"at_ns": time.monotonic_ns(), "ours": str(ours) in maps, "devices": devices, "xids": xids}
        print(json.dumps(told), flush=True)
        if once:
            return
        time.sleep(LOOK_S)


if __name__ == "__main__":
    _watch("once" in sys.argv[1:])
