"""Runs the trainer's own restore on one state of the checkpoint folder after the other, in two ways.

`Restarts` restarts the whole job on each state. `ForkedRestores` has one node with a process of ours, which forks the
ranks for each state: many restores per second. It works for trainers whose ranks are one Python script each. Ranks that
do not log events themselves are observed, as in any run.
"""

from __future__ import annotations

import abc
import importlib.resources
import itertools
import json
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
from harness.log import untrusted_files
from harness.node.boot import OBSERVE_ENV
from harness.plan.run_plan import Abort, Plan
from harness.run import drill
from harness.run.job import execute
from harness.run.last_words import words_of
from harness.run.observers import Silent, Status
from harness.run.stop import StopRequest
from harness.trainers.command import CommandTrainer
from harness.trainers.module import ModuleTrainer
from harness.trainers.reference import ReferenceTrainer
from harness.trainers.shared.scripted import ScriptTrainer
from harness.trainers.torchrun import TorchrunTrainer

FORKED_S_MAX = 45.0  # of the restore on one state
SILENT_S_MAX = 120.0  # of our process on the node, beyond the limit of a restore
FORKED_STEPS = 2  # after a restore: the first one shows wrong weights, the second one a wrong optimizer
ATTEMPTS = 2  # of ranks that a launcher starts again when they fail
ENDED_BYTES_MAX = 2**16
_TELLS = re.compile(rb"harness\.(?:events|node\.emitter)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_RUN_DIR, _PORT = "@RUN_DIR@", "@PORT@"


@dataclass(frozen=True)
class Wanted:
    """A restore to try: from which state of the checkpoint folder. `make` writes the state of the checkpoint folder
    into an empty folder. `heard` gets the restart, how it failed (or an empty text), and its seconds."""

    name: str
    make: Callable[[pathlib.Path], None]
    heard: Callable[[Restart, str, float], None]


Next = Callable[[], Wanted | None]  # the next restore, if any


class Restores(abc.ABC):
    """One way to make a trainer restore from many states of its checkpoint folder. `base` is the folder of the recorded
    run."""

    words: str  # which form this is, for people

    def __init__(self, plan: Plan, base: pathlib.Path, folder: pathlib.Path, stop: StopRequest) -> None:
        self.plan, self.base, self.folder, self.stop = plan, base, folder, stop

    @abc.abstractmethod
    def do_all(self, next_one: Next) -> None:
        """Tries one restore after the other. Raises `ChaosError` if there are no nodes."""

    def prepare(self, wanted: Wanted, folder: pathlib.Path) -> None:
        launch, saved = self.plan.launch(), self.plan.workload.checkpoint.folder
        if (self.base / "data").is_dir():
            (folder / "data").symlink_to(self.base / "data")
        for name in {*drill.written_folders(launch), saved}:
            (folder / name).mkdir(parents=True, exist_ok=True)
        wanted.make(folder / saved)


class Restarts(Restores):
    words = "whole restarts of the job"

    def __init__(
        self, plan: Plan, base: pathlib.Path, folder: pathlib.Path, stop: StopRequest, backend: Backend
    ) -> None:
        super().__init__(plan.model_copy(update={"abort": restarts.LIMITS}), base, folder, stop)
        self._backend = backend

    def do_all(self, next_one: Next) -> None:
        while not self.stop.asked and (wanted := next_one()) is not None:
            begin, one = time.monotonic(), wanted

            def prepare(folder: pathlib.Path, wanted: Wanted = one) -> None:
                try:
                    self.prepare(wanted, folder)
                except OSError as error:
                    raise ChaosError(f"{folder}: the state cannot be made: {error.strerror}") from error
                drill.copy_ledgers(self.base, folder)

            plan = self.plan.again(f"{self.folder.name}-{wanted.name}")
            found, ended = restarts.restart(plan, self.folder / wanted.name, self._backend, self.stop, prepare)
            if not self.stop.asked:
                failed = ended.reason if ended.outcome == "failed" else ""
                wanted.heard(found, failed, time.monotonic() - begin)


class ForkedRestores(Restores):
    words = "ranks forked on one node"

    def __init__(
        self, plan: Plan, base: pathlib.Path, folder: pathlib.Path, stop: StopRequest, tellers: int, ranks: Ranks
    ) -> None:
        super().__init__(plan, base, folder, stop)
        self._ranks = ranks
        self._orders = {
            "ranks": ranks.each,
            "attempts": ranks.attempts,
            "observed": ranks.observed,
            "tellers": tellers,
            "steps": FORKED_STEPS,
            "limit_s": FORKED_S_MAX,
        }

    def do_all(self, next_one: Next) -> None:
        place = self.folder / "forked"
        place.mkdir()
        (place / "orders.json").write_text(json.dumps(self._orders))
        driver = _Driver(self, place, next_one)
        limits = Abort(if_no_step_for_ns=10**15, wall_clock_ns=10**15, if_not_started_for_ns=10**15)
        plan = self.plan.without_faults(f"{self.folder.name}-forked", 1).model_copy(update={"abort": limits})
        outcome = execute(plan, place, _OneProcess(self._ranks, place), driver, driver.end)
        untrusted_files.remove_tree(place, "states")
        if not driver.end.asked:
            raise ChaosError(f"the process that forks the ranks ended: {outcome.reason}")


class _OneProcess(LocalBackend):
    """The local backend, made to run our process, which restores, in the place of the job."""

    def __init__(self, ranks: Ranks, place: pathlib.Path) -> None:
        super().__init__()
        self._ranks, self._place = ranks, place

    def open(self, workload: Launch, run_dir: pathlib.Path, run_id: str) -> LocalCluster:
        program = importlib.resources.files("harness.explore.node_program") / "forked_restores.py"
        words = (self._ranks.python, str(program), str(self._place / "orders.json"), "{run_dir}/states")
        env = {**self._ranks.threads, **workload.env, OBSERVE_ENV: "off"}
        return super().open(replace(workload, command=words, control=None, nodes=1, env=env), run_dir, run_id)


class _Driver(Silent):
    """Gives our restoring process one state of the checkpoint folder after the other."""

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
        elif time.monotonic() - self._current[2] > FORKED_S_MAX * ATTEMPTS + SILENT_S_MAX:
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
            (folder / "go").touch()
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
        found = read_restart(folder)
        self._current = None
        untrusted_files.remove_tree(self._place, name)
        wanted.heard(found, ended, time.monotonic() - begin)


@dataclass(frozen=True)
class Ranks:
    """The ranks of a job on one node, as processes that can be forked. `each` has the words after the interpreter and
    the variables of each rank. `threads` are the launcher's variables that set the number of threads, and so the last
    bits of losses."""

    python: str
    each: list[dict[str, Any]]
    attempts: int
    observed: bool
    threads: Mapping[str, str]


def ranks_of(plan: Plan) -> Ranks | str:
    """Returns the job's ranks as processes that can be forked, or the reason why they cannot be."""
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
    """Splits `env NAME=VALUE …` off a command."""
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
