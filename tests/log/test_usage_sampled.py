"""Counters of links and GPUs as a node's worker reads them."""

import pathlib
import sys
import threading
import types
from typing import Any

import pytest
from log.test_nvml import library

from harness.log.event_log import read_log
from harness.node.emitter import Emitter, usage

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
