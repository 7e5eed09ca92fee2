"""Holds code that several backends share: capabilities of the engine, queues of events, and the control command."""

import abc
import collections
import time
from collections.abc import Mapping
from typing import Protocol, TypeVar

from harness.backends.contract import Backend, Capability, Change, ClockReading, Cluster, Exit, Launch, Verb
from harness.errors import BackendError, ChaosError, NodeGone, UsageError

KILL_S_MAX = 20.0

T = TypeVar("T")


class EngineBackend(Backend):
    """A backend whose engine, such as Docker, may be absent from this machine. `never` holds the acts that the backend
    cannot support on any machine, each with the reason."""

    never: Mapping[Verb, str]
    absent: tuple[type[ChaosError], ...] = (ChaosError,)  # what says that the engine is not there; others are raised

    def __init__(self) -> None:
        self._found: Capability | None = None  # kept once the engine is there

    @abc.abstractmethod
    def try_out(self) -> tuple[str, Mapping[Verb, str]]:
        """Tries out what the engine can do. Returns one line that describes the engine, and the reason for each act on
        a node that the engine cannot do."""

    def probe(self) -> Capability:
        if self._found is None:
            try:
                summary, missing = self.try_out()
            except self.absent as error:
                return Capability(False, str(error), frozenset(), dict.fromkeys(Verb, str(error)))
            self._found = Capability(True, summary, frozenset(Verb) - missing.keys(), missing)
        return self._found

    def lacks(self) -> Mapping[str, Mapping[Verb, str]]:
        return {self.name: self.never}


class Box(collections.deque[T]):
    """A queue of events that any thread fills and that the harness's loop empties."""

    def take(self) -> list[T]:
        return [self.popleft() for _ in range(len(self))]


class TellingCluster(Cluster):
    """A cluster whose threads report events through queues. If `broken` is set, the connection to the cluster has
    failed, and the job's state is unknown."""

    def __init__(self) -> None:
        self.ends: Box[Exit] = Box()
        self.comings_and_goings: Box[Change] = Box()
        self.readings: Box[ClockReading] = Box()
        self.broken: ChaosError | None = None

    def exits(self) -> list[Exit]:
        if self.broken:
            raise self.broken
        return self.ends.take()

    def changes(self) -> list[Change]:
        return self.comings_and_goings.take()

    def clocks(self) -> list[ClockReading]:
        return self.readings.take()


class ControlHost(Protocol):
    @property
    def command_runs(self) -> bool: ...

    def kill_command(self) -> None: ...


class ControlledCluster(TellingCluster):
    def __init__(self, workload: Launch) -> None:
        super().__init__()
        self._control_starts = 0
        self._control_command = workload.control

    @property
    @abc.abstractmethod
    def control_host(self) -> ControlHost | None: ...

    @abc.abstractmethod
    def start_control(self, start: int, command: tuple[str, ...]) -> None:
        """Starts the control command with its placeholders filled in. `start` counts the starts of the command, from
        1."""

    @property
    def control_running(self) -> bool:
        return self.control_host is not None and self.control_host.command_runs

    def kill_control(self) -> None:
        host = self.control_host
        if host is None or not host.command_runs:
            raise NodeGone("no control command is running")
        host.kill_command()
        deadline = time.monotonic() + KILL_S_MAX
        while host.command_runs:
            if time.monotonic() > deadline:
                raise BackendError(f"the control command is still there {KILL_S_MAX:g} s after SIGKILL")
            time.sleep(0.002)

    def restart_control(self) -> None:
        if self.control_host is None or self._control_command is None:
            raise UsageError("this workload has no control command")
        self._control_starts += 1
        self.start_control(self._control_starts, self._control_command)
