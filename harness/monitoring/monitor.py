"""Collects the metrics of a running job. The job's loop only passes events to another thread, which counts them."""

from __future__ import annotations

import importlib.metadata
import pathlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric as Family

from harness.campaign.campaign_observers import CampaignObserver, Stage
from harness.monitoring.board import Board
from harness.monitoring.tally import Tally
from harness.run.observers import Heard, Status

COUNTED_EVERY_S = 0.25
WAITING_MAX = 500_000  # events that are not counted yet
TICKS_S = 60
LEDGER_EVERY_S = 5.0
LEDGER_SHARE = 20  # working out the ledger takes at most so small a part of one core
LEDGER_FAILED_S = 60.0  # until it is tried again
ENDS_S = 5.0

Books = Callable[[pathlib.Path, pathlib.Path | None], Mapping[str, object] | None]


@dataclass
class _Job:
    """The data that the loop of a job passes to the monitoring. Only the loop's thread sets the fields."""

    stage: Stage | None = None
    status: Status | None = None
    batches: deque[Heard] = field(default_factory=deque)
    handed: int = 0
    dropped: int = 0
    ticks: int = 0
    ticked_s: float = 0.0
    pauses: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=TICKS_S))  # second, its longest
    left_behind: int = 0
    over: bool = False

    def tick(self, status: Status) -> None:
        now_s = time.time()
        pause_s = now_s - self.ticked_s if self.ticked_s else 0.0
        self.status, self.ticked_s = status, now_s
        self.ticks += 1
        second = float(int(now_s))
        if self.pauses and self.pauses[-1][0] == second:
            pause_s = max(pause_s, self.pauses.pop()[1])
        self.pauses.append((second, pause_s))


class Monitor(CampaignObserver):
    """Watches one job at a time, and gives the job's metrics to Prometheus' client library. Each job starts with empty
    metrics. `books` computes the ledger (the use of GPU time) from the folders of a run and its fault-free runs, or
    returns `None` if the ledger cannot be computed. `budget` is the share of GPU time that may be wasted if the
    scenario sets no limit."""

    def __init__(self, books: Books | None = None, budget: float | None = None) -> None:
        self._books, self._budget = books, budget
        self._job = _Job()
        self._counted_job: _Job | None = None
        self._lock = threading.Lock()  # of the board and the tally; never taken by the job's loop
        self._end = threading.Event()
        self._begin(self._job)

    # By the job's loop. Each returns at once.

    def stage(self, stage: Stage) -> None:
        self._job = _Job(stage)

    def stage_ended(self, stage: Stage, how: str) -> None:
        self._job.over = True

    def status(self, status: Status) -> None:
        if self._job.status is not None and self._job.status.run_id != status.run_id:
            self._job = _Job(self._job.stage)
        self._job.tick(status)

    def new_events(self, events: Heard) -> None:
        job = self._job
        if job.handed - (self._taken if self._counted_job is job else 0) > WAITING_MAX:
            job.dropped += len(events)
            return
        job.handed += len(events)
        job.batches.append(events)

    def left_behind(self, reason: str) -> None:
        self._job.left_behind += 1

    # By threads of its own

    def watch(self) -> None:
        """Counts a job's events until `close` is called. Run `watch` in a thread."""
        while not self._end.wait(COUNTED_EVERY_S):
            self.count()

    def keep_books(self) -> None:
        """Computes the wasted GPU time of a running job again and again, until `close` is called. Run `keep_books` in a
        thread."""
        pause_s = LEDGER_EVERY_S
        while self._books is not None and not self._end.wait(pause_s):
            pause_s = self._settle(self._books)

    def close(self) -> None:
        self._end.set()

    def count(self) -> None:
        with self._lock:
            job = self._job
            if job is not self._counted_job:
                self._begin(job)
            now_s = time.time()
            while job.batches:
                batch = job.batches.popleft()
                for header, event in batch:
                    self._tally.absorb(header, event, now_s)
                self._taken += len(batch)
            if job.status is not None:
                self._tally.note(job.status, now_s)
                self._note_health(job, now_s)
            if job.over:
                self._board.set("chaos_job_up", 0)

    def collect(self) -> Iterator[Family]:
        self.count()
        with self._lock:
            yield from list(self._board.families())

    def _begin(self, job: _Job) -> None:
        self._counted_job, self._taken = job, 0
        self._board = Board()
        self._tally = Tally(self._board)
        self._board.set("chaos_harness_info", 1, importlib.metadata.version("chaos-harness"))
        self._board.set("chaos_job_up", 0)
        if self._budget is not None:
            self._board.set("chaos_waste_budget_ratio", self._budget, "all")

    def _note_health(self, job: _Job, now_s: float) -> None:
        self._board.set("chaos_harness_ticks_total", job.ticks)
        self._board.set("chaos_harness_left_behind_total", job.left_behind)
        self._board.set("chaos_exporter_events_dropped_total", job.dropped)
        self._board.set("chaos_harness_last_tick_timestamp_seconds", job.ticked_s)
        recent = [pause for second, pause in list(job.pauses) if second >= now_s - TICKS_S]
        self._board.set("chaos_harness_longest_tick_seconds", max(recent, default=0.0))

    def _settle(self, books: Books) -> float:
        job, stage = self._job, self._job.stage
        if stage is None or job.status is None or job.over:
            return LEDGER_EVERY_S
        folder = stage.folder or job.status.run_dir
        if folder is None:
            return LEDGER_EVERY_S
        found = books(folder, stage.fault_free)
        with self._lock:
            if self._counted_job is job and found is None:
                self._board.add("chaos_exporter_ledger_failures_total")
            elif self._counted_job is job and found is not None:
                show_ledger(self._board, found)
        took_s = None if found is None else found.get("cpu_s")
        return max(LEDGER_EVERY_S, LEDGER_SHARE * took_s) if isinstance(took_s, (int, float)) else LEDGER_FAILED_S


def show_ledger(board: Board, told: Mapping[str, object]) -> None:
    accounts = told["accounts"]
    assert isinstance(accounts, Mapping)
    for account, seconds in accounts.items():
        board.set("chaos_ledger_gpu_seconds", float(seconds), str(account))
    for key, name in (
        ("allocated", "ledger_allocated_gpu_seconds"),
        ("at", "ledger_timestamp_seconds"),
        ("goodput", "goodput_ratio"),
        ("dollars", "waste_cost_dollars"),
    ):
        value = told.get(key)
        if isinstance(value, (int, float)):
            board.set(f"chaos_{name}", value)
    for scope in ("all", "faults"):
        wasted = told[f"wasted_{scope}"]
        assert isinstance(wasted, (int, float))
        board.set("chaos_waste_gpu_seconds", wasted, scope)
