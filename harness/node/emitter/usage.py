"""Logs the use of a node's network links, memory and GPUs, in the first worker process of the node."""

from __future__ import annotations

import os
import pathlib
import threading
import time
from typing import Any

from harness.node.emitter import BYTES_MAX, Emitter, clock_id, memory, nvml, tcp

EVERY_S = 5.0
LINKS_MAX = 64


def watch(emit: Emitter, every_s: float = EVERY_S) -> None:
    """Logs the node's usage at once and then every `every_s` seconds, in a thread that ends with the process."""
    threading.Thread(target=_watch, args=(emit, every_s), name="usage", daemon=True).start()


def _watch(emit: Emitter, every_s: float) -> None:
    with nvml.opened() as library:
        xids = nvml.Xids(library) if library else None
        while True:
            told: dict[str, Any] = {"namespace": f"{clock_id()} {os.stat('/proc/self/ns/net').st_ino}"}
            told |= {"links": links(), "peers": tcp.by_peer()}
            if room := memory.room():
                told |= {"memory_bytes": max(0, room.used), "memory_bytes_limit": room.limit}
            if gpus := nvml.samples(library, xids) if library else []:
                told["gpus"] = [{k: v for k, v in vars(each).items() if v is not None} for each in gpus]
            emit("usage", **told)
            time.sleep(every_s)


def tell_peers(emit: Emitter) -> None:
    """Logs the TCP connections to other nodes. A process calls `tell_peers` when it ends because another rank
    failed."""
    emit("usage", peers=tcp.by_peer())


def links(table: str = "/proc/self/net/dev") -> list[dict[str, Any]]:
    """Returns `link`, `received_bytes` and `sent_bytes` of each network interface, except loopback."""
    try:
        lines = pathlib.Path(table).read_text().splitlines()[2:]
    except OSError:
        return []
    rows = [(name.strip(), rest.split()) for name, _, rest in (line.partition(":") for line in lines)]
    return [
        {"link": name, "received_bytes": int(columns[0]), "sent_bytes": int(columns[8])}
        for name, columns in rows[: LINKS_MAX + 1]
        if name != "lo" and max(int(columns[0]), int(columns[8])) <= BYTES_MAX  # some drivers count below 0
    ]
