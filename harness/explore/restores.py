"""Restores a job from many states of its checkpoint folder, one after the other: by whole restarts, or in forked ranks.

A restored job does some steps, and is then stopped. If `Wanted.follow` is True, a restore goes on until the job reports
its next save as finished, because files that a crash left can make this save fail.

The class `Restarts` restarts the whole job for each state. The class `ForkedRestores` forks the job's ranks from one
process, so that many restores per second are possible. Forked restores need a trainer that runs one Python script as
each rank. Forked ranks that log no events themselves are watched by the harness's observer, as in any run."""

from __future__ import annotations

import abc
import functools
import importlib.resources
import itertools
import json
import math
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.backends.contract import Backend, Launch, fill_placeholders
from harness.backends.local.backend import LocalBackend, LocalCluster
from harness.campaign import restarts
from harness.errors import ChaosError, FaultError
from harness.evidence.restarts import Restart, read_restart
from harness.explore.answers import End
from harness.explore.recorded_job import Recorded
from harness.log import untrusted_files
from harness.node.boot import OBSERVE_ENV
from harness.plan.run_plan import Abort, Plan
from harness.run import drill
from harness.run.job import execute
from harness.run.last_words import words_of
from harness.run.observers import Heard, Silent, Status
from harness.run.stop import StopRequest
from harness.timeline.save_events import COMMITTED
from harness.trainers.command import CommandTrainer
from harness.trainers.module import ModuleTrainer
from harness.trainers.reference import ReferenceTrainer
from harness.trainers.shared.scripted import ScriptTrainer
from harness.trainers.torchrun import TorchrunTrainer

FORKED_S_MAX = 45.0  # of the restore on one state
SILENT_S_MAX = 120.0  # of our process on the node, beyond the limit of a restore
FORKED_STEPS = 2  # after a restore: the first one shows wrong weights, the second one a wrong optimizer
ATTEMPTS = 2  # of ranks that a launcher starts again when they fail, and of a job that goes on to its next save
SAVE_TIMES = 3  # factor between the time from one save to the next in the recorded run, and its limit after a restore
ENDED_BYTES_MAX = 2**16
_TELLS = re.compile(rb"harness\.(?:events|node\.emitter)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_RUN_DIR, _PORT = "@RUN_DIR@", "@PORT@"


@dataclass(frozen=True)
class Wanted:
    """One restore to be made. The function `make` writes the checkpoint files to restore from into an empty folder. The
    function `heard` is called with the result of the restore and its duration in seconds. If `follow` is True, the
    restore goes on until the job reports its next save as finished."""

    name: str
    make: Callable[[pathlib.Path], None]
    heard: Callable[[Restart, End, float], None]
    follow: bool = False


Next = Callable[[], Wanted | None]  # the next restore, if any


class Restores(abc.ABC):
    words: str  # which form this is, for people
    steps: int  # after a restore: their losses are compared

    def __init__(
        self, plan: Plan, base: pathlib.Path, folder: pathlib.Path, stop: StopRequest, recorded: Recorded
    ) -> None:
        self.plan, self.base, self.folder, self.stop, self.recorded = plan, base, folder, stop, recorded
        self.save_s_max = SAVE_TIMES * recorded.save_s  # from the restore to the next save

    @abc.abstractmethod
    def do_all(self, next_one: Next) -> None:
        """Tries the restores that `next_one` returns, one after the other. Raises `ChaosError` if the restores cannot
        be run."""

    def prepare(self, wanted: Wanted, folder: pathlib.Path) -> None:
        launch, saved = self.plan.launch(), self.plan.workload.checkpoint.folder
        if (self.base / "data").is_dir():
            (folder / "data").symlink_to(self.base / "data")
        for name in {*drill.written_folders(launch), saved}:
            (folder / name).mkdir(parents=True, exist_ok=True)
        wanted.make(folder / saved)

    def run_id(self, folder: pathlib.Path) -> str:
        """Returns a run id that no other exploration uses, because the end of a run kills all processes that have its
        id."""
        return f"{self.base.parent.name}-{folder.name}"

    def compared(self, found: Restart) -> Restart:
        """Returns the restart with the losses of only its first `steps` steps, so that restarts of any length are
        compared in the same way."""
        last = (found.step or 0) + self.steps
        return replace(found, losses={key: loss for key, loss in found.losses.items() if key[1] <= last})


class Restarts(Restores):
    words = "whole restarts of the job"
    steps = restarts.FOLLOWED_STEPS

    def __init__(
        self,
        plan: Plan,
        base: pathlib.Path,
        folder: pathlib.Path,
        stop: StopRequest,
        recorded: Recorded,
        backend: Backend,
    ) -> None:
        super().__init__(plan, base, folder, stop, recorded)
        self._backend = backend

    def do_all(self, next_one: Next) -> None:
        while not self.stop.asked and (wanted := next_one()) is not None:
            begin, first, again = time.monotonic(), self.folder / wanted.name, self.folder / f"{wanted.name}-again"
            try:
                found, end = self._restart(wanted, first, functools.partial(self._make, wanted))
                if end.failed and wanted.follow and not self.stop.asked:
                    found, end = self._restart(wanted, again, functools.partial(self._take_over, first))
            finally:
                for folder in (first, again):
                    restarts.remove_saves(self.plan, folder)
            if not self.stop.asked:
                wanted.heard(self.compared(found), end, time.monotonic() - begin)

    def _make(self, wanted: Wanted, folder: pathlib.Path) -> None:
        try:
            self.prepare(wanted, folder)
        except OSError as error:
            raise ChaosError(f"{folder}: the state cannot be made: {error.strerror}") from error
        drill.copy_ledgers(self.base, folder)

    def _take_over(self, first: pathlib.Path, folder: pathlib.Path) -> None:
        saved = self.plan.workload.checkpoint.folder
        self.prepare(Wanted("", lambda folder: None, lambda *_: None), folder)
        (first / saved).rename(folder / saved)
        drill.copy_ledgers(first, folder)

    def _restart(
        self, wanted: Wanted, folder: pathlib.Path, prepare: Callable[[pathlib.Path], None]
    ) -> tuple[Restart, End]:
        follow_ns = int(self.save_s_max * 1e9) if wanted.follow else 0
        limits = restarts.LIMITS
        limits = Abort(
            if_no_step_for_ns=limits.if_no_step_for_ns + follow_ns, wall_clock_ns=limits.wall_clock_ns + follow_ns
        )
        plan = self.plan.again(self.run_id(folder)).model_copy(update={"abort": limits})
        until = _UntilNextSave(self.stop, self.recorded.savers) if wanted.follow else None
        found, ended = restarts.restart(plan, folder, self._backend, self.stop, prepare, until, keep=wanted.follow)
        failed = ended.reason if ended.outcome == "failed" else ""
        return found, End(failed, wanted.follow, wanted.follow and ended.outcome == "aborted")


class _UntilNextSave(restarts.Until):
    def __init__(self, users: StopRequest, savers: int) -> None:
        super().__init__(users, self._enough)
        self._stepped = restarts.some_steps_after()
        self._savers, self._first = savers, math.inf
        self._saved: set[str] = set()

    def new_events(self, events: Heard) -> None:
        self._first = min([self._first, *(event["step"] for _, event in events if event["event"] == "step")])
        mine = ((header, event) for header, event in events if event["event"] == COMMITTED)
        self._saved |= {header["writer"] for header, event in mine if event["step"] >= self._first}

    def _enough(self, status: Status) -> bool:
        return self._stepped(status) and len(self._saved) >= self._savers


class ForkedRestores(Restores):
    words = "ranks forked on one node"
    steps = FORKED_STEPS

    def __init__(
        self,
        plan: Plan,
        base: pathlib.Path,
        folder: pathlib.Path,
        stop: StopRequest,
        recorded: Recorded,
        ranks: Ranks,
    ) -> None:
        super().__init__(plan, base, folder, stop, recorded)
        self._ranks = ranks
        self._orders = {
            "ranks": ranks.each,
            "observed": ranks.observed,
            "tellers": recorded.tellers,
            "savers": recorded.savers,
            "steps": FORKED_STEPS,
        }

    def order(self, wanted: Wanted) -> dict[str, Any]:
        attempts = ATTEMPTS if wanted.follow else self._ranks.attempts
        limit_s = FORKED_S_MAX + (self.save_s_max if wanted.follow else 0)
        return {"until_saved": wanted.follow, "attempts": attempts, "limit_s": limit_s}

    def do_all(self, next_one: Next) -> None:
        place = self.folder / "forked"
        place.mkdir()
        (place / "orders.json").write_text(json.dumps(self._orders))
        driver = _Driver(self, place, next_one)
        limits = Abort(if_no_step_for_ns=10**15, wall_clock_ns=10**15, if_not_started_for_ns=10**15)
        plan = self.plan.without_faults(self.run_id(place), 1).model_copy(update={"abort": limits})
        outcome = execute(plan, place, _OneProcess(self._ranks, place), driver, driver.end)
        untrusted_files.remove_tree(place, "states")
        if not driver.end.asked:
            raise ChaosError(f"the process that forks the ranks ended: {outcome.reason}")


class _OneProcess(LocalBackend):
    def __init__(self, ranks: Ranks, place: pathlib.Path) -> None:
        super().__init__()
        self._ranks, self._place = ranks, place

    def open(self, workload: Launch, run_dir: pathlib.Path, run_id: str) -> LocalCluster:
        program = importlib.resources.files("harness.explore.node_program") / "forked_restores.py"
        words = (self._ranks.python, str(program), str(self._place / "orders.json"), "{run_dir}/states")
        env = {**self._ranks.threads, **workload.env, OBSERVE_ENV: "off"}
        return super().open(replace(workload, command=words, control=None, nodes=1, env=env), run_dir, run_id)


class _Driver(Silent):
    def __init__(self, restores: ForkedRestores, place: pathlib.Path, next_one: Next) -> None:
        self.end = StopRequest()
        self._restores, self._place, self._next = restores, place, next_one
        self._numbers = itertools.count()
        self._current: tuple[Wanted, str, float] | None = None

    def status(self, status: Status) -> None:
        if self.end.asked:
            return
        if self._restores.stop.asked:
            self.end.ask(self._restores.stop.reason)
        elif self._current is None:
            self._begin()
        elif untrusted_files.status_of(self._place, f"{self._current[1]}/ended.json"):
            self._finish(*self._current)
        elif time.monotonic() - self._current[2] > (FORKED_S_MAX + self._restores.save_s_max) * ATTEMPTS + SILENT_S_MAX:
            raise ChaosError("the process that forks the ranks answers no more")

    def _begin(self) -> None:
        wanted = self._next()
        if wanted is None:
            self.end.ask("all was restored")
            return
        name = f"states/{next(self._numbers):05d}"
        folder = self._place / name
        try:
            folder.mkdir()
            self._restores.prepare(wanted, folder)
            drill.copy_ledgers(self._restores.base, folder)
            (folder / "go.new").write_text(json.dumps(self._restores.order(wanted)))
            (folder / "go.new").rename(folder / "go")
        except OSError as error:
            raise ChaosError(f"{folder}: the state {wanted.name} cannot be made: {error.strerror}") from error
        self._current = wanted, name, time.monotonic()

    def _finish(self, wanted: Wanted, name: str, begin: float) -> None:
        folder = self._place / name
        try:
            answer = json.loads(untrusted_files.read(self._place, f"{name}/ended.json", ENDED_BYTES_MAX))
            codes, enough = answer["codes"], answer["enough"]
            failed = [(rank, int(code)) for rank, code in enumerate(codes) if code]
        except (FaultError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ChaosError(f"the process that forks the ranks wrote no answer that can be read: {error}") from error
        ended = ""
        if failed and not enough:
            told = ((words_of(folder / f"rank{rank}.log"), rank, code) for rank, code in failed)
            words, rank, code = min(told, key=lambda each: each[0].telling)
            ended = f"rank {rank} ended with {code}: {words.text}"
        found = self._restores.compared(read_restart(folder))
        self._current = None
        untrusted_files.remove_tree(self._place, name)
        end = End(ended, wanted.follow, wanted.follow and not enough and None in codes and not failed)
        wanted.heard(found, end, time.monotonic() - begin)


@dataclass(frozen=True)
class Ranks:
    """The commands and environment variables to start a job's ranks on one node by forking. `each` holds each rank's
    command without the Python interpreter, and the rank's environment variables. `threads` holds the launcher's
    environment variables that set the number of threads, on which the last bits of losses depend."""

    python: str
    each: list[dict[str, Any]]
    attempts: int
    observed: bool
    threads: Mapping[str, str]


def ranks_of(plan: Plan) -> Ranks | str:
    """Returns what is needed to start the job's ranks by forking, or the reason why forking is impossible."""
    trainer, launch = plan.workload.trainer, plan.launch()
    late, command = _split(launch.command)
    if isinstance(trainer, ReferenceTrainer):
        python, words = "{python}", ("-m", "reference_trainer.train", *command[command.index("--") + 1 :])
    elif isinstance(trainer, (TorchrunTrainer, ModuleTrainer)):
        if isinstance(trainer, ModuleTrainer) and plan.workload.ranks_per_node > 1:
            return "its module starts the ranks of a node itself"
        script = ("-m", trainer.module, *trainer.args) if isinstance(trainer, ModuleTrainer) else trainer.script()
        python, words = command[0], command[len(command) - len(script) :]
    elif isinstance(trainer, CommandTrainer) and plan.workload.world_size == 1:
        python, words = command[0], tuple(itertools.dropwhile(_is_flag, command[1:]))
        if "python" not in os.path.basename(python) or not words or words[0] == "-c":
            return "its command is no Python script"
    else:
        return "its launcher is not known"
    observed = not isinstance(trainer, ReferenceTrainer) and not _tells_itself(trainer)
    if observed and launch.env[OBSERVE_ENV] != "auto":
        return "its events are not told by its processes"
    if "s3" in plan.workload.checkpoint.store:
        return "its saves are in an object store"
    started_again = isinstance(trainer, (ReferenceTrainer, TorchrunTrainer))
    each = [_rank(plan, rank, late, words) for rank in range(plan.workload.world_size)]
    one_thread = started_again and (isinstance(trainer, ReferenceTrainer) or plan.workload.ranks_per_node > 1)
    return Ranks(
        python, each, ATTEMPTS if started_again else 1, observed, {"OMP_NUM_THREADS": "1"} if one_thread else {}
    )


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word not in ("-m", "-c")


def _tells_itself(trainer: CommandTrainer | ScriptTrainer | Any) -> bool:
    return any(_TELLS.search(path.read_bytes()) for path in trainer.files() if path.suffix == ".py")


def _split(command: tuple[str, ...]) -> tuple[Mapping[str, str], tuple[str, ...]]:
    if command[0] != "env":
        return {}, command
    count = sum(1 for _ in itertools.takewhile(_VARIABLE.match, command[1:]))
    return dict(word.partition("=")[::2] for word in command[1 : count + 1]), command[count + 1 :]


def _rank(plan: Plan, rank: int, late: Mapping[str, str], words: tuple[str, ...]) -> dict[str, Any]:
    work = plan.workload
    node, local = divmod(rank, work.ranks_per_node)
    here = {"address": "127.0.0.1", "control": "127.0.0.1", "head": "127.0.0.1", "run_dir": _RUN_DIR}
    here |= {"python": sys.executable}
    here |= {"index": str(node), "incarnation": "1"}
    env = dict(zip(late, fill_placeholders(list(late.values()), here), strict=True)) if late else {}
    if work.world_size > 1 or not isinstance(work.trainer, CommandTrainer):
        numbers = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": work.world_size, "GROUP_RANK": node}
        numbers |= {"LOCAL_WORLD_SIZE": work.ranks_per_node, "ROLE_RANK": rank, "ROLE_WORLD_SIZE": work.world_size}
        numbers |= {"NODE_RANK": node, "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}
        env |= {name: str(number) for name, number in numbers.items()}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _PORT, "TORCHELASTIC_RUN_ID": "explore"}
    env |= {"CHAOS_EVENTS": f"{_RUN_DIR}/events/node0", "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
    return {"env": env, "words": list(fill_placeholders(words, here))}
