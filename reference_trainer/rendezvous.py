"""A faster and more robust version of torch's rendezvous.

The class `Rendezvous` changes `DynamicRendezvousHandler` (torch 2.13) in three ways. Delays that torch does not let
users change are shorter. A node counts as dead if its heartbeat *has not changed* for too long on this node's monotonic
clock. Torch compares the wall clocks of nodes: if two clocks differ by two seconds, healthy nodes exclude each other.
If the store dies, training continues. When the store is back without its data, all nodes meet again.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import time
from datetime import datetime, timedelta, tzinfo
from types import FrameType

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousInfo,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
    dynamic_rendezvous,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousSettings,
    RendezvousTimeout,
)

from harness.events import Emitter
from reference_trainer import peers
from reference_trainer.preemption import SLOW_SIGNAL

POLL_S = 0.02  # of the rendezvous state; 1 s in torch
KEEP_ALIVE_INTERVAL_S = 0.25
KEEP_ALIVE_ATTEMPTS = 8  # with 2, regrowing hangs; with 4, agents on a busy host declare each other dead
LAST_CALL_S = 0.1
FIRST_CALL_S = 15
STORE_TIMEOUT_S = 60
KNOCK_S = 0.2  # for a store that is lost: how long one try may take

STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}


class Eviction:
    """Records that this node must leave. The agent calls `check` at points where it can stop safely."""

    def __init__(self) -> None:
        self.noticed = False
        self.slow = False  # that is why, by the word of its own workers

    def install(self) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, self._notice)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def check(self) -> None:
        """Raises `SignalException` if this node must leave; a `SimpleElasticAgent` then stops its workers and ends."""
        if self.noticed:
            raise SignalException("this node is to leave", signal.SIGTERM)

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self.noticed = True
        self.slow |= number == SLOW_SIGNAL


class Members(dynamic_rendezvous._BackendRendezvousStateHolder):
    def __init__(self, store: TCPStore, settings: RendezvousSettings):
        super().__init__(C10dRendezvousBackend(store, settings.run_id), settings, cache_duration=0)
        self._silent_s_max = (settings.keep_alive_interval * settings.keep_alive_max_attempt).total_seconds()
        self._seen: dict[dynamic_rendezvous._NodeDesc, tuple[datetime, float]] = {}  # heartbeat, and since when
        self._looked = time.monotonic()

    def _sanitize(self) -> None:
        now = time.monotonic()
        if now - self._looked > self._silent_s_max / 2:
            self._seen.clear()  # we were not there ourselves: no reason to call the others dead
        self._looked = now
        beats = self.state.last_heartbeats
        seen = {node: (beat, now) for node, beat in beats.items()}
        self._seen = {
            node: before if (before := self._seen.get(node, new))[0] == new[0] else new for node, new in seen.items()
        }
        for node, (_, since) in self._seen.items():
            if now - since > self._silent_s_max:
                self._remove(node)

    def _remove(self, node: dynamic_rendezvous._NodeDesc) -> None:
        state = self.state
        del state.last_heartbeats[node]
        state.wait_list.discard(node)
        state.redundancy_list.discard(node)
        if state.participants.pop(node, None) is not None:
            dynamic_rendezvous._remove_participant_epilogue(state, self._settings)


class SteadyClock(datetime):
    """A clock that never jumps: the time of day at the start of this process plus the monotonic time since then."""

    _begin = datetime.now().astimezone()
    _begin_s = time.monotonic()

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return (cls._begin + timedelta(seconds=time.monotonic() - cls._begin_s)).astimezone(tz)


class Rendezvous(DynamicRendezvousHandler):
    """torch's rendezvous, with the changes that the module's docstring lists, and with logged events.

    Workers meet in the rendezvous store itself, under a key prefix for their rendezvous round. The store runs outside
    of all nodes, so that no port must be chosen, and no rank's death ends the store.
    """

    def __init__(
        self,
        store: TCPStore,
        run_id: str,
        nodes: tuple[int, int],
        address: str,
        join_s: float,
        emit: Emitter,
        eviction: Eviction,
        spare: bool = False,
    ):
        """`address` is this node's address for other nodes. `nodes` is the minimum and maximum number of nodes.

        `join_s` is the number of seconds to wait for the minimum number of nodes. With `spare`, this node joins a new
        job after all other nodes, so that the other nodes train.
        """
        settings = RendezvousSettings(
            run_id=run_id,
            min_nodes=nodes[0],
            max_nodes=nodes[1],
            timeout=RendezvousTimeout(join=timedelta(seconds=join_s), last_call=timedelta(seconds=LAST_CALL_S)),
            keep_alive_interval=timedelta(seconds=KEEP_ALIVE_INTERVAL_S),
            keep_alive_max_attempt=KEEP_ALIVE_ATTEMPTS,
        )
        # The random part keeps two agents apart that share an address and, in PID namespaces, also their pid.
        node = dynamic_rendezvous._NodeDesc(address, os.getpid(), random.SystemRandom().getrandbits(32))
        super().__init__(node, settings, "c10d", store, Members(store, settings))
        self._endpoint = store.host, store.port
        self._emit = emit
        self._eviction = eviction
        self._spare = spare
        self._was_spare = False  # at the last look
        self._store_lost = False
        self._came = 0  # most nodes that were there at a time since this one waits for a world
        dynamic_rendezvous._delay = self._pause
        dynamic_rendezvous.datetime = SteadyClock  # type: ignore[misc]
        # torch names the caller of every poll by walking the whole stack, sources included: at our pace that alone
        # keeps a core busy, and on a busy host two agents then never meet.
        dynamic_rendezvous.get_method_name = lambda depth=2: "rendezvous"

    def _pause(self, seconds: float | tuple[float, float]) -> None:
        """Replaces torch's pause of one second between two reads of the rendezvous state by a shorter one."""
        self._eviction.check()
        state = self._state_holder.state
        self._came = max(self._came, len(state.participants))
        self._was_spare = self._this_node in state.redundancy_list
        time.sleep(POLL_S)

    @property
    def use_agent_store(self) -> bool:
        return False  # our workers are told the store's prefix instead

    @property
    def round(self) -> int:
        return int(self._state_holder.state.round)

    def next_rendezvous(self) -> RendezvousInfo:
        self._emit("agent.rendezvous", edge="begin")
        self._came = 0
        self._stop_heartbeats()
        deadline = self._get_deadline(self._settings.timeout.join)
        while True:
            self._eviction.check()
            try:
                if self._store_lost:
                    self._find_store()
                self._join(deadline)
                break
            except RendezvousConnectionError:
                self._store_lost = True
                if time.monotonic() > deadline:
                    raise
                self._pause(POLL_S)
            except RendezvousTimeoutError as error:
                if self._was_spare:  # all that time there was no place for it; now there is one
                    deadline = self._get_deadline(self._settings.timeout.join)
                    continue
                raise RendezvousTimeoutError(self._why_not()) from error
        self._start_heartbeats()
        rank, world_size = self._get_world()
        self._emit("agent.rendezvous", edge="end", node_rank=rank, nodes=world_size, round=self.round)
        address = RendezvousStoreInfo(*self._endpoint)
        return RendezvousInfo(self._get_store(), rank, world_size, address)

    def _join(self, deadline: float) -> None:
        self._op_executor.run(dynamic_rendezvous._RendezvousExitOp(), deadline)
        while self._spare and self._is_new() and time.monotonic() < deadline:
            self._pause(POLL_S)
            self._state_holder.sync()
        self._set_last_call()
        self._op_executor.run(dynamic_rendezvous._RendezvousJoinOp(), deadline, self._get_deadline)

    def _why_not(self) -> str:
        least, waited = self._settings.min_nodes, f"{self._settings.timeout.join.total_seconds():g} s"
        if self._came < least:
            return f"only {self._came} of {least} nodes came within {waited} (--join-timeout-s): the job ends"
        return f"the other nodes took this one in at no time within {waited} (--join-timeout-s)"

    def _set_last_call(self) -> None:
        """Gives all nodes of a new job time to start. Later rounds of the rendezvous begin at once, with the nodes that
        are present."""
        new = self._is_new()
        self._settings.timeout._set_timeouts(last_call=timedelta(seconds=FIRST_CALL_S if new else LAST_CALL_S))

    def _is_new(self) -> bool:
        state = self._state_holder.state
        return self.round == 0 and not state.complete and not state.closed

    def num_nodes_waiting(self) -> int:
        """Returns how many nodes wait to join, plus one if this node is no longer a member of the job."""
        try:
            if self._store_lost:
                self._find_store()
            waiting = super().num_nodes_waiting()
        except RendezvousConnectionError:
            self._store_lost = True  # no reason to stop what trains
            return 0
        return waiting + int(self._this_node not in self._state_holder.state.participants)

    def _find_store(self) -> None:
        host, port = self._endpoint
        try:
            socket.create_connection((host, port), timeout=KNOCK_S).close()
            store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=STORE_TIMEOUT_S))
        except (OSError, RuntimeError) as error:
            raise RendezvousConnectionError(f"no rendezvous store at {host}:{port}: {error}") from error
        self._stop_heartbeats()
        # torch has no way to hand a new store to a handler but to make it anew.
        super().__init__(self._this_node, self._settings, self._backend_name, store, Members(store, self._settings))
        self._store_lost = False
        self._emit("agent.store_found", host=host, port=port)

    def begin_generation(self, prefix: str) -> None:
        """Tells the workers under `prefix` in the store that a new process has replaced a dead process. Raises
        `RuntimeError` if the store is lost."""
        peers.begin_generation(PrefixStore(prefix, self._store))

    def tell_outcome(self, outcome: str) -> None:
        """Stores how the job ended, for nodes that come too late, and closes the rendezvous."""
        with contextlib.suppress(RuntimeError, RendezvousError):  # without a store nobody can come late either
            self._store.set(self._outcome_key, outcome)
            self.shutdown()

    def outcome(self) -> str | None:
        return self._store.get(self._outcome_key).decode() if self._store.check([self._outcome_key]) else None

    @property
    def address(self) -> str:
        return str(self._this_node.addr)

    @property
    def name(self) -> str:
        """Returns the environment variable `CHAOS_NODE`, or else the address. Unlike the address, `CHAOS_NODE` stays
        the same if the node comes back."""
        return os.environ.get("CHAOS_NODE") or self.address

    def begin_life(self) -> int:
        """Counts a start of this node. Returns how many starts in a row, including this start, were short-lived. The
        store keeps the count, because a restarted agent remembers nothing."""
        with contextlib.suppress(RuntimeError):  # a lost store forgets it anyway
            return int(self._store.add(self._lives_key, 1))
        return 1

    def note_slow(self) -> None:
        """Records that the node leaves because it is slow. The store keeps this reason until the node starts again."""
        with contextlib.suppress(RuntimeError):
            self._store.set(f"{self._lives_key}/slow", "1")

    def was_slow(self) -> bool:
        with contextlib.suppress(RuntimeError):
            return bool(self._store.check([f"{self._lives_key}/slow"]))
        return False

    def forgive(self, ends: bool = False) -> None:
        """Records that this start of the node was not short-lived. With `ends`, records that the node leaves for a good
        reason."""
        with contextlib.suppress(RuntimeError):
            self._store.set(self._lives_key, "0" if ends else "1")

    @property
    def _lives_key(self) -> str:
        return f"lives/{self.get_run_id()}/{self.name}"

    @property
    def _outcome_key(self) -> str:
        return f"outcome/{self.get_run_id()}"

    def leave(self) -> None:
        """Removes this node from the rendezvous, so that other nodes need not wait until its keep-alive expires."""
        self._stop_heartbeats()
        with contextlib.suppress(Exception):  # the store may be gone, and we are leaving anyway
            self._op_executor.run(dynamic_rendezvous._RendezvousExitOp(), self._get_deadline(timedelta(seconds=1)))


def connect(endpoint: str | None) -> TCPStore:
    """Returns a client of the job's store. Without an endpoint, this process serves a store for a single node."""
    if endpoint is None:
        return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    host, _, port = endpoint.rpartition(":")
    return TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=STORE_TIMEOUT_S))
