"""The library in the place of NVIDIA's, asked by unmodified pynvml; and which GPU is a rank's."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import CannotRunError
from harness.node import boot, gpu_health
from harness.node.emitter import nvml

NEEDS_COMPILER = pytest.mark.skipif(gpu_health.why_not() is not None, reason=str(gpu_health.why_not()))
NEEDS_PYNVML = pytest.mark.skipif(importlib.util.find_spec("pynvml") is None, reason="pynvml is not installed")
pytestmark = [NEEDS_COMPILER, NEEDS_PYNVML]

REAL = """
#include <string.h>
static int gpu;
int nvmlInitWithFlags(unsigned flags) { return flags; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *to) { *to = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **to) { *to = &gpu; return number ? 2 : 0; }
int nvmlDeviceGetIndex(void *device, unsigned *to) { *to = 0; return device == &gpu ? 0 : 2; }
int nvmlDeviceGetName(void *device, char *to, unsigned size) { strncpy(to, "A real GPU", size); return 0; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *to) { *to = 50; return 0; }
int nvmlDeviceGetTotalEccErrors(void *device, int error, int counter, unsigned long long *to) { *to = 7; return 0; }
int nvmlDeviceGetSerial(void *device, char *to, unsigned size) { strncpy(to, "42", size); return 0; }
int nvmlEventSetCreate(void **to) { *to = &gpu; return 0; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) { return 0; }
int nvmlEventSetWait_v2(void *set, void *event, unsigned ms) { return 10; }
"""
ASK = """
import json, pynvml as n
def told(ask, *more):
    try:
        found = ask(*more)
    except n.NVMLError as error:
        return error.value
    return found.decode() if isinstance(found, bytes) else found
n.nvmlInit()
devices = []
for number in range(n.nvmlDeviceGetCount()):
    gpu = told(n.nvmlDeviceGetHandleByIndex, number)
    asked = dict(name=[n.nvmlDeviceGetName], temperature=[n.nvmlDeviceGetTemperature, 0], ecc=[n.nvmlDeviceGetTotalEccErrors, 1, 0],
                 serial=[n.nvmlDeviceGetSerial], busy=[lambda gpu: n.nvmlDeviceGetUtilizationRates(gpu).gpu],
                 reasons=[n.nvmlDeviceGetCurrentClocksEventReasons], by_uuid=[lambda gpu: n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(gpu)))],
                 processes=[n.nvmlDeviceGetComputeRunningProcesses_v3], fields=[lambda gpu: [v.value.ullVal for v in n.nvmlDeviceGetFieldValues(gpu, [4, 38])]])
    devices.append({k: told(ask, gpu, *more) for k, (ask, *more) in asked.items()} if not isinstance(gpu, int) else gpu)
print(json.dumps(devices))
"""
WAIT = """
import pynvml as n, sys
n.nvmlInit()
events, gpu = n.nvmlEventSetCreate(), n.nvmlDeviceGetHandleByIndex(0)
n.nvmlDeviceRegisterEvents(gpu, n.nvmlEventTypeXidCriticalError, events)
print("ready", flush=True)
event = n.nvmlEventSetWait(events, 60000)
print(n.nvmlDeviceGetIndex(event.device), event.eventData)
try:
    n.nvmlEventSetWait(events, 10)
except n.NVMLError_Timeout:
    print("once")
"""
NOT_THERE = 13  # NVML_ERROR_FUNCTION_NOT_FOUND


def environment(run_dir: pathlib.Path, node: str = "node0", places: tuple[str, ...] = ()) -> dict[str, str]:
    marks = gpu_health.prepare(run_dir, places) | {"CHAOS_NODE": node}
    gpu_health.make_states(run_dir, ["node0", "node1"], 2)
    return boot.with_delivered({**os.environ, **marks}, boot.place())


def asked(env: dict[str, str]) -> list[Any]:
    done = subprocess.run([sys.executable, "-c", ASK], env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: list[Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def real_library(tmp_path: pathlib.Path) -> str:
    source, library = tmp_path / "real.c", tmp_path / "real" / gpu_health.LIBRARY
    library.parent.mkdir()
    source.write_text(REAL)
    name = f"-Wl,-soname,{gpu_health.LIBRARY}"  # as the real one has it
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), name], check=True)
    return str(library)


def test_a_node_without_a_gpu_has_simulated_ones_and_only_the_sick_one_differs(tmp_path: pathlib.Path) -> None:
    env = environment(tmp_path)
    healthy = asked(env)
    assert [(each["name"], each["temperature"], each["ecc"]) for each in healthy] == [("Simulated GPU", 45, 0)] * 2
    assert [each["by_uuid"] for each in healthy] == [0, 1]
    assert healthy[0]["busy"] == 3, "a simulated GPU does not say that it works"
    gpu_health.set_health(tmp_path, "node0", 1, {"temperature": 97, "ecc_uncorrected": 4, "throttle": 0x40, "busy": 5})
    sick = asked(env)
    assert sick[0] == healthy[0]
    assert [sick[1][name] for name in ("temperature", "ecc", "reasons", "busy")] == [97, 4, 0x40, 5]
    assert sick[1]["fields"] == [4, 0]
    assert asked(env | {"CHAOS_NODE": "node1"}) == healthy, "of another node"
    gpu_health.set_health(tmp_path, "node0", 1, {})
    assert asked(env) == healthy


def test_the_real_library_answers_all_that_is_not_changed(tmp_path: pathlib.Path, real_library: str) -> None:
    env = environment(tmp_path, places=("/nowhere/" + gpu_health.LIBRARY, real_library))
    (gpu,) = asked(env)
    assert (gpu["name"], gpu["temperature"], gpu["ecc"]) == ("A real GPU", 50, 7)
    assert gpu["serial"] == "42", "a function that only the real library has"
    assert gpu["reasons"] == gpu["processes"] == NOT_THERE, "functions that this real library does not have"
    gpu_health.set_health(tmp_path, "node0", 0, {"temperature": 97, "ecc_uncorrected": 4})
    (sick,) = asked(env)
    assert sick == gpu | {"temperature": 97, "ecc": 11}


@pytest.mark.parametrize("real", [False, True])
def test_an_event_is_told_once_to_those_who_wait(real: bool, tmp_path: pathlib.Path, real_library: str) -> None:
    env = environment(tmp_path, places=(real_library,) if real else ())
    gpu_health.set_health(tmp_path, "node0", 0, {"xid": 13})  # before anybody waits
    with subprocess.Popen([sys.executable, "-c", WAIT], env=env, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None and waiting.stdout.readline() == "ready\n"
        gpu_health.set_health(tmp_path, "node0", 0, {"temperature": 97})  # no event
        gpu_health.set_health(tmp_path, "node0", 0, {"xid": 79})
        gpu_health.set_health(tmp_path, "node0", 0, {})  # who looks later hears the same number
        assert waiting.stdout.read() == "0 79\nonce\n"


def test_calls_hang_until_the_gpu_is_healed_and_a_lost_one_is_lost_alone(tmp_path: pathlib.Path) -> None:
    env = environment(tmp_path)
    gpu_health.set_health(tmp_path, "node0", 0, {"hang": 1})
    with subprocess.Popen([sys.executable, "-c", ASK], env=env, stdout=subprocess.PIPE, text=True) as hanging:
        time.sleep(1.0)
        assert hanging.poll() is None
        gpu_health.set_health(tmp_path, "node0", 0, {"lost": 1})
        assert hanging.stdout is not None
        lost, other = json.loads(hanging.stdout.read())
    assert lost == nvml.GPU_IS_LOST and other["temperature"] == 45


def test_without_a_compiler_the_plan_is_refused_and_libraries_of_the_workload_stay_on_the_path(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CannotRunError, match=r"no C compiler .*: install one"):
        gpu_health.prepare(tmp_path)
    env = boot.with_delivered({"LD_LIBRARY_PATH": "/opt/nccl", boot.GPU_ENV: "/run/gpu"}, "/x")
    assert env["LD_LIBRARY_PATH"] == "/run/gpu:/opt/nccl"
    assert "LD_LIBRARY_PATH" not in boot.with_delivered({}, "/x")


UUIDS = [f"GPU-{number}a" for number in range(8)]


@pytest.mark.parametrize(
    ("local_rank", "visible", "gpu"),
    [(1, None, 1), (8, None, None), (0, "5,2", 5), (1, "5,2", 2), (2, "5,2", None), (0, "GPU-3", 3), (0, "", None)],
)
def test_a_rank_has_the_gpu_that_cuda_shows_it(local_rank: int, visible: str | None, gpu: int | None) -> None:
    assert nvml.number_of(local_rank, visible, UUIDS) == gpu


@given(st.integers(0, 2000), st.none() | st.text(max_size=20))
def test_what_a_process_calls_its_gpus_names_one_of_them_or_none(local_rank: int, visible: str | None) -> None:
    assert nvml.number_of(local_rank, visible, UUIDS) in {None, *range(8)}
