"""Recovers from a dead rank without a restart (`--recovery peer`): a new process gets its state from a living rank.

All living ranks meet in the rendezvous store and form a new process group, called *generation*. A launcher begins a new
generation (process group) when it has replaced a dead rank by a new process. When the ranks meet, each rank shows its
last committed step, and the numbers that the ranks exchanged in that step. A rank commits a step only after the
gradients are summed and the losses are exchanged. If any rank has committed a step, every living rank has the summed
gradients of that step. A living rank that is one step behind the others can catch up alone, because it has the summed
gradients. A new process takes its state from the first rank with the newest step.

Each generation (process group) has its own keys in the store. If a generation fails for any reason, the ranks form the
next generation.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from reference_trainer.checkpoint import State

GENERATION = "generation"  # key of the store: number of the newest one
NO_STATE = -1  # the step of a process that has none yet
POLL_S = 0.001
NO_WORD_S = 1.0  # without a launcher's word of a death, ranks that lost each other meet again by themselves
CONNECT_S = 1.5  # in which ranks that have met must have connected
TRIES_MAX = 3  # at one step


class GaveUp(dist.DistError):
    """Raised if peer recovery failed. The process ends, and the job restarts from its newest checkpoint."""


@dataclass(frozen=True)
class Standing:
    """A rank's progress: its last committed step, and the numbers that all ranks exchanged in this step (`rows`)."""

    step: int = NO_STATE
    rows: list[list[float]] = field(default_factory=list)


class Peers:
    def __init__(self, store: dist.Store, rank: int, world_size: int):
        self._store, self._rank, self._world_size = store, rank, world_size
        self.generation = -1
        self.absent: list[int] = []  # ranks that did not come to the last meeting
        self._sockets: set[tuple[int, int]] = set()
        self._broken: list[object] = []  # groups: to destroy one may wait for ever
        self._last, self._tries = NO_STATE, 0

    def job_starts(self) -> bool:
        return self.generation < 0 and not _newest(self._store)

    def count(self, step: int) -> None:
        """Counts a recovery without a restart. Raises `GaveUp` after too many recoveries at the same step, because the
        step itself may be the cause."""
        self._tries = self._tries + 1 if step == self._last else 1
        self._last = step
        if self._tries > TRIES_MAX:
            raise GaveUp(f"{TRIES_MAX} recoveries after step {step} did not get any further")

    def meet(
        self, mine: Standing, deadline: float, claim: Callable[[dist.Store], None], told_to_leave: Callable[[], bool]
    ) -> list[Standing]:
        """Waits until all ranks have come to the newest generation (process group), and returns the progress of each
        rank.

        `claim` claims this rank's place in the generation. `deadline` is in seconds of the monotonic clock. Raises
        `GaveUp` after the deadline.
        """
        since, announced = time.monotonic(), self.generation
        while (now := time.monotonic()) < deadline and not told_to_leave():
            newest = _newest(self._store)
            if newest == self.generation and now - since > NO_WORD_S:
                self._store.compare_set(GENERATION, str(newest), str(newest + 1))
                continue
            here = self._of(newest)
            if newest != announced:
                claim(here)
                here.set(f"standing {self._rank}", json.dumps(asdict(mine)))
                announced = newest
            keys = [f"standing {rank}" for rank in range(self._world_size)]
            if newest != self.generation and here.check(keys):
                self.generation = newest
                return [Standing(**json.loads(told)) for told in here.multi_get(keys)]
            time.sleep(POLL_S)
        if announced != self.generation:
            here = self._of(announced)
            self.absent = [rank for rank in range(self._world_size) if not here.check([f"standing {rank}"])]
        why = (
            f"rank {', '.join(map(str, self.absent))} did not come" if self.absent else "no other rank knows of a death"
        )
        raise GaveUp("the launcher stops this rank" if told_to_leave() else why)

    def join(self, backend: str, timeout: timedelta) -> None:
        """Forms the process group of the current generation. If `join` raises a `RuntimeError`, the caller must call
        `leave`."""
        distributed_c10d._world.group_count = 0  # of ranks whose group failed it is another, and with it their keys
        before = _sockets()
        store = dist.PrefixStore("group", self._of(self.generation))
        patience = timedelta(seconds=CONNECT_S) if self.generation else timeout
        try:
            dist.init_process_group(
                backend, store=store, rank=self._rank, world_size=self._world_size, timeout=patience
            )
        finally:
            self._sockets = _sockets() - before
        distributed_c10d._set_pg_timeout(timeout)

    def leave(self) -> None:
        """Closes the process group's connections, so that no peer waits for this rank, and destroys the group."""
        for descriptor, inode in self._sockets:
            _shut(descriptor, inode)
        self._sockets = set()
        if dist.is_initialized():
            self._broken.append(dist.group.WORLD)
            dist.destroy_process_group()

    def _of(self, generation: int) -> dist.Store:
        return dist.PrefixStore(f"generation {generation}", self._store)


def begin_generation(store: dist.Store) -> None:
    """Tells the workers that a new process has replaced a dead rank. Raises `RuntimeError` if the store is lost."""
    store.add(GENERATION, 1)


def _newest(store: dist.Store) -> int:
    return int(store.add(GENERATION, 0))


def furthest(standings: Sequence[Standing]) -> tuple[Standing, int]:
    """Returns the entry with the newest committed step, and the first rank that has this step.

    >>> furthest([Standing(4), Standing(), Standing(5)])
    (Standing(step=5, rows=[]), 2)
    """
    first = max(range(len(standings)), key=lambda rank: (standings[rank].step, -rank))
    return standings[first], first


def give(state: State, rank: int) -> None:
    tensors = {name: value.contiguous() for name, value in state.items() if isinstance(value, Tensor)}
    rest = {name: value for name, value in state.items() if name not in tensors}
    dist.send_object_list([rest, {name: (each.shape, each.dtype) for name, each in tensors.items()}], rank)
    for tensor in tensors.values():
        dist.send(tensor, rank)


def take(rank: int) -> State:
    received: list[dict[str, Any]] = [{}, {}]
    dist.recv_object_list(received, rank)
    state, shapes = received
    for name, (shape, dtype) in shapes.items():
        tensor = torch.empty(shape, dtype=dtype)
        dist.recv(tensor, rank)
        state[name] = tensor
    return state


def _sockets() -> set[tuple[int, int]]:
    found = set[tuple[int, int]]()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add((int(name), int(target[8:-1])))
    return found


def _shut(descriptor: int, inode: int) -> None:
    """Shuts down a connection, unless its descriptor was closed or now belongs to another file."""
    try:
        mine = os.dup(descriptor)
    except OSError:
        return
    if os.fstat(mine).st_ino != inode:
        return os.close(mine)
    with socket.socket(fileno=mine) as connection:
        if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            with contextlib.suppress(OSError):  # gone by itself
                connection.shutdown(socket.SHUT_RDWR)
