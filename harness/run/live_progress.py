"""Follows the live state of a job by its events: its workers, their progress, and their latest steps."""

import collections
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.faults.contract import Figures
from harness.log.vocabulary import NOT_FINITE

STEPS_REMEMBERED = 2000
FIGURES_REMEMBERED = 200
PHASES_REMEMBERED = 10_000
FAILPOINTS_REMEMBERED = 10_000
TEXTS_REMEMBERED, TEXT_LENGTH_MAX = 10_000, 500
NAME_LENGTH_MAX = 200
ODD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)  # of an event whose values make no sense
UNTOLD = -1  # the wait for data of a step that does not tell it

Process = tuple[str, int, int]  # node, incarnation, process id


@dataclass
class Worker:
    """The newest process of a rank in a running job, with totals over all processes that the rank has had."""

    node: str
    incarnation: int
    pid: int
    since_ns: int  # when it started, or joined its newest process group
    last_step: int = 0
    restored_step: int | None = None
    seen_ns: int = 0  # when its last step was seen here, and when that step ended by its own clock
    ended_ns: int = 0
    ended_by: Process | None = None  # late events may come from an earlier process
    took_ns: int = 0  # that step, since the end of the one before; 0: unknown
    first_step: int = 0  # of the newest process that did one
    steps: int = 0  # of all processes, with those that were done again
    samples: int = 0  # consumed in these steps
    restarts: int = 0
    finished: bool = False  # its launcher saw it end with 0


@dataclass(frozen=True)
class FailedWorker:
    """A failed worker, as its launcher logged it. The logged node may not exist, because launchers are not trusted."""

    node: str
    incarnation: int
    code: int  # negative: ended by that signal
    at_ns: int


@dataclass
class LiveProgress:
    """The live state of a job, derived from its events, for display and fault triggers. A trainer's events are not
    trusted: an impossible event changes nothing. The number of ranks does not change the time to process a step."""

    workers: dict[int, Worker] = field(default_factory=dict)
    world_size: int = 0
    complete_step: int = 0
    furthest_step: int = 0
    committed_step: int = 0  # of the newest checkpoint
    first_step_ns: int = 0
    last_step_ns: int = 0
    loss: float | None = None
    phase: str = "starting"
    phases_seen: collections.deque[tuple[str, int]] = field(  # (name, mono_ns)
        default_factory=lambda: collections.deque(maxlen=PHASES_REMEMBERED)
    )
    step_times: dict[int, collections.deque[tuple[int, int]]] = field(default_factory=dict)  # rank → (began, took)
    data_waits: dict[int, collections.deque[tuple[int, int]]] = field(default_factory=dict)  # of the same steps
    figures: dict[int, collections.deque[Figures]] = field(default_factory=dict)  # rank → of its latest steps
    failpoints: dict[tuple[int, str], int] = field(default_factory=dict)  # (rank, name) → seen
    failpoint_texts: collections.deque[tuple[int, str, int, str]] = field(  # (rank, name, seen, text)
        default_factory=lambda: collections.deque(maxlen=TEXTS_REMEMBERED)
    )
    wall_offset_ns: dict[int, int] = field(default_factory=dict)  # rank → wall − monotonic clock, as it sees them
    failed_worker: FailedWorker | None = None  # the first one since the last step
    restarts: int = 0  # of the rank that was started anew most often
    steps_kept: int = STEPS_REMEMBERED  # of each rank
    _met: set[tuple[int, str, int, int]] = field(default_factory=set)  # (rank, node, incarnation, process id)
    _behind: set[int] = field(default_factory=set)  # ranks without which no further step can be complete

    def absorb(self, header: Mapping[str, Any], event: Mapping[str, Any], now_ns: int) -> bool:
        """Updates the live state of a job by one event. Returns True if the event was possible."""
        try:
            if header.get("role") == "trainer":
                self._absorb_trainer(header, event, now_ns)
            elif event["event"] == "agent.rendezvous" and event.get("edge") == "begin":
                self.phase = "rendezvous"
            elif event["event"] == "worker.exit":
                self._note_end(header, event, now_ns)
        except ODD:
            return False
        return True

    def _note_end(self, header: Mapping[str, Any], event: Mapping[str, Any], now_ns: int) -> None:
        node, incarnation, code = str(header["node"]), int(header["incarnation"]), int(event["code"])
        earlier, worker = self.failed_worker, self.workers.get(event.get("rank", -1))
        if code and (earlier is None or earlier.at_ns < self.last_step_ns):
            self.failed_worker = FailedWorker(node, incarnation, code, now_ns)
        who = node, incarnation, event.get("pid")
        if worker and (worker.node, worker.incarnation, worker.pid) == who:
            worker.finished = not code

    def stuck(self) -> str:
        """Returns a text that names a stuck job's phase and last step, and workers that did not end when others did."""
        text = f"stuck in {self.phase} after step {self.complete_step}"
        world = {rank: worker for rank, worker in sorted(self.workers.items()) if rank < (self.world_size or math.inf)}
        left = [f"rank {rank} on {worker.node}" for rank, worker in world.items() if not worker.finished]
        if not left or len(left) == len(world):
            return text
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        return f"{text}; {left[0]}{more} did not end as the others did"

    def reborn_since(self, moment_ns: int) -> bool:
        if self.world_size > len(self.workers):
            return False
        world = [self.workers.get(rank) for rank in range(self.world_size)]
        return all(worker is not None and worker.since_ns > moment_ns for worker in world)

    def _absorb_trainer(self, header: Mapping[str, Any], event: Mapping[str, Any], now_ns: int) -> None:
        rank, kind = _whole(header["rank"]), event["event"]
        if "wall_ns" in event:
            self.wall_offset_ns[rank] = _whole(event["wall_ns"]) - _whole(event["mono_ns"])
        who = self._meet(rank, header, kind, now_ns)
        if kind == "rendezvous":
            self.world_size = _whole(event.get("world_size", header.get("world_size", self.world_size)))
            self._behind.clear()
            self.workers[rank].since_ns = now_ns  # a survivor of a lost peer goes on in the same process
        elif kind == "restored":
            self.phase = "restored"
            step = event.get("step", 0 if event.get("source") == "scratch" else None)
            if step is not None:  # else nobody knows of which step the state is
                self.workers[rank].last_step = self.workers[rank].restored_step = _whole(step)
            self._find_complete()
        elif kind == "checkpoint.committed":
            if event.get("holds") != ["model"]:  # weights alone are no state to go on from
                self.committed_step = max(self.committed_step, _whole(event["step"]))
        elif kind == "step":
            self._absorb_step(rank, who, event, now_ns)
        elif kind in ("phase", "failpoint"):
            self._absorb_phase(rank, event, now_ns)
        elif kind == "exiting":
            self.phase = "exiting"

    def _meet(self, rank: int, header: Mapping[str, Any], kind: str, now_ns: int) -> Process:
        """Records a new process of a rank when this process logs its first event."""
        who = str(header["node"]), _whole(header["incarnation"]), _whole(header["pid"])
        if (rank, *who) in self._met and kind != "started":
            return who
        self._met.add((rank, *who))
        worker, before = Worker(*who, now_ns), self.workers.get(rank)
        if before is not None:
            worker.first_step, worker.steps, worker.samples = before.first_step, before.steps, before.samples
            worker.restarts = before.restarts + ((before.node, before.incarnation, before.pid) != who)
            self.restarts = max(self.restarts, worker.restarts)
        self.workers[rank] = worker
        self._find_complete()
        self.phase = "startup"
        return who

    def _absorb_phase(self, rank: int, event: Mapping[str, Any], now_ns: int) -> None:
        name = event["name"][:NAME_LENGTH_MAX]
        if event["event"] == "failpoint" and len(self.failpoints) < FAILPOINTS_REMEMBERED:
            self.failpoints[rank, name] = now_ns
            if text := event.get("text"):
                self.failpoint_texts.append((rank, name, now_ns, str(text)[:TEXT_LENGTH_MAX]))
        if event.get("edge", "begin") == "begin":
            self.phases_seen.append((name, now_ns))
        if not name.startswith("checkpoint"):
            self.phase = name

    def _absorb_step(self, rank: int, who: Process, event: Mapping[str, Any], now_ns: int) -> None:
        worker, step = self.workers[rank], _whole(event["step"])
        ended_ns = _whole(event.get("mono_ns", now_ns))
        worker.took_ns = ended_ns - worker.ended_ns if worker.ended_by == who else 0
        if worker.ended_by == who:
            times = self.step_times.setdefault(rank, collections.deque(maxlen=self.steps_kept))
            times.append((worker.seen_ns, worker.took_ns))
            waits = self.data_waits.setdefault(rank, collections.deque(maxlen=self.steps_kept))
            waits.append((worker.seen_ns, _whole(event["data_ns"]) if "data_ns" in event else UNTOLD))
        worker.first_step = worker.first_step if worker.ended_ns else step
        known = worker.ended_ns or worker.restored_step is not None
        worker.steps += max(step - worker.last_step, 1) if known else 1
        worker.samples += _samples_of(event)
        worker.last_step, worker.seen_ns, worker.ended_ns, worker.ended_by = step, now_ns, ended_ns, who
        self.last_step_ns = now_ns
        self.first_step_ns = self.first_step_ns or now_ns
        self.phase = "training"
        loss = event.get("loss")
        self.loss = loss if isinstance(loss, float) else self.loss
        told = self.figures.setdefault(rank, collections.deque(maxlen=min(FIGURES_REMEMBERED, self.steps_kept)))
        told.append(Figures(step, *(_number(event.get(name)) for name in ("loss", "grad_norm", "lr"))))
        self._behind.discard(rank)
        if not self._behind or step <= self.complete_step:
            self._find_complete()
        self.furthest_step = max(self.furthest_step, self.complete_step)

    def _find_complete(self) -> None:
        size = self.world_size or len(self.workers)
        world = range(size if size <= len(self.workers) else 0)  # more: a rank is missing, or the size is nonsense
        done = {rank: self.workers[rank].last_step if rank in self.workers else 0 for rank in world}
        self.complete_step = min(done.values(), default=0)
        self._behind = {rank for rank, step in done.items() if step == self.complete_step}


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not a count and not a time")
    return value


def _samples_of(event: Mapping[str, Any]) -> int:
    told = event.get("count", -1)
    return _whole(told if told >= 0 else sum(run[1] for run in event.get("samples") or ()))


def _number(value: Any) -> float:
    """Returns a logged number as a float. NaN and infinities are texts in the log."""
    if isinstance(value, str) and value in NOT_FINITE:
        return float(value)
    return float(value) if type(value) in (int, float) and abs(value) < 1e300 else math.nan
