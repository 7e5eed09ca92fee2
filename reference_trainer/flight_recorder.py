"""Which collective each rank was in when the training hung: PyTorch's flight recorder, read by the process itself.

The recorder keeps a ring of the last collectives of each process group, for NCCL and for gloo, with the line of code
that began them. Ranks count collectives alike. So of ranks that hang, the one with the smaller number is the one that
the others wait for.
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
    """To be called before the process group is made. What the environment already says stays."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(ENTRIES_KEPT))
    os.environ.setdefault("NCCL_DEBUG", "WARN")


def tell(emit: Emitter) -> bool:
    """One event for each process group: its newest collective, and whether it was still going on. Whether all of them
    are over: then this rank waits for no other one."""
    found = list(last_collectives())
    for newest in found:
        emit("flight_recorder", **newest)
    return bool(found) and all(newest["over"] for newest in found)


def last_collectives() -> Iterator[dict[str, Any]]:
    """The newest collective of each process group. Nothing where this PyTorch keeps no record."""
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
    """PyTorch has no public name for it; where this one is missing there is nothing to tell."""
    dump = getattr(torch._C._distributed_c10d, name, None)
    if dump is None:
        return {}
    found: Mapping[str, Any] = pickle.loads(dump())  # our own process wrote it
    return found


def _code(frames: Any) -> str:
    """`train.py:312 in _sum`: the innermost line that is not PyTorch's own."""
    own = (frame for frame in frames if not frame["filename"].startswith(_TORCH))
    frame = next(own, None)
    return f"{pathlib.Path(frame['filename']).name}:{frame['line']} in {frame['name']}" if frame else ""
