"""What a node's worker reads of links, GPUs and memory; nothing is told where there is none."""

import pathlib
import socket
import sys
import threading
import types
from typing import Any

import pytest
from event_files import read_log

from harness.node.emitter import Emitter, memory, nvml, tcp, usage

TABLE = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     999       9    0    0    0     0          0         0      999       9    0    0    0     0       0          0
  eth0: 1234567     100    0    0    0     0          0         0   765432      90    0    0    0     0       0          0
   ib0:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
"""


def test_every_link_but_loopback(tmp_path: pathlib.Path) -> None:
    (tmp_path / "dev").write_text(TABLE)
    assert usage.links(str(tmp_path / "dev")) == [
        {"link": "eth0", "received_bytes": 1234567, "sent_bytes": 765432},
        {"link": "ib0", "received_bytes": 0, "sent_bytes": 0},
    ]
    assert usage.links(str(tmp_path / "none")) == []


def test_a_driver_that_counts_below_0_makes_no_log_unreadable(tmp_path: pathlib.Path) -> None:
    (tmp_path / "dev").write_text(TABLE.replace("1234567", str(2**64 - 5)))
    assert [link["link"] for link in usage.links(str(tmp_path / "dev"))] == ["ib0"]


@pytest.mark.parametrize("gpu", [False, True])
def test_a_worker_tells_them_now_and_then(gpu: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = library(nvmlDeviceGetUtilizationRates=lambda _: types.SimpleNamespace(gpu=40))
    monkeypatch.setitem(sys.modules, "pynvml", busy if gpu else None)
    emit, enough = Emitter(tmp_path / "w.jsonl", {"role": "trainer", "rank": 0}), threading.Event()
    told = []

    def tell(event: str, **fields: Any) -> int:
        told.append(event)
        if len(told) == 3:
            enough.set()
        return emit(event, **fields)

    usage.watch(tell, every_s=0.01)  # type: ignore[arg-type]
    assert enough.wait()
    (log,) = read_log(tmp_path)
    first = log.events[0]
    assert first["event"] == "usage" and first["namespace"]
    assert all(set(link) == {"link", "received_bytes", "sent_bytes"} for link in first["links"])
    gpus = [{"gpu": 0, "busy_percent": 40.0, "memory_bytes": 5, "memory_bytes_total": 10}]
    assert first.get("gpus") == (gpus if gpu else None)


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


MIB = 2**20
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("memory.max", "memory.current", "inactive_file")


def group(path: pathlib.Path, names: tuple[str, str, str], limit: str, used: int, cache: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / names[0]).write_text(f"{limit}\n")
    (path / names[1]).write_text(f"{used}\n")
    (path / "memory.stat").write_text(f"rss 5\n{names[2]} {cache}\n")


@pytest.mark.parametrize("names", [V1, V2], ids=["v1", "v2"])
def test_the_tightest_group_above_a_process_counts(
    names: tuple[str, str, str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = tmp_path / "groups"
    group(mount / "job", names, str(400 * MIB), 300 * MIB, 60 * MIB)
    group(mount / "job" / "node", names, "max" if names is V2 else str(2**63 - 4096), 5 * MIB, 0)
    kind = "cgroup2 cgroup2 rw" if names is V2 else "cgroup cgroup rw,memory"
    (tmp_path / "mountinfo").write_text(f"31 23 0:28 / {mount} rw - {kind}\n")
    (tmp_path / "cgroup").write_text("0::/job/node\n" if names is V2 else "4:memory:/job/node\n1:cpu:/\n")
    monkeypatch.setattr(memory, "SELF", tmp_path)
    assert list(memory._groups()) == [memory.Room(240 * MIB, 400 * MIB)]
    found = memory.room()
    assert found is not None and found.free <= 160 * MIB


def test_the_machine_is_the_limit_without_a_group_and_a_process_knows_what_it_holds(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = memory.resident_bytes()
    held = b"\x01" * (64 * MIB)
    assert memory.resident_bytes() - before >= 60 * MIB and held
    monkeypatch.setattr(memory, "SELF", tmp_path)
    found = memory.room()
    assert found is not None and 0 < found.used < found.limit and found.free == found.limit - found.used


def test_connections_are_told_by_their_two_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the host itself, the kernel's answer; by other hosts, the slowest round trip and the sums."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        other, _ = server.accept()
        client.sendall(b"x")
        assert tcp.Connection in {type(each) for each in tcp.connections() if each.peer == "127.0.0.1"}
        assert tcp.by_peer() == [] or all(each["local"] != each["peer"] for each in tcp.by_peer())
        other.close()
    made = [tcp.Connection("10.0.0.1", "10.0.0.2", rtt, 3, stuck) for rtt, stuck in ((900, 0), (40_000, 1))]
    monkeypatch.setattr(tcp, "connections", lambda: iter([*made, tcp.Connection("10.0.0.1", "10.0.0.1", 9, 9, 9)]))
    told = {"local": "10.0.0.1", "peer": "10.0.0.2", "rtt_us": 40_000, "sent_again": 6, "stuck": 1}
    assert tcp.by_peer() == [told]


def test_a_kernel_that_tells_of_no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise PermissionError("netlink")

    monkeypatch.setattr(tcp, "connections", refused)
    assert tcp.by_peer() == []
