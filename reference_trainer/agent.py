"""Starts workers by fork, so that a restart takes milliseconds.

torchrun starts a Python interpreter for each worker: importing torch and building a first optimizer take two seconds
after each failure. The launcher `reference_trainer.launch` imports torch and builds an optimizer only once, and its
agent forks the workers. Three rules make the fork safe: the agent runs no backward pass, makes no CUDA call, and blocks
signals during a fork, so that a new worker misses no signal.

With `--recovery peer` (see `reference_trainer.peers`), the agent replaces a dead worker by a new process while the
other workers live on. To replace a worker at once, the agent forks one spare process in advance.

`ForkingAgent` extends torch's `SimpleElasticAgent` (torch 2.13), but starts and stops processes itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from harness.events import Emitter
from reference_trainer.options import EXIT_USAGE
from reference_trainer.preemption import EXIT_DRAINED, REGROUP_SIGNAL, SIGNALS
from reference_trainer.rendezvous import STOP_SIGNALS, Eviction, Rendezvous
from reference_trainer.train import EXIT_ERROR, EXIT_STOPPED, STORE_PREFIX_ENV

MONITOR_INTERVAL_S = 0.02
STOPPED_S = 0.5  # long enough that it is no duty cycle
EXIT_BARRIER_S = 30  # how long a node that is done waits for the others

HELD_SIGNALS = STOP_SIGNALS | SIGNALS

HOPELESS = {EXIT_USAGE, EXIT_STOPPED}  # starting again would end the same way
CRASHED = {EXIT_ERROR, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE}
CRASHES_MAX = 5  # one after another, each
SOON_S = 60.0  # after the start
REPLACED = {*CRASHED, -signal.SIGKILL}  # ends after which peers of the worker may live on
REPLACED_MAX, REPLACED_WITHIN_S = 20, 10.0  # workers replaced in so many seconds; more do not get any further
SPARE_AFTER_S = 1.0  # after a worker was replaced: by then the others have gone on


class Spare(NamedTuple):
    pid: int
    place: int  # file descriptor


class ForkingAgent(SimpleElasticAgent):
    def __init__(
        self,
        rendezvous: Rendezvous,
        workers: int,
        max_restarts: int,
        worker: Callable[[list[str]], int],
        arguments: list[str],
        emit: Emitter,
        eviction: Eviction,
        drain_s: float,
        exclude_failing: int = 0,
        by_peers: bool = False,
    ):
        """Prepares `workers` processes, each of which runs `worker(arguments)` and exits with the returned code.

        With `exclude_failing` above 0, the node leaves the job after this many failures in a row that each came soon
        after a start. With `by_peers`, a new process replaces a dead worker and takes its state from the other workers.
        """
        spec = WorkerSpec(
            role="trainer",
            local_world_size=workers,
            rdzv_handler=rendezvous,
            entrypoint=worker,
            args=(arguments,),
            max_restarts=max_restarts,
            monitor_interval=MONITOR_INTERVAL_S,
        )
        super().__init__(spec, exit_barrier_timeout=EXIT_BARRIER_S)
        self._rendezvous_handler = rendezvous
        self._worker = worker
        self._arguments = arguments
        self._emit = emit
        self._eviction = eviction
        self._drain_s = drain_s
        self._exclude_failing = exclude_failing
        self._lives_well = False  # these workers have lived long enough, and the store knows it
        self._running: dict[int, int] = {}  # pid → local rank
        self.exit_codes: dict[int, int] = {}  # of the latest workers, by local rank; negative: killed by that signal
        self._crashes = 0
        self._by_peers = by_peers
        self._environments: dict[int, dict[str, str]] = {}  # of the latest workers, by local rank
        self._spare: Spare | None = None
        self._replaced: list[float] = []  # when
        self.excluded = False  # this node has failed too often
        self._started_at = 0.0

    def all_done(self) -> bool:
        """Returns True if all workers ended with exit code 0, after waiting up to `EXIT_BARRIER_S` for other nodes."""
        if len(self.exit_codes) < self._worker_group.spec.local_world_size or any(self.exit_codes.values()):
            return False
        self._exit_barrier()
        return True

    # What SimpleElasticAgent asks for

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        prefix = f"workers/{self._rendezvous_handler.get_run_id()}/{self._rendezvous_handler.round}"
        self.exit_codes = {}
        self._started_at = time.monotonic()
        self._lives_well = False
        with _held_signals():
            for worker in worker_group.workers:
                environment = {
                    "RANK": worker.global_rank,
                    "LOCAL_RANK": worker.local_rank,
                    "WORLD_SIZE": worker.world_size,
                    "LOCAL_WORLD_SIZE": worker_group.spec.local_world_size,
                    "GROUP_RANK": worker_group.group_rank,
                    "MASTER_ADDR": worker_group.master_addr,
                    "MASTER_PORT": worker_group.master_port,
                    "TORCHELASTIC_RUN_ID": self._rendezvous_handler.get_run_id(),
                    "TORCHELASTIC_RESTART_COUNT": worker_group.spec.max_restarts - self._remaining_restarts,
                    STORE_PREFIX_ENV: prefix,
                }
                self._environments[worker.local_rank] = {key: str(value) for key, value in environment.items()}
                self._start(worker.local_rank)
            return {local_rank: pid for pid, local_rank in self._running.items()}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._reap()
        self._eviction.check()
        failed = {rank: code for rank, code in self.exit_codes.items() if code != 0}
        if failed and not self._replace(worker_group, failed):
            return self._failure(worker_group, failed)
        if self._by_peers and not self._spare and time.monotonic() - max(self._replaced, default=0) > SPARE_AFTER_S:
            self._fork_spare()
        if self._running:
            if not self._lives_well and time.monotonic() - self._started_at > SOON_S:
                self._lives_well = True
                self._rendezvous_handler.forgive()
            return RunResult(WorkerState.HEALTHY)
        return RunResult(WorkerState.SUCCEEDED, return_values={w.global_rank: 0 for w in worker_group.workers})

    def _replace(self, worker_group: WorkerGroup, failed: dict[int, int]) -> bool:
        """Replaces dead workers by new processes. Returns False if all workers must restart instead."""
        now = time.monotonic()
        self._replaced = [at for at in self._replaced if now - at < REPLACED_WITHIN_S]
        if not self._by_peers or not set(failed.values()) <= REPLACED:
            return False
        if len(self._replaced) >= REPLACED_MAX:
            count = f"{REPLACED_MAX} workers were replaced within {REPLACED_WITHIN_S:g} s"
            print(f"launch: no recovery among peers: {count}; all start again", file=sys.stderr)
            return False
        try:
            for _ in failed:
                self._rendezvous_handler.begin_generation(self._environments[0][STORE_PREFIX_ENV])
        except RuntimeError:
            return False  # without the store nobody can meet
        for local_rank, code in failed.items():
            with _held_signals():
                worker_group.workers[local_rank].id = self._start(local_rank)
            del self.exit_codes[local_rank]
            self._replaced.append(now)
            self._diagnose("crash", local_rank, "restart-in-place", f"exit code {code}")
        return True

    def refuse_excluded(self) -> None:
        """Raises `SignalException`, which makes the node leave the job, if this node has failed too often in a row."""
        self._exclude(self._rendezvous_handler.begin_life() - 1)

    def _exclude(self, failures: int, *ranks: int) -> None:
        if not 0 < self._exclude_failing <= failures:
            return
        name, slow = self._rendezvous_handler.name, self._rendezvous_handler.was_slow()
        how = "left as too slow" if slow else "failed"
        why = f"{name} {how} {failures} times in a row, each within {SOON_S:g} s of a start"
        print(f"launch: this node leaves the job (--exclude-failing {self._exclude_failing}): {why}", file=sys.stderr)
        kind, who = "straggler" if slow else "crash", [{"rank": rank} for rank in ranks]
        self._emit("diagnosis", kind=kind, who=who or [{"node": name}], decision="evict-node", why=why)
        self.excluded = self._eviction.noticed = True
        self._eviction.check()

    def _failure(self, worker_group: WorkerGroup, failed: dict[int, int]) -> RunResult:
        if EXIT_DRAINED in failed.values():
            self._wait(2.0)  # the others are leaving as well, and may have to tell us that the node is evicted
            self._eviction.check()
        # A worker that fails by itself again and again, soon after its start, will not get better.
        soon = time.monotonic() - self._started_at < SOON_S
        self._crashes = self._crashes + 1 if soon and CRASHED & set(failed.values()) else 0
        if HOPELESS & set(failed.values()) or self._crashes >= CRASHES_MAX:
            self._remaining_restarts = 0
        if any(map(_is_stopped, self._running)):
            self._wait(2 * STOPPED_S)  # one that hangs is named before it is killed with the others
        decision = "restart-in-place" if self._remaining_restarts else "stop"
        failures = {}
        own: list[int] = []  # ranks that failed by themselves
        for local_rank, code in failed.items():
            worker = worker_group.workers[local_rank]
            if code in CRASHED or code == -signal.SIGKILL:
                self._diagnose("crash", local_rank, decision, f"exit code {code}")
                own.append(worker.global_rank)
            failures[worker.global_rank] = ProcessFailure(local_rank, worker.id, code, "")
        if own and soon:
            self._exclude(self._rendezvous_handler.begin_life() - 1, *own)
        return RunResult(WorkerState.FAILED, failures=failures)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        if worker_group.state == WorkerState.HEALTHY:  # nodes come or go
            self._stop(REGROUP_SIGNAL, self._drain_s)
        else:  # one of them died: the state of the others is worth nothing
            self._stop(signal.SIGKILL, 0)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self._stop(signal.SIGTERM, self._drain_s)

    # Processes

    def _start(self, local_rank: int) -> int:
        environment, spare = self._environments[local_rank], self._spare
        self._spare = None
        if spare:
            try:
                with os.fdopen(spare.place, "w") as place:
                    print(json.dumps(environment), file=place)
                self._running[spare.pid] = local_rank
                return spare.pid
            except BrokenPipeError:  # somebody has killed it
                os.waitpid(spare.pid, 0)
        pid = self._fork(lambda: environment)
        self._running[pid] = local_rank
        return pid

    def _fork_spare(self) -> None:
        place, told = os.pipe()

        def wait() -> dict[str, str]:
            os.close(told)
            with os.fdopen(place) as file:
                line = file.readline()
            if not line:  # the launcher is gone
                raise SystemExit(EXIT_ERROR)
            environment: dict[str, str] = json.loads(line)
            return environment

        with _held_signals():
            pid = self._fork(wait)
        os.close(place)
        self._spare = Spare(pid, told)

    def _fork(self, place: Callable[[], dict[str, str]]) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        agent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = EXIT_ERROR
        try:
            _die_with(agent)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.environ.update(place())
            code = self._worker(self._arguments)
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else EXIT_ERROR
        except BaseException:  # some of PyTorch's are no Exception
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):  # nobody reads any more
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        for pid, local_rank in list(self._running.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._running[pid]
                code = os.waitstatus_to_exitcode(status)
                self.exit_codes[local_rank] = code
                rank = self._worker_group.workers[local_rank].global_rank
                self._emit("worker.exit", local_rank=local_rank, rank=rank, pid=pid, code=code)

    def _diagnose(self, kind: str, local_rank: int, decision: str, why: str) -> None:
        rank = self._worker_group.workers[local_rank].global_rank
        self._emit("diagnosis", kind=kind, who=[{"rank": rank}], decision=decision, why=why)

    def _wait(self, limit_s: float) -> None:
        """Waits until all workers have ended. Kills workers stopped by SIGSTOP, which react to no other signal."""
        deadline = time.monotonic() + limit_s
        stopped_since = time.monotonic()
        self._reap()
        while self._running and time.monotonic() < deadline:
            time.sleep(0.002)
            self._reap()
            stopped = [pid for pid in self._running if _is_stopped(pid)]
            if not stopped:
                stopped_since = time.monotonic()
            elif time.monotonic() - stopped_since > STOPPED_S:
                for pid in stopped:
                    self._diagnose("hang", self._running[pid], "restart-in-place", f"process {pid} is stopped")
                    os.kill(pid, signal.SIGKILL)

    def _stop(self, number: signal.Signals, grace_s: float) -> None:
        for pid in self._running:
            os.kill(pid, number)
        self._wait(grace_s)
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        self._wait(10.0)


@contextlib.contextmanager
def _held_signals() -> Iterator[None]:
    """Blocks signals while workers start, so that an eviction notice in this time still reaches the new workers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)


def _is_stopped(pid: int) -> bool:
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] in "Tt"


def _die_with(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends, so that a killed agent leaves no orphans."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
