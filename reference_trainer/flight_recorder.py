"""Logs which collective each rank was in when training hung, as PyTorch's flight recorder shows.

PyTorch's flight recorder keeps the last collectives of each process group, for NCCL and gloo, with the line of code
that began each of them. All ranks number collectives in the same way. In a hang, the other ranks wait for the rank
whose newest collective has the smallest number.
"""

from __future__ import annotations

import os
import pathlib
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from harness.events import Emitter

ENTRIES_KEPT = 200
_TORCH = os.path.dirname(torch.__file__)


def switch_on() -> None:
    """Switches the flight recorder on by environment variables, unless they are set already. Must run before the
    process group is made."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(ENTRIES_KEPT))
    os.environ.setdefault("NCCL_DEBUG", "WARN")


def tell(emit: Emitter) -> bool:
    """Logs the newest collective of each process group, and whether the collective is over. Returns True if all newest
    collectives are over, which means that this rank waits for no other rank."""
    found = list(last_collectives())
    for newest in found:
        emit("flight_recorder", **newest)
    return bool(found) and all(newest["over"] for newest in found)


def last_collectives() -> Iterator[dict[str, Any]]:
    """Yields the newest collective of each process group, or nothing if this PyTorch version keeps no record."""
    for read in (_dump("_dump_nccl_trace"), _dump("_dump_fr_trace")):
        groups = {entry["process_group"][0]: entry for entry in read.get("entries", ())}  # the last of each wins
        for name, entry in groups.items():
            yield {
                "group": str(name),
                "number": entry["collective_seq_id"],
                "operation": entry["profiling_name"],
                "over": bool(entry["retired"]) or entry["state"] == "completed",
                "code": _code(entry.get("frames", ())),
            }


def _dump(name: str) -> Mapping[str, Any]:
    """Returns the flight recorder's content. `name` is a private function of PyTorch, which some versions lack."""
    dump = getattr(torch._C._distributed_c10d, name, None)
    if dump is None:
        return {}
    found: Mapping[str, Any] = pickle.loads(dump())  # our own process wrote it
    return found


def _code(frames: Any) -> str:
    own = (frame for frame in frames if not frame["filename"].startswith(_TORCH))
    frame = next(own, None)
    return f"{pathlib.Path(frame['filename']).name}:{frame['line']} in {frame['name']}" if frame else ""
