"""Events → Timeline: attempts, steps, faults, GPU slots and the phases of the whole job, on one clock.

Pure: no clock, no network, no randomness. Times are integer nanoseconds on the harness's monotonic clock.
Columns are numpy arrays, so that ten million step events fit and score in seconds.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PHASES = (  # of a recovery episode, in the order in which they usually come
    "interrupted_step",
    "detect",
    "drain",
    "teardown",
    "reschedule",
    "startup",
    "rendezvous",
    "restore",
    "first_step",
    "recompute",
)


@dataclass(frozen=True)
class Steps:
    """One row per rank and executed step, sorted by `end`. `step` is 1-based: completed optimizer steps."""

    process: Ints  # row in Timeline.processes
    rank: Ints
    step: Ints
    begin: Ints
    end: Ints
    loss: Floats
    grad_norm: Floats
    lr: Floats
    digest: npt.NDArray[np.str_]
    first: Ints  # first sample position of the global batch in the shuffled order; -1 unknown
    count: Ints  # samples in the global batch; -1 unknown
    data_ns: Ints
    checkpoint_ns: Ints
    sync_ns: Ints
    survives: npt.NDArray[np.bool_]  # not rolled back by a later restore

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class Process:
    """One life of one worker. Times are `None` when the event never came."""

    rank: int
    local_rank: int
    node: str
    incarnation: int
    pid: int
    world_size: int
    started: int
    rendezvous: int | None
    restored: int | None
    restored_step: int | None
    source: str | None
    fallback: tuple[dict[str, Any], ...]
    last_seen: int
    exited: int | None
    exit_code: int | None  # from the launcher, or from the worker's own `exiting`
    exit_reason: str | None


@dataclass(frozen=True)
class Slot:
    """One GPU of one node incarnation, allocated to the job in [allocated, released)."""

    node: str
    incarnation: int
    local_rank: int
    allocated: int
    released: int


@dataclass(frozen=True)
class FaultRecord:
    id: str
    kind: str
    kills: bool
    targets: tuple[dict[str, Any], ...]
    injected: int | None
    effects: tuple[dict[str, Any], ...]  # each {measured, expected, unit, ok, detail, at}
    recovered: int | None
    healed: int | None
    error: str | None


@dataclass(frozen=True)
class Segment:
    """The whole job was in `phase` during [begin, end). `running`: steps complete. Outside episodes also
    `startup`, `rendezvous`, `restore` (first start) and `finish` (after the last step)."""

    phase: str
    begin: int
    end: int


@dataclass(frozen=True)
class Episode:
    """Progress stopped at `t_stop` (end of the last complete step) until it passed the furthest step before."""

    t_stop: int
    t_first: int | None  # end of the first new complete step
    t_regained: int | None  # None: never; `segments` then end with the run
    furthest_step: int
    faults: tuple[str, ...]  # ids of the faults inside
    segments: tuple[Segment, ...]  # gapless from t_stop to t_regained (or the end of the run)

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else self.t_stop


@dataclass(frozen=True)
class Timeline:
    plan: dict[str, Any]  # as embedded in the first event
    environment: dict[str, Any]
    begin: int
    end: int
    outcome: str | None  # completed · failed · aborted · interrupted · None: the harness itself died
    outcome_reason: str
    steps: Steps
    processes: Sequence[Process]
    slots: Sequence[Slot]
    faults: Sequence[FaultRecord]
    segments: Sequence[Segment]  # the phases of the whole job, gapless from `begin` to `end`
    episodes: Sequence[Episode]
    checkpoints: Sequence[dict[str, Any]]  # started/committed/failed events with `at`, `rank`, `node`
    notices: Sequence[dict[str, Any]]
    anomalies: Sequence[dict[str, Any]]
    exits: Sequence[dict[str, Any]]  # node commands and workers: {at, node, incarnation, rank|None, code}
    torn: Sequence[str]  # writers whose last line was cut
    dropped: int  # events lost to a full disk
    problems: Sequence[str] = field(default=())  # contradictions found while reading


def load(run_dir: pathlib.Path) -> Timeline:
    """Reads `run_dir/events`. Raises `EventLogError` when the log cannot be read at all."""
    raise NotImplementedError
