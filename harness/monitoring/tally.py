"""Computes the metrics of a running job from its events and its live state.

A trainer's event with impossible values is counted, but otherwise ignored.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.log import older_faults
from harness.monitoring.board import Board
from harness.monitoring.live_saves import Saves
from harness.monitoring.metrics import ANOMALIES, OTHER, PHASES, RANKS_SHOWN
from harness.node.emitter import abnormal
from harness.run.live_progress import ODD, LiveProgress
from harness.run.observers import Status

STEP_TIMES_KEPT = 64
RECENT_S = 60
LINKS_MAX = 4096  # counters whose last value is kept
LOSSES_KEPT = abnormal.LOSS_RECENT_STEPS + abnormal.LOSS_BEFORE_STEPS
ROLES = ("trainer", "agent", "harness")
_SPENT = {
    "sync_ns": "chaos_gradient_sync_seconds_total",
    "data_ns": "chaos_data_wait_seconds_total",
    "checkpoint_ns": "chaos_checkpoint_stall_seconds_total",
}


@dataclass
class Tally:
    """The metrics of one job that are computed from its events and its live state. The argument `now_s` of each method
    is the wall-clock time at which the harness read the events."""

    board: Board
    progress: LiveProgress = field(default_factory=lambda: LiveProgress(steps_kept=1))
    saves: Saves = field(default_factory=Saves)
    every_steps: int | None = None  # planned steps between checkpoints
    _step_times: deque[float] = field(default_factory=lambda: deque(maxlen=STEP_TIMES_KEPT))
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=LOSSES_KEPT))
    _norms: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RECENT_S))  # second, its largest
    _lowest: int | None = None  # the lowest rank that has told a step
    _furthest: int = 0
    _faults: dict[str, str] = field(default_factory=dict)  # those at work → their kind
    _nodes: dict[tuple[str, int], int] = field(default_factory=dict)  # node, incarnation → its GPUs
    _links: dict[tuple[str, int, str, str], int] = field(default_factory=dict)  # the last value of each counter

    def note(self, status: Status, now_s: float) -> None:
        board = self.board
        board.set("chaos_job_up", 1)
        if board.value("chaos_job_start_time_seconds") is None:
            board.set("chaos_job_start_time_seconds", now_s - status.elapsed_s)
        board.set("chaos_job_step", status.step)
        if status.steps is not None:
            board.set("chaos_job_planned_steps", status.steps)
        for phase in PHASES:
            board.set("chaos_job_phase", (status.phase if status.phase in PHASES else OTHER) == phase, phase)
        if status.step > self._furthest:
            self._furthest = status.step
            board.set("chaos_job_last_progress_timestamp_seconds", now_s)
        self._note_ranks()
        self._note_recent(now_s)

    def _note_ranks(self) -> None:
        workers = self.progress.workers.values()
        for name, count in (
            ("steps", max((worker.steps for worker in workers), default=0)),
            ("samples", max((worker.samples for worker in workers), default=0)),
            ("worker_restarts", sum(worker.restarts for worker in workers)),
            ("job_restarts", self.progress.restarts),
        ):
            if count:
                self.board.set(f"chaos_{name}_total", count)
        if workers:
            self.board.set("chaos_exporter_ranks_folded", sum(rank >= RANKS_SHOWN for rank in self.progress.workers))

    def _note_recent(self, now_s: float) -> None:
        while self._norms and self._norms[0][0] < now_s - RECENT_S:
            self._norms.popleft()
        if self._norms:
            self.board.set("chaos_gradient_norm_recent_max", max(norm for _, norm in self._norms))
        usual = statistics.median(self._step_times) if self._step_times else None
        interval = self.saves.interval_s(self.every_steps, usual)
        if interval is not None:
            self.board.set("chaos_checkpoint_interval_seconds", interval)

    def absorb(self, header: Mapping[str, Any], event: Mapping[str, Any], now_s: float) -> None:
        """Counts one event of the job. An event with impossible values is counted as odd, and changes no other
        metric."""
        role, name = header.get("role"), event["event"]
        self.board.add("chaos_harness_events_total", 1, role if role in ROLES else OTHER)
        odd = not self.progress.absorb(header, event, int(now_s * 1e9))
        try:
            if role == "trainer" and not odd:
                self._of_trainer(header, name, event, now_s)
            elif role == "harness":
                self._of_harness(name, event)
        except ODD:
            odd = True
        if odd:
            self.board.add("chaos_harness_events_odd_total")

    # What trainers tell

    def _of_trainer(self, header: Mapping[str, Any], name: str, event: Mapping[str, Any], now_s: float) -> None:
        rank = header["rank"]
        if name == "step":
            self._step(rank, event, now_s)
        elif name == "anomaly":
            kind = event.get("kind")
            self.board.add("chaos_anomalies_total", 1, kind if kind in ANOMALIES else OTHER)
        elif name == "usage":
            self._use(str(header["node"]), int(header["incarnation"]), event)
        elif name.startswith("checkpoint."):
            self._save(rank, name, event, now_s)

    def _use(self, node: str, incarnation: int, event: Mapping[str, Any]) -> None:
        for link in event.get("links") or ():
            for way in ("received", "sent"):
                count, place = int(link.get(f"{way}_bytes") or 0), (node, incarnation, str(link.get("link", "")), way)
                if place in self._links or len(self._links) < LINKS_MAX:
                    more = count - self._links.get(place, count)
                    self._links[place] = count
                    self.board.add("chaos_network_bytes_total", max(more, 0), node, place[2], way)
        for name, metric in (("memory_bytes", "memory_bytes"), ("memory_bytes_limit", "memory_limit_bytes")):
            if event.get(name) is not None:
                self.board.set(f"chaos_node_{metric}", int(event[name]), node)
        for gpu in event.get("gpus") or ():
            if gpu.get("busy_percent") is not None:
                self.board.set("chaos_gpu_busy_ratio", float(gpu["busy_percent"]) / 100, node, str(gpu["gpu"]))
            if gpu.get("memory_bytes") is not None:
                self.board.set("chaos_gpu_memory_bytes", int(gpu["memory_bytes"]), node, str(gpu["gpu"]))
            self._gpu_health(node, gpu)

    def _gpu_health(self, node: str, gpu: Mapping[str, Any]) -> None:
        slowed = None if gpu.get("throttle_reasons") is None else bool(gpu["throttle_reasons"] & abnormal.GPU_SLOWED)
        figures = {"temperature_celsius": gpu.get("temperature_c"), "slowed": slowed, "lost": bool(gpu.get("lost"))}
        for name, value in (figures | {each: gpu.get(each) for each in ("ecc_uncorrected", "nvlink_errors")}).items():
            if value is not None:
                self.board.set(f"chaos_gpu_{name}", int(value), node, str(gpu["gpu"]))
        if gpu.get("xids"):
            self.board.set("chaos_gpu_xids", int(gpu["xids"]), node, str(gpu["gpu"]), str(gpu.get("xid", OTHER)))

    def _step(self, rank: int, event: Mapping[str, Any], now_s: float) -> None:
        label = str(rank) if rank < RANKS_SHOWN else OTHER
        took_s = self.progress.workers[rank].took_ns / 1e9
        if took_s > 0:
            self.board.observe("chaos_step_duration_seconds", took_s, label)
            self._step_times.append(took_s)
        for told, name in _SPENT.items():
            if told in event:
                self.board.add(name, event[told] / 1e9, label)
        if event.get("rank_samples", -1) >= 0:
            self.board.add("chaos_rank_samples_total", event["rank_samples"], label)
        if self._lowest is None or rank <= self._lowest:
            self._lowest = rank
            self._show(event, now_s)

    def _show(self, event: Mapping[str, Any], now_s: float) -> None:
        for told, name in (("loss", "loss"), ("grad_norm", "gradient_norm"), ("lr", "learning_rate")):
            if told not in event:
                continue
            value = float(event[told])
            self.board.set(f"chaos_{name}", value)
            if not math.isfinite(value) and told != "lr":
                self.board.add("chaos_nonfinite_total", 1, name)
            if told == "loss" and math.isfinite(value):
                self._losses.append(value)
                if (improvement := abnormal.loss_improvement(list(self._losses))) is not None:
                    self.board.set("chaos_loss_improvement_ratio", improvement)
            if told == "grad_norm":
                norm, second = math.inf if math.isnan(value) else value, int(now_s)
                if self._norms and self._norms[-1][0] == second:
                    norm = max(norm, self._norms.pop()[1])
                self._norms.append((second, norm))

    def _save(self, rank: int, name: str, event: Mapping[str, Any], now_s: float) -> None:
        done = self.saves.absorb(self.progress.restarts, rank, name, event, now_s)
        if done is None:
            return
        self.board.add("chaos_checkpoints_total", 1, "success" if done.whole else "failure")
        if not done.whole:
            return
        self.board.set("chaos_checkpoint_last_committed_timestamp_seconds", now_s)
        self.board.set("chaos_checkpoint_last_committed_step", done.step)
        if done.took_s is not None:
            self.board.observe("chaos_checkpoint_duration_seconds", done.took_s)

    # What the harness tells

    def _of_harness(self, name: str, event: Mapping[str, Any]) -> None:
        if name == "plan":
            self._plan(event)
        elif name in ("node.allocated", "node.released"):
            self._node(name == "node.allocated", event)
        elif name == "fault.injected":
            fault, kind = str(event["fault"]), str(event.get("kind", OTHER))
            self.board.add("chaos_faults_injected_total", 1, kind)
            self.board.add("chaos_preemptions_total", older_faults.consequences(event, {}, kind).preempts)
            if fault not in self._faults:
                self._faults[fault] = kind
                self.board.add("chaos_faults_active", 1, kind)
        elif name == "fault.healed" and (healed := self._faults.pop(str(event["fault"]), None)) is not None:
            self.board.add("chaos_faults_active", -1, healed)

    def _plan(self, event: Mapping[str, Any]) -> None:
        plan = event["plan"]
        for fault in plan.get("faults") or ():
            self.board.add("chaos_faults_active", 0, str(fault.get("fault", OTHER)))
            self.board.add("chaos_faults_injected_total", 0, str(fault.get("fault", OTHER)))
        if event.get("rehearsal") is not None:
            return
        scenario = (plan.get("scenario") or {}).get("name", "")
        self.board.set("chaos_job_info", 1, *map(str, (plan.get("run_id", ""), scenario, plan.get("backend", ""))))
        for name in ("job_restarts", "worker_restarts", "preemptions", "node_replacements"):
            self.board.add(f"chaos_{name}_total", 0)
        self.every_steps = ((plan.get("workload") or {}).get("checkpoint") or {}).get("every_steps")
        budget = (plan.get("expect") or {}).get("wasted_gpu_hours") or {}
        for scope, key in (("all", "max_percent"), ("faults", "max_percent_by_faults")):
            if budget.get(key) is not None:
                self.board.set("chaos_waste_budget_ratio", float(budget[key]) / 100, scope)

    def _node(self, came: bool, event: Mapping[str, Any]) -> None:
        node = str(event["node"]), int(event.get("incarnation", 1))
        if came:
            self._nodes[node] = int(event.get("gpus", 1))
            self.board.add("chaos_node_replacements_total", node[1] > 1)
        else:
            self._nodes.pop(node, None)
        self.board.set("chaos_nodes", len(self._nodes))
        self.board.set("chaos_gpus", sum(self._nodes.values()))
