"""When a planned fault fires: what the run has seen so far, and the holds that make triggers exact.

A trainer that uses our emitter stops at the event a fault waits for (an *armed hold*) until the fault has acted, so
that "after step 90" means after step 90, whatever the speed of the machine. Other trainers are followed through
their events alone.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.plan import PlannedFault


@dataclass
class Worker:
    """The newest process of a rank."""

    node: str
    incarnation: int
    pid: int
    since_ns: int
    last_step: int = 0


@dataclass
class Progress:
    """The job as its events tell it, live. Judged later by the timeline; this only decides when to act."""

    workers: dict[int, Worker] = field(default_factory=dict)
    world_size: int = 0
    complete_step: int = 0
    furthest_step: int = 0
    last_step_ns: int = 0
    loss: float | None = None
    phase: str = "starting"
    phases_seen: list[tuple[str, int]] = field(default_factory=list)  # (name, mono_ns)

    def absorb(self, header: Mapping[str, Any], event: Mapping[str, Any], now_ns: int) -> None:
        if header.get("role") == "trainer":
            self._absorb_trainer(header, event, now_ns)
        elif event["event"] == "agent.rendezvous" and event.get("edge") == "begin":
            self.phase = "rendezvous"

    def _absorb_trainer(self, header: Mapping[str, Any], event: Mapping[str, Any], now_ns: int) -> None:
        rank, kind = header["rank"], event["event"]
        if kind == "started":
            self.workers[rank] = Worker(header["node"], header["incarnation"], header["pid"], now_ns)
            self.complete_step = self._complete()
            self.phase = "startup"
        elif kind == "rendezvous":
            self.world_size = event["world_size"]
        elif kind == "restored":
            self.phase = "restored"
            if rank in self.workers:
                self.workers[rank].last_step = event["step"]
            self.complete_step = self._complete()
        elif kind == "step" and rank in self.workers:
            self._absorb_step(rank, event, now_ns)
        elif kind in ("phase", "failpoint"):
            if event.get("edge", "begin") == "begin":
                self.phases_seen.append((event["name"], now_ns))
            if not event["name"].startswith("checkpoint"):
                self.phase = event["name"]
        elif kind == "exiting":
            self.phase = "exiting"

    def _absorb_step(self, rank: int, event: Mapping[str, Any], now_ns: int) -> None:
        self.workers[rank].last_step = event["step"]
        self.last_step_ns = now_ns
        self.phase = "training"
        loss = event.get("loss")
        self.loss = loss if isinstance(loss, float) else self.loss
        self.complete_step = self._complete()
        self.furthest_step = max(self.furthest_step, self.complete_step)

    def _complete(self) -> int:
        """The last step that every rank of the current world has done."""
        world = range(self.world_size or len(self.workers))
        return min((self.workers[rank].last_step if rank in self.workers else 0 for rank in world), default=0)


@dataclass
class Firing:
    """One planned fault on its way: waiting → acting → done, with the moments others may follow."""

    planned: PlannedFault
    index: int
    moments_ns: dict[str, int] = field(default_factory=dict)  # injected · effect · recovered · healed
    armed_ns: int | None = None
    fired: bool = False
    furthest_before: int = 0  # what progress must pass for the job to have recovered

    def due(self, progress: Progress, others: Mapping[str, Firing], start_ns: int, now_ns: int) -> bool:
        """Whether to fire now. Arms itself as soon as the only thing missing is the phase."""
        when = self.planned.when
        base_ns = start_ns
        if "following" in when:
            moment = others[when["following"]].moments_ns.get(when["event"])
            if moment is None:
                return False
            base_ns = moment
        if now_ns < base_ns + when.get("after_ns", 0):
            return False
        if "step" in when and progress.complete_step < when["step"]:
            return False
        if "phase" not in when:
            return True
        if self.armed_ns is None:
            self.armed_ns = now_ns
        return any(name == when["phase"] and at >= self.armed_ns for name, at in progress.phases_seen)


class Holds:
    """The files through which trainers are held and released, in `<run>/holds/`."""

    def __init__(self, run_dir: pathlib.Path, faults: Sequence[PlannedFault]):
        self.directory = run_dir / "holds"
        self.directory.mkdir()
        self.file = run_dir / "holds.json"
        self.file.write_text(json.dumps([hold for fault in faults for hold in self._holds(fault)]))
        for fault in faults:
            if "phase" not in fault.when:
                self.arm(fault.id)

    def arm(self, fault_id: str) -> None:
        (self.directory / f"{fault_id}.armed").touch()

    def release(self, fault_id: str) -> None:
        (self.directory / f"{fault_id}.released").touch()

    def _holds(self, fault: PlannedFault) -> list[dict[str, Any]]:
        if "phase" in fault.when:
            name = fault.when["phase"]
            matches: list[dict[str, Any]] = [
                {"event": "phase", "name": name, "edge": "begin"},
                {"event": "failpoint", "name": name},
            ]
        elif "step" in fault.when:
            matches = [{"event": "step", "step": fault.when["step"]}]
        else:
            return []
        paths = {edge: str(self.directory / f"{fault.id}.{edge}") for edge in ("armed", "released")}
        return [{"match": match} | paths for match in matches]
