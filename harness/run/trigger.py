"""When a planned fault fires: what the run has seen so far, and the holds that make triggers exact.

A trainer that uses our emitter stops at the event a fault waits for (an *armed hold*) until the fault has acted, so
that "after step 90" means after step 90, whatever the speed of the machine. Other trainers are followed through
their events alone.
"""

from __future__ import annotations

import collections
import contextlib
import json
import math
import os
import pathlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.emitter import HOLDS_ENV
from harness.emitter.holds import granted
from harness.emitter.vocabulary import NOT_FINITE
from harness.faults.contract import Figures, Hold
from harness.log import hostile
from harness.plan.model import Limits, PlannedFault

STEPS_REMEMBERED = 2000
FIGURES_REMEMBERED = 200
PHASES_REMEMBERED = 10_000
FAILPOINTS_REMEMBERED = 10_000
NAME_LENGTH_MAX = 200
UNTOLD = -1  # the wait for data of a step that does not tell it


@dataclass
class Worker:
    """The newest process of a rank."""

    node: str
    incarnation: int
    pid: int
    since_ns: int
    last_step: int = 0
    restored_step: int | None = None
    seen_ns: int = 0  # when its last step was seen here, and when that step ended by its own clock
    ended_ns: int = 0


@dataclass(frozen=True)
class FailedWorker:
    """As its launcher tells it: the place is that launcher's, and not checked yet."""

    node: str
    incarnation: int
    code: int  # negative: ended by that signal
    at_ns: int


@dataclass
class LiveProgress:
    """The job as its events tell it, live. Judged later by the timeline; this only decides when to act.

    A trainer's events are not to be trusted: an odd one changes nothing here.
    """

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
    wall_offset_ns: dict[int, int] = field(default_factory=dict)  # rank → wall − monotonic clock, as it sees them
    failed_worker: FailedWorker | None = None  # the first one since the last step
    _met: set[tuple[int, str, int, int]] = field(default_factory=set)  # (rank, node, incarnation, process id)

    def absorb(self, header: Mapping[str, Any], event: Mapping[str, Any], now_ns: int) -> None:
        with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
            if header.get("role") == "trainer":
                self._absorb_trainer(header, event, now_ns)
            elif event["event"] == "agent.rendezvous" and event.get("edge") == "begin":
                self.phase = "rendezvous"
            elif event["event"] == "worker.exit":
                self._note_end(header, int(event["code"]), now_ns)

    def _note_end(self, header: Mapping[str, Any], code: int, now_ns: int) -> None:
        earlier = self.failed_worker
        if code and (earlier is None or earlier.at_ns < self.last_step_ns):
            self.failed_worker = FailedWorker(str(header["node"]), int(header["incarnation"]), code, now_ns)

    def reborn_since(self, moment_ns: int) -> bool:
        """Whether all ranks of the world are processes that started after this moment."""
        if self.world_size > len(self.workers):
            return False
        world = [self.workers.get(rank) for rank in range(self.world_size)]
        return all(worker is not None and worker.since_ns > moment_ns for worker in world)

    def _absorb_trainer(self, header: Mapping[str, Any], event: Mapping[str, Any], now_ns: int) -> None:
        rank, kind = _whole(header["rank"]), event["event"]
        if "wall_ns" in event:
            self.wall_offset_ns[rank] = _whole(event["wall_ns"]) - _whole(event["mono_ns"])
        self._meet(rank, header, kind, now_ns)
        if kind == "rendezvous":
            self.world_size = _whole(event.get("world_size", header.get("world_size", self.world_size)))
        elif kind == "restored":
            self._absorb_restore(rank, event.get("step", 0 if event.get("source") == "scratch" else None))
        elif kind == "checkpoint.committed":
            if event.get("holds") != ["model"]:  # weights alone are no state to go on from
                self.committed_step = max(self.committed_step, _whole(event["step"]))
        elif kind == "step" and rank in self.workers:
            self._absorb_step(rank, event, now_ns)
        elif kind in ("phase", "failpoint"):
            self._absorb_phase(rank, event, now_ns)
        elif kind == "exiting":
            self.phase = "exiting"

    def _meet(self, rank: int, header: Mapping[str, Any], kind: str, now_ns: int) -> None:
        """The first word of a process: from now on it is its rank's. An observed trainer has no word for its start."""
        who = str(header["node"]), _whole(header["incarnation"]), _whole(header["pid"])
        if (rank, *who) in self._met and kind != "started":
            return
        self._met.add((rank, *who))
        self.workers[rank] = Worker(*who, now_ns)
        self.complete_step = self._complete()
        self.phase = "startup"

    def _absorb_restore(self, rank: int, step: int | None) -> None:
        """`step` `None`: nobody knows of which step the state is."""
        self.phase = "restored"
        if rank in self.workers and step is not None:
            self.workers[rank].last_step = self.workers[rank].restored_step = _whole(step)
        self.complete_step = self._complete()

    def _absorb_phase(self, rank: int, event: Mapping[str, Any], now_ns: int) -> None:
        name = event["name"][:NAME_LENGTH_MAX]
        if event["event"] == "failpoint" and len(self.failpoints) < FAILPOINTS_REMEMBERED:
            self.failpoints[rank, name] = now_ns
        if event.get("edge", "begin") == "begin":
            self.phases_seen.append((name, now_ns))
        if not name.startswith("checkpoint"):
            self.phase = name

    def _absorb_step(self, rank: int, event: Mapping[str, Any], now_ns: int) -> None:
        worker, step = self.workers[rank], _whole(event["step"])
        ended_ns = _whole(event.get("mono_ns", now_ns))
        if worker.ended_ns:
            times = self.step_times.setdefault(rank, collections.deque(maxlen=STEPS_REMEMBERED))
            times.append((worker.seen_ns, ended_ns - worker.ended_ns))
            waits = self.data_waits.setdefault(rank, collections.deque(maxlen=STEPS_REMEMBERED))
            waits.append((worker.seen_ns, _whole(event["data_ns"]) if "data_ns" in event else UNTOLD))
        worker.last_step, worker.seen_ns, worker.ended_ns = step, now_ns, ended_ns
        self.last_step_ns = now_ns
        self.first_step_ns = self.first_step_ns or now_ns
        self.phase = "training"
        loss = event.get("loss")
        self.loss = loss if isinstance(loss, float) else self.loss
        told = self.figures.setdefault(rank, collections.deque(maxlen=FIGURES_REMEMBERED))
        told.append(Figures(step, *(_number(event.get(name)) for name in ("loss", "grad_norm", "lr"))))
        self.complete_step = self._complete()
        self.furthest_step = max(self.furthest_step, self.complete_step)

    def _complete(self) -> int:
        """The last step that every rank of the current world has done."""
        size = self.world_size or len(self.workers)
        if size > len(self.workers):  # a rank is missing, or the size is nonsense
            return 0
        return min((self.workers[rank].last_step if rank in self.workers else 0 for rank in range(size)), default=0)


def _whole(value: Any) -> int:
    """A count or a time as a trainer told it. Raises `ValueError` for anything that cannot be one."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not a count and not a time")
    return value


def _number(value: Any) -> float:
    """A figure as a trainer told it; one that is not finite is a text in the log."""
    if isinstance(value, str) and value in NOT_FINITE:
        return float(value)
    return float(value) if type(value) in (int, float) and abs(value) < 1e300 else math.nan


@dataclass
class Firing:
    """One planned fault on its way: waiting → acting → done, with the moments others may follow."""

    planned: PlannedFault
    index: int
    moments_ns: dict[str, int] = field(default_factory=dict)  # injected · effect · recovered · healed
    armed_ns: int | None = None
    fired: bool = False
    held_back: str = ""  # why it may not act though it is due; empty: it may, or it is not due
    let_go: bool = False  # a trainer that waited at the trigger was let go, as the fault has acted for long enough
    furthest_before: int = 0  # what progress must pass for the job to have recovered
    begun_step: int = 0  # the last complete step when its rehearsal began
    at_once: bool = False  # a person wants it now, whatever it waits for

    def due(self, progress: LiveProgress, others: Mapping[str, Firing], start_ns: int, now_ns: int) -> bool:
        """Whether to fire now. Arms itself as soon as the only thing missing is the phase."""
        if self.at_once:
            return True
        when = self.planned.when
        base_ns = start_ns
        if when.following is not None:
            moment = others[when.following].moments_ns.get(when.event or "injected")
            if moment is None:
                return False
            base_ns = moment
        if now_ns < base_ns + (when.after_ns or 0):
            return False
        if when.step is not None and progress.complete_step < when.step:
            return False
        if when.more_steps is not None and progress.complete_step < self.begun_step + when.more_steps:
            return False
        if when.phase is None:
            return True
        if self.armed_ns is None:
            self.armed_ns = now_ns
        return any(name == when.phase and at >= self.armed_ns for name, at in progress.phases_seen)

    @property
    def newest_moment(self) -> str:
        moments = dict(self.moments_ns)  # its thread may add one just now
        return max(moments, key=moments.__getitem__, default="acting")

    def over_ns(self) -> int | None:
        """When its fault was healed and the job had recovered from it, whichever was later."""
        if "healed" not in self.moments_ns or ("injected" in self.moments_ns and "recovered" not in self.moments_ns):
            return None
        return max(self.moments_ns["healed"], self.moments_ns.get("recovered", 0))


def obstacle(firing: Firing, others: Iterable[Firing], limits: Limits, now_ns: int) -> str | None:
    """Why a fault that is due may not act yet: the blast radius, or the pause after another recovery. A fault that
    follows another one belongs to the same rehearsal: no pause lies between them."""
    fired = [other for other in others if other.fired]
    active = [other for other in fired if other.over_ns() is None]
    broken = set[int]().union(*(other.planned.nodes() for other in active))
    allowed = limits.nodes_at_once
    if allowed is not None and len(broken | firing.planned.nodes()) > allowed:
        return f"{len(broken)} of {allowed} nodes that may have a fault at once have one (limits: nodes_at_once)"
    cool_down_ns, followed = limits.cool_down_ns, firing.planned.when.following
    resting = set[int]().union(*(other.planned.nodes() for other in active if other.planned.id != followed))
    if cool_down_ns and resting & firing.planned.nodes():
        return "its node still has an active fault"
    if followed is not None:
        return None
    latest_ns = max((over for other in fired if (over := other.over_ns()) is not None), default=None)
    if latest_ns is not None and now_ns - latest_ns < cool_down_ns:
        return f"the pause of {cool_down_ns / 1e9:g} s after a recovery is not over"
    return None


@dataclass(frozen=True)
class Claim:
    """A process of this rank, on this node, waits for a planned strike."""

    rank: int
    node: str
    token: pathlib.Path

    def grant(self) -> None:
        """It is struck. Nobody else can have this strike from now on."""
        with contextlib.suppress(FileNotFoundError):  # granted before, or taken back
            os.rename(self.token, granted(str(self.token), self.node))


class TriggerHolds:
    """The files through which trainers are held and released, in `<run>/holds/`: nodes read them.

    What nodes claim is in `<run>/answers/<node>/`, where only that node writes.
    """

    def __init__(self, run_dir: pathlib.Path, faults: Sequence[PlannedFault]):
        self.run_dir = run_dir
        self.directory = run_dir / "holds"
        self.directory.mkdir()
        self.file = run_dir / "holds.json"
        self._standing = set[str]()  # faults for which the trainer stands at its next step
        self._lock = threading.Lock()
        holds = [hold for fault in faults for hold in self._holds(fault) + self._acts(fault)]
        if any(fault.when.more_steps is not None for fault in faults):
            holds.append({"match": {"event": "step"}} | self._next_step)
        self.file.write_text(json.dumps(holds))
        self.environment = {HOLDS_ENV: str(self.file)} if holds else {}

    def begin(self, faults: Iterable[PlannedFault]) -> None:
        """The rehearsal of these faults begins: the trainer stops at the steps they wait for."""
        for fault in faults:
            if fault.when.phase is None and fault.when.more_steps is None:
                self.arm(fault.id)

    @property
    def _next_step(self) -> dict[str, str]:
        """One pair of files for all faults that count steps from the begin of their rehearsal."""
        return {edge: str(self.directory / f"next-step.{edge}") for edge in ("armed", "released")}

    def stand(self, fault_id: str) -> None:
        """From its next step on the trainer waits until this fault is released."""
        with self._lock:
            self._standing.add(fault_id)
            pathlib.Path(self._next_step["released"]).unlink(missing_ok=True)
            pathlib.Path(self._next_step["armed"]).touch()

    def arm(self, fault_id: str) -> None:
        (self.directory / f"{fault_id}.armed").touch()

    def release(self, fault_id: str) -> None:
        (self.directory / f"{fault_id}.released").touch()
        with self._lock:
            if self._standing == {fault_id}:
                pathlib.Path(self._next_step["released"]).touch()
                pathlib.Path(self._next_step["armed"]).unlink()
            self._standing.discard(fault_id)

    def act(self, fault: PlannedFault) -> None:
        """Arms the places where the fault itself stops or strikes the trainer."""
        for hold in self._acts(fault):
            for token in hold.get("tokens", ()):
                pathlib.Path(token).touch()
        self.arm(f"{fault.id}.act")

    def stop_acting(self, fault_id: str) -> None:
        self.release(f"{fault_id}.act")
        for token in self._tokens(fault_id):
            token.unlink(missing_ok=True)  # it may be granted just now

    def caught(self, fault_id: str) -> Claim | None:
        """The first claim of a strike that is not granted yet."""
        tokens = {token.name: token for token in self._tokens(fault_id)}
        for node in hostile.names_in(self.run_dir, "answers") if tokens else ():
            for name in hostile.names_in(self.run_dir, f"answers/{node}"):
                if name in tokens:
                    rank = name.removeprefix(f"{fault_id}.act.strike-").split("-")[0]
                    return Claim(int(rank), node, tokens[name])
        return None

    def _tokens(self, fault_id: str) -> list[pathlib.Path]:
        """Strikes that nobody has been granted."""
        found = self.directory.glob(f"{fault_id}.act.strike-*")
        return sorted(token for token in found if token.name.rpartition("-")[2].isdigit())

    def _acts(self, fault: PlannedFault) -> list[dict[str, Any]]:
        return [self._act(fault.id, hold) for hold in fault.action.holds(fault.targets)]

    def _act(self, fault_id: str, hold: Hold) -> dict[str, Any]:
        paths = {edge: str(self.directory / f"{fault_id}.act.{edge}") for edge in ("armed", "released")}
        entry: dict[str, Any] = {"match": dict(hold.match), "rank": hold.rank, "limit_s": hold.limit_s} | paths
        if hold.strikes:
            names = (f"{fault_id}.act.strike-{hold.rank}-{each}" for each in range(hold.strikes))
            entry |= {"tokens": [str(self.directory / name) for name in names]}
            entry |= {"code": hold.code, "mislead": hold.mislead, "does": hold.does, "argument": hold.argument}
        return entry

    def _holds(self, fault: PlannedFault) -> list[dict[str, Any]]:
        if name := fault.when.phase:
            matches: list[dict[str, Any]] = [
                {"event": "phase", "name": name, "edge": "begin"},
                {"event": "failpoint", "name": name},
            ]
        elif fault.when.step is not None:
            matches = [{"event": "step", "step": fault.when.step}]
        else:
            return []
        paths = {edge: str(self.directory / f"{fault.id}.{edge}") for edge in ("armed", "released")}
        return [{"match": match} | paths for match in matches]
