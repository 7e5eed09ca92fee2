"""Makes trainers wait at a fault's trigger, until the fault acts on them or releases them, by files called *holds*.

A trainer that uses the harness's emitter waits at the log event that triggers a fault until the fault has acted. For
example, a fault after step 90 acts before step 91. Without the emitter, a fault may act some steps after its trigger.
"""

import contextlib
import json
import os
import pathlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.faults.contract import Hold
from harness.log import untrusted_files
from harness.node.emitter import HOLDS_ENV
from harness.node.emitter.holds import granted
from harness.plan.run_plan import PlannedFault

SAVED_S_MAX = 120.0  # in which a job that has come to its save is ended, on any engine


@dataclass(frozen=True)
class Claim:
    """A worker process that has stopped, and waits until the harness lets a planned fault act on it."""

    rank: int
    node: str
    token: pathlib.Path

    def grant(self) -> None:
        """Lets the planned fault act on this waiting process."""
        with contextlib.suppress(FileNotFoundError):  # granted before, or taken back
            os.rename(self.token, granted(str(self.token), self.node))


class TriggerHolds:
    """The files by which faults stop trainers' processes at planned events, and release the processes.

    A stopped process writes a file in `<run>/answers/<node>/` to say that the fault may act on it. After a process has
    committed the save of step `until_saved`, it waits for the end of the job, so that no later save is made.
    """

    def __init__(self, run_dir: pathlib.Path, faults: Sequence[PlannedFault], until_saved: int | None = None):
        self.run_dir = run_dir
        self.directory = run_dir / "holds"
        self.directory.mkdir()
        self.file = run_dir / "holds.json"
        self._next_step = self._files("next-step")  # for all faults that count steps from the begin of their rehearsal
        self._standing = set[str]()  # faults for which the trainer stands at its next step
        self._lock = threading.Lock()
        holds = [hold for fault in faults for hold in self._holds(fault) + self._acts(fault)]
        if any(fault.when.more_steps is not None for fault in faults):
            holds.append({"match": {"event": "step"}} | self._next_step)
        if until_saved is not None:
            place = self._files("until-saved")
            pathlib.Path(place["armed"]).touch()
            match = {"event": "checkpoint.committed", "step": until_saved}
            holds.append({"match": match, "limit_s": SAVED_S_MAX} | place)
        self.file.write_text(json.dumps(holds))
        self.environment = {HOLDS_ENV: str(self.file)} if holds else {}

    def begin(self, faults: Iterable[PlannedFault]) -> None:
        """Called when a rehearsal begins: makes trainers stop at the steps for which the rehearsal's faults wait."""
        for fault in faults:
            if fault.when.phase is None and fault.when.more_steps is None:
                self.arm(fault.id)

    def stand(self, fault_id: str) -> None:
        """Makes all trainers wait from their next step on, until this fault releases them."""
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

    def act(self, fault: PlannedFault, seed: int = 0) -> None:
        """From now on, lets a fault stop or disturb trainers at log events. `seed` decides random choices."""
        for hold in self._acts(fault):
            for token in hold.get("tokens", ()):
                pathlib.Path(token).touch()
        (self.directory / f"{fault.id}.act.armed").write_text(str(seed))

    def stop_acting(self, fault_id: str) -> None:
        self.release(f"{fault_id}.act")
        for token in self._tokens(fault_id):
            token.unlink(missing_ok=True)  # it may be granted just now

    def caught(self, fault_id: str) -> Claim | None:
        tokens = {token.name: token for token in self._tokens(fault_id)}
        for node in untrusted_files.names_in(self.run_dir, "answers") if tokens else ():
            for name in untrusted_files.names_in(self.run_dir, f"answers/{node}"):
                if name in tokens:
                    rank = name.removeprefix(f"{fault_id}.act.strike-").split("-")[0]
                    return Claim(int(rank), node, tokens[name])
        return None

    def _tokens(self, fault_id: str) -> list[pathlib.Path]:
        """Returns the fault's unused token files. Each token file lets the fault act on one process."""
        found = self.directory.glob(f"{fault_id}.act.strike-*")
        return sorted(token for token in found if token.name.rpartition("-")[2].isdigit())

    def _acts(self, fault: PlannedFault) -> list[dict[str, Any]]:
        return [self._act(fault.id, hold) for hold in fault.action.holds(fault.targets)]

    def _act(self, fault_id: str, hold: Hold) -> dict[str, Any]:
        entry: dict[str, Any] = {"match": dict(hold.match), "rank": hold.rank, "limit_s": hold.limit_s}
        entry |= self._files(f"{fault_id}.act")
        if hold.strikes:
            names = (f"{fault_id}.act.strike-{hold.rank}-{each}" for each in range(hold.strikes))
            entry |= {"tokens": [str(self.directory / name) for name in names]}
            entry |= {"code": hold.code, "mislead": hold.mislead, "does": hold.does, "argument": hold.argument}
        return entry

    def _holds(self, fault: PlannedFault) -> list[dict[str, Any]]:
        matches: list[dict[str, Any]] = []
        if name := fault.when.phase:
            matches = [{"event": "phase", "name": name, "edge": "begin"}, {"event": "failpoint", "name": name}]
        elif fault.when.step is not None:
            matches = [{"event": "step", "step": fault.when.step}]
        return [{"match": match} | self._files(fault.id) for match in matches]

    def _files(self, name: str) -> dict[str, str]:
        return {edge: str(self.directory / f"{name}.{edge}") for edge in ("armed", "released")}
