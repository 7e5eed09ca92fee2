"""Counts complete and failed checkpoints during a run, and measures the usual time between two commits.

Each rank may commit its own part of a checkpoint. A checkpoint is complete when all ranks that began to save have
committed their parts, and when it has at least as many parts as earlier checkpoints since the job's last restart. After
the run, the judge counts the checkpoints again from the complete log.
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OPEN_MAX = 64  # checkpoints that are being saved; of more, the oldest is forgotten
COMMITS_KEPT = 21
COMMITS_MIN = 3


@dataclass
class _Save:
    began: set[int] = field(default_factory=set)
    parts: set[int] = field(default_factory=set)
    begun_ns: int | None = None
    took_ns: int = 0
    over: bool = False


@dataclass(frozen=True)
class Done:
    """A complete or failed checkpoint. `took_s` is the duration, or `None` if the checkpoint failed or the duration is
    unknown."""

    step: int
    whole: bool
    took_s: float | None = None


@dataclass
class Saves:
    _open: dict[int, _Save] = field(default_factory=dict)  # by step
    _restarts: int = 0  # of the job
    _parts: int = 1  # so many ranks have committed a part of the checkpoints so far
    _commits_s: deque[float] = field(default_factory=lambda: deque(maxlen=COMMITS_KEPT))

    def absorb(self, restarts: int, rank: int, name: str, event: Mapping[str, Any], now_s: float) -> Done | None:
        """Counts a checkpoint event that `rank` logged after `restarts` restarts of the job. Returns the checkpoint
        that the event completes or fails, or `None`."""
        if restarts > self._restarts:  # workers were replaced: those that saved are gone
            self._open.clear()
            self._restarts, self._parts = restarts, 1
        step, begins = int(event["step"]), name == "checkpoint.started"
        save = self._open.get(step)
        if save is None or (begins and rank in save.began):  # the same step is saved once more
            save = self._open[step] = _Save(begun_ns=int(event["mono_ns"]) if begins else None)
        if len(self._open) > OPEN_MAX:
            del self._open[next(iter(self._open))]
        if begins:
            save.began.add(rank)
        elif save.over:
            save.parts.add(rank)
            self._parts = max(self._parts, len(save.parts))
        elif name == "checkpoint.failed":
            save.over = True
            return Done(step, whole=False)
        elif name == "checkpoint.committed":
            return self._commit(rank, step, save, event, now_s)
        return None

    def _commit(self, rank: int, step: int, save: _Save, event: Mapping[str, Any], now_s: float) -> Done | None:
        save.parts.add(rank)
        told_ns = event.get("duration_ns")
        since_ns = int(event["mono_ns"]) - save.begun_ns if save.begun_ns is not None and rank in save.began else 0
        save.took_ns = max(save.took_ns, int(told_ns if told_ns is not None else since_ns))
        if not save.began <= save.parts or len(save.parts) < self._parts:
            return None
        save.over = True
        self._parts = max(self._parts, len(save.parts))
        self._commits_s.append(now_s)
        return Done(step, whole=True, took_s=save.took_ns / 1e9 if save.took_ns > 0 else None)

    def interval_s(self, every_steps: int | None, usual_step_s: float | None) -> float | None:
        """Returns the usual seconds between two checkpoint commits, or `None` while this time is unknown."""
        if len(self._commits_s) >= COMMITS_MIN:
            return statistics.median(after - before for before, after in itertools.pairwise(self._commits_s))
        return every_steps * usual_step_s if every_steps and usual_step_s else None
