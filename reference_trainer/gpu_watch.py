"""Watches the health of this rank's GPU during training, if NVIDIA's management library (NVML) is installed."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from harness.events import Emitter, abnormal, nvml

LOOK_S = 0.5
SILENT_S = 5.0  # without an answer: the library hangs, and `nvidia-smi` will, too
SLOWED_LOOKS = 4  # in a row
# The GPU has to be reset or replaced: uncorrectable ECC errors (48, 64, 95), off the bus (79), its firmware (119, 120).
XIDS_REPLACED = frozenset({48, 64, 79, 95, 119, 120})
XIDS_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 94})  # the program that caused it fails by itself


@dataclass(frozen=True)
class Trouble:
    reason: str
    replace: bool  # the GPU cannot be trusted any more


class GpuWatch:
    """Watches this rank's own GPU from a thread, because an NVML call that hangs must not stop the training."""

    def __init__(self, emit: Emitter, rank: int, local_rank: int):
        self._emit, self._rank, self._local_rank = emit, rank, local_rank
        self._heard_s = 0.0  # of the last answer; 0: there was none yet
        self._found: list[Trouble] = []
        self._told: set[str] = set()  # reasons
        threading.Thread(target=self._watch, name="gpu", daemon=True).start()

    def must_leave(self, step: int) -> bool:
        """Logs each new GPU problem once. Returns True if a new problem requires another GPU."""
        if self._heard_s and time.monotonic() - self._heard_s > SILENT_S:
            self._found.append(Trouble("NVML does not answer any more", replace=False))
        leave = False
        while self._found:
            trouble = self._found.pop(0)
            if trouble.reason not in self._told:
                self._told.add(trouble.reason)
                self._tell(trouble, step)
                leave |= trouble.replace
        return leave

    def _tell(self, trouble: Trouble, step: int) -> None:
        detail = f"at step {step} the GPU of rank {self._rank} is not well: {trouble.reason}"
        self._emit("anomaly", kind=abnormal.GPU, detail=detail, at_step=step, suspect=self._rank)
        decision = "evict-node" if trouble.replace else "ignore"
        self._emit("diagnosis", kind="gpu", who=[{"rank": self._rank}], decision=decision, why=detail)
        print(f"rank {self._rank}: {detail}", file=sys.stderr, flush=True)

    def _watch(self) -> None:
        with nvml.opened() as library:
            if library is None:
                return
            gpu = nvml.number_of(self._local_rank, os.environ.get("CUDA_VISIBLE_DEVICES"), nvml.uuids(library))
            if gpu is None:
                return
            xids, rules = nvml.Xids(library), Rules()
            while True:
                events = [xid for number, xid in xids.new() if number == gpu]
                self._found += rules.judge(nvml.sample(library, gpu), events)
                self._heard_s = time.monotonic()
                time.sleep(LOOK_S)


class Rules:
    """Finds problems in samples of a GPU's state. Error counters are compared with their values in the first sample."""

    def __init__(self) -> None:
        self._first: Any = None
        self._slowed = 0

    def judge(self, now: nvml.Sample, xids: list[int]) -> list[Trouble]:
        found = [Trouble(f"XID {xid}", xid in XIDS_REPLACED) for xid in xids if xid not in XIDS_OF_PROGRAMS]
        if now.lost:
            return [*found, Trouble("it has fallen off the bus", replace=True)]
        self._first = self._first or now
        if self._more("ecc_uncorrected", now):
            found.append(Trouble("uncorrectable ECC errors", replace=True))
        if self._more("nvlink_errors", now):
            found.append(Trouble("errors on its NVLinks", replace=False))
        self._slowed = self._slowed + 1 if (now.throttle_reasons or 0) & abnormal.GPU_SLOWED else 0
        if self._slowed >= SLOWED_LOOKS:
            found.append(Trouble(f"its clocks are held down (reasons {now.throttle_reasons:#x})", replace=False))
        return found

    def _more(self, counter: str, now: nvml.Sample) -> bool:
        before, value = getattr(self._first, counter), getattr(now, counter)
        return before is not None and value is not None and value > before
