"""Detects that the memory of this rank's process grows steadily and will soon reach its limit."""

from __future__ import annotations

import sys
import time

from harness.events import Emitter, abnormal, memory


class MemoryWatch:
    def __init__(self, emit: Emitter, rank: int):
        self._emit, self._rank = emit, rank
        self._leak = abnormal.Leak()
        self._told = False

    def runs_out(self, step: int) -> bool:
        """Returns True if the memory will soon be full, so that the process must be restarted. Returns True only
        once."""
        now_s = time.monotonic()
        if self._told or not self._leak.due(now_s):
            return False
        room, resident = memory.room(), memory.resident_bytes()
        growth = self._leak.read(now_s, resident, room.free) if room else None
        if growth is None or room is None:
            return False
        self._told = True
        detail = f"at step {step} rank {self._rank} uses {_mib(resident)} and takes {_mib(growth.bytes_per_s)} a second"
        detail += f": {_mib(room.free)} of {_mib(room.limit)} are left, for {growth.full_in_s:.0f} s"
        told = {"rate_bytes": round(growth.bytes_per_s), "free_bytes": room.free}
        self._emit("anomaly", kind=abnormal.MEMORY, detail=detail, at_step=step, suspect=self._rank, **told)
        who = [{"rank": self._rank}]
        self._emit("diagnosis", kind="crash", who=who, decision="restart-in-place", why=detail)
        print(f"rank {self._rank}: {detail}", file=sys.stderr, flush=True)
        return True


def _mib(count: float) -> str:
    return f"{count / 2**20:.0f} MiB"
