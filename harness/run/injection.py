"""Runs one fault from its trigger to the undoing of the fault, and provides the functions that the fault may call."""

import contextlib
import hashlib
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.backends.contract import Cluster, Node
from harness.errors import ChaosError, FaultError, NodeGone
from harness.faults.contract import Cancelled, CheckpointPlace, Figures, Target
from harness.log.journal import Journal
from harness.node.emitter import Emitter
from harness.plan.run_plan import Plan
from harness.run.live_progress import LiveProgress
from harness.run.trigger import Firing
from harness.run.trigger_holds import TriggerHolds
from harness.run.undo import refuse_wrong
from harness.spec import secrets

POLL_S = 0.002
MEANWHILE_S = 1.0
RANK_APPEARS_S = 10.0


@dataclass(frozen=True)
class LiveJob:
    """The parts of a running job that rehearsals (sets of faults) and their faults may use."""

    cluster: Cluster
    progress: LiveProgress
    emit: Emitter
    journal: Journal
    holds: TriggerHolds
    firings: dict[str, Firing] = field(default_factory=dict)  # faults of all rehearsals that have begun


class Injection:
    """Runs one fault in a thread of its own, and is this fault's `Context` (see `harness.faults.contract`)."""

    def __init__(self, firing: Firing, plan: Plan, job: LiveJob):
        self.firing, self.plan, self.cluster, self.progress = firing, plan, job.cluster, job.progress
        self._emit, self._journal, self._holds = job.emit, job.journal, job.holds
        self.run_dir = job.journal.run_dir
        self.fault, self.targets = firing.planned.action.fresh(), firing.planned.targets
        self.seed = int.from_bytes(hashlib.sha256(f"{plan.seed}/{firing.planned.id}".encode()).digest()[:8], "big")
        self._cancelled = threading.Event()
        self.job_goes_on = False
        self._nodes: dict[Target, Node] = {}  # where each target was when the fault acted on it
        self._ended = False

    @property
    def checkpoints(self) -> CheckpointPlace:
        saved = self.plan.workload.checkpoint
        return CheckpointPlace(saved.folder, saved.layout)

    def run(self) -> None:
        """Injects the fault and undoes it again. Errors of the fault's code are logged, not raised."""
        self.log("fault.injecting")
        try:
            self.fault.inject(self.targets, self)
        except Cancelled:
            self.log("fault.cancelled")
        except Exception as error:  # whatever broke, the run must end as invalid and not as a dead thread
            self.log("fault.failed", error=_told(error))
        finally:
            self._ended = True
            self._release_hold()
            self.heal()

    def heal(self) -> None:
        if "healed" in self.firing.moments_ns:
            return
        try:
            self.fault.heal(self.targets, self)
        except Exception as error:  # healing goes on with the next fault; the end of the lab undoes the rest
            self.log("fault.failed", error=f"could not be healed: {_told(error)}")
            return
        # Measured before the fault is told as healed: the cost of measuring is the fault's doing. If the end cannot be
        # measured, as on a node that is gone, nothing is told, and the verdict says that it was not judged.
        if "effect" in self.firing.moments_ns and not self._cancelled.is_set():
            with contextlib.suppress(Exception):
                self.fault.see_end(self.targets, self)
        self._moment("healed")
        self.log("fault.healed")

    def cancel(self, job_goes_on: bool = False) -> None:
        self.job_goes_on = job_goes_on and not self._cancelled.is_set()
        self._cancelled.set()

    def node(self, target: Target) -> Node:
        if target not in self._nodes:
            self._nodes[target] = self._home(target.rank) or self.cluster.nodes[target.node_index]
        return self._nodes[target]

    def _home(self, rank: int | None) -> Node | None:
        worker = None if rank is None else self.progress.workers.get(rank)
        wanted = worker and (worker.node, worker.incarnation)
        return next((node for node in self.cluster.nodes if (node.name, node.incarnation) == wanted), None)

    def pid_of(self, rank: int) -> tuple[Node, int]:
        self.wait(RANK_APPEARS_S, until=lambda: rank in self.progress.workers)
        worker = self.progress.workers.get(rank)
        if worker is None:
            nobody = "; no rank has told a start: of a trainer that tells none, only whole nodes can be struck"
            more = "" if self.progress.workers else nobody
            raise FaultError(f"rank {rank} has not started, so the fault cannot act on it{more}")
        node = self._home(rank)
        if node is None or not node.alive:
            raise NodeGone(f"rank {rank} was on {worker.node}, which is gone")
        self._nodes |= {target: node for target in self.targets if target.rank == rank}
        return node, worker.pid

    def wait(
        self, seconds: float, until: Callable[[], bool] | None = None, meanwhile: Callable[[], None] | None = None
    ) -> bool:
        self._release_hold()
        deadline, look_at = time.monotonic() + seconds, time.monotonic() + MEANWHILE_S
        while True:
            if self._cancelled.is_set():
                raise Cancelled
            if until is not None and until():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if meanwhile is not None and time.monotonic() >= look_at:
                meanwhile()
                look_at = time.monotonic() + MEANWHILE_S
            self._cancelled.wait(min(left, POLL_S if until is not None else MEANWHILE_S if meanwhile else left))

    def log(self, event: str, **fields: Any) -> None:
        self._emit(event, fault=self.firing.planned.id, **fields)

    def undo(self, action: str, **arguments: Any) -> None:
        refuse_wrong(action, arguments, self.run_dir)
        self._journal.record(action, arguments)

    def ready(self) -> None:
        self._holds.release(self.firing.planned.id)

    def injected(self) -> None:
        self._moment("injected")
        self._tell_injected(self.targets)

    def injected_again(self, target: Target, node: Node) -> None:
        self.log("fault.healed")  # what it did before is over: no death from now on is due to that
        self.log("fault.injecting")
        self.log("fault.postponed", reason=f"it waited for a new life of {node.name}")
        self._nodes[target] = node
        self._tell_injected([target])

    def _tell_injected(self, targets: Sequence[Target]) -> None:
        homes = [(self.node(target), target.rank) for target in targets]
        aimed = [{"node": node.name, "incarnation": node.incarnation, "rank": rank} for node, rank in homes]
        told = self.fault.consequences().to_event()
        self.log("fault.injected", kind=self.firing.planned.kind, targets=aimed, **told)

    def effect(self, measured: float, expected: float, unit: str, ok: bool, detail: str = "") -> None:
        self._moment("effect")
        self._release_hold()
        self.log("fault.effect", measured=measured, expected=expected, unit=unit, ok=ok, detail=detail)

    def traffic(self, node: Node, measured: int | None, least: int | None, seconds: float, detail: str) -> None:
        told = {"measured": measured, "least": least, "ok": None if least is None else (measured or 0) >= least}
        known = {name: value for name, value in told.items() if value is not None}
        self.log("fault.traffic", node=node.name, seconds=round(seconds, 3), detail=detail, **known)

    def ended(self, measured: float, expected: float, unit: str, ok: bool, detail: str = "") -> None:
        self.log("fault.ended", measured=measured, expected=expected, unit=unit, ok=ok, detail=detail)

    def step_times_ns(self, rank: int, since_ns: int = 0) -> list[int]:
        return [took for began, took in list(self.progress.step_times.get(rank, ())) if began >= since_ns]

    def data_wait_share(self, rank: int, since_ns: int) -> float | None:
        waits = [waited for began, waited in list(self.progress.data_waits.get(rank, ())) if began >= since_ns]
        took_ns = sum(self.step_times_ns(rank, since_ns)[: len(waits)])
        return None if took_ns <= 0 or min(waits) < 0 else sum(waits) / took_ns

    def figures(self, rank: int) -> list[Figures]:
        return list(self.progress.figures.get(rank, ()))

    def ranks_on(self, node: Node) -> list[int]:
        workers = dict(self.progress.workers).items()
        return sorted(rank for rank, each in workers if (each.node, each.incarnation) == (node.name, node.incarnation))

    def worker_pids(self, node: Node) -> list[int]:
        workers = list(self.progress.workers.values())
        return [each.pid for each in workers if (each.node, each.incarnation) == (node.name, node.incarnation)]

    def reached(self, rank: int, failpoint: str) -> int:
        return self.progress.failpoints.get((rank, failpoint), 0)

    def said(self, rank: int, failpoint: str, since_ns: int) -> list[str]:
        told = list(self.progress.failpoint_texts)
        return [text for who, name, at, text in told if (who, name) == (rank, failpoint) and at >= since_ns]

    def wall_offset_ns(self, rank: int) -> int | None:
        theirs = self.progress.wall_offset_ns.get(rank)
        return None if theirs is None else theirs - (time.time_ns() - time.monotonic_ns())

    def hold(self) -> None:
        self._holds.act(self.firing.planned, self.seed)

    def let_go(self) -> None:
        self._holds.stop_acting(self.firing.planned.id)

    def caught(self) -> int | None:
        found = self._holds.caught(self.firing.planned.id)
        return None if found is None else found.rank

    def strike(self) -> None:
        if found := self._holds.caught(self.firing.planned.id):
            found.grant()

    def change_command(self) -> None:
        launch = self.plan.changed_by(self.firing.planned).launch()
        self.cluster.change_command(launch.command, secrets.resolve(launch.env))

    def release(self, node: Node, reason: str) -> None:
        if not self.cluster.tells_changes:
            self._emit("node.released", node=node.name, incarnation=node.incarnation, reason=reason)

    def replace(self, node: Node) -> Node:
        gpus = self.plan.workload.ranks_per_node
        if not self.cluster.tells_changes:
            self._emit("node.allocated", node=node.name, incarnation=node.incarnation + 1, gpus=gpus)
        return self.cluster.replace(node)

    def _release_hold(self) -> None:
        if "injected" in self.firing.moments_ns or self._cancelled.is_set() or self._ended:
            self._holds.release(self.firing.planned.id)

    def _moment(self, name: str) -> None:
        self.firing.moments_ns.setdefault(name, time.monotonic_ns())


def _told(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/harness/faults/" in frame.filename]
    if isinstance(error, ChaosError) or not frames:
        return text
    return f"{text} (harness/faults/{frames[-1].filename.rpartition('/harness/faults/')[2]}, line {frames[-1].lineno})"
