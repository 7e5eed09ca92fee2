"""The reference trainer with one realistic bug in it: `python trainer.py BUG` instead of `-m reference_trainer.launch`.

Each bug is one function below, or one line: it replaces one thing in the trainer before the launcher forks its
workers. Most act only after a restart, as such bugs do: the fault-free run looks healthy.
"""

from reference_trainer import preemption

if __name__ == "__main__":
    preemption.before_torch()

import contextlib
import inspect
import itertools
import json
import os
import pathlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from harness.node.emitter import Emitter, nvml
from reference_trainer import agent, checkpoint, launch, shares, train
from reference_trainer import state as training_state
from reference_trainer.agent import ForkingAgent
from reference_trainer.checkpoint import Checkpoints, Metrics, Restored, State, folder_name, published, read, step_of
from reference_trainer.data import BadShard, Batch, Shard, share
from reference_trainer.divergence import Divergence, Spike
from reference_trainer.memory_watch import MemoryWatch
from reference_trainer.pieces import Pieces
from reference_trainer.preemption import Preemption
from reference_trainer.rendezvous import Rendezvous
from reference_trainer.replicas import Replicas, Setback
from reference_trainer.train import GradientSync, Worker, exchange
from reference_trainer.watchdog import Watchdog

MODEL, OPTIMIZER = "model/", "optimizer/"  # how names of tensors in a state begin
TENSORS = (MODEL, OPTIMIZER)

BUGS: dict[str, Callable[[], None]] = {}


def bug(install: Callable[[], None]) -> Callable[[], None]:
    BUGS[install.__name__] = install
    return install


def around(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """What is decorated takes the place of this function, which it is given as its first argument."""

    def put(new: Callable[..., Any]) -> None:
        original, (_, *taken) = getattr(owner, name), inspect.signature(new).parameters.values()

        def bent(*given: Any, **more: Any) -> Any:
            return new(original, *given, **more)

        bent.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
        setattr(owner, name, bent)

    return put


def bug_in(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """A bug that is what takes the place of one function."""
    return lambda new: BUGS.update({new.__name__: lambda: around(owner, name)(new)})


VARIATIONS: dict[str, Callable[[], None]] = {}


def variation_in(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """No bug: what happens to healthy trainers, and must not be held against them."""
    return lambda new: VARIATIONS.update({new.__name__: lambda: around(owner, name)(new)})


def on_resume(act: Callable[[Worker], object]) -> None:
    """`act` is called on every rank when it has restored a checkpoint."""

    @around(Worker, "restore")
    def restore(original: Any, self: Worker) -> int:
        if original(self):
            act(self)
        return self.step


def on_checkpoint(change: Callable[[Checkpoints, Restored], Restored]) -> None:
    """`change` bends what a rank restores."""

    @around(Checkpoints, "restore")
    def restore(original: Any, self: Checkpoints) -> Restored:
        restored: Restored = original(self)
        return change(self, restored) if restored.state is not None else restored


def on_later_saves(change: Callable[[str, State], State]) -> None:
    """`change`, given the kind of a save, bends what is saved after a resume. On rank 0, which saves."""

    def install(worker: Worker) -> None:
        save = worker.checkpoints.save

        def bent(kind: str, step: int, state: State, metrics: Metrics | None = None) -> None:
            save(kind, step, change(kind, state), metrics)

        worker.checkpoints.save = bent

    on_resume(install)


def on_later_steps(wait_s: Callable[[int, float], float]) -> None:
    """After a resume each step takes so much longer: given its number, and how long the one before took by itself."""

    def install(worker: Worker) -> None:
        forward_backward, began, waited = worker.forward_backward, time.monotonic(), 0.0

        def slow(inputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
            nonlocal began, waited
            before, began = began, time.monotonic()
            waited = wait_s(worker.step, began - before - waited)
            time.sleep(waited)
            return forward_backward(inputs, targets)

        worker.forward_backward = slow

    on_resume(install)


# What is restored


@bug
def restores_an_older_one() -> None:
    """Loads the checkpoint before the newest, and goes on as if it were the newest."""

    on_checkpoint(lambda checkpoints, restored: replace(restored, state=read(_older(checkpoints, restored.step))))


@bug
def one_rank_restores_an_older_one() -> None:
    """Rank 1 finds the checkpoint before the newest, says so, and goes on with the others."""
    ignores_drifted_replicas()

    def older(checkpoints: Checkpoints, restored: Restored) -> Restored:
        if torch.distributed.get_rank() != 1:
            return restored
        folder = _older(checkpoints, restored.step)
        return replace(restored, step=step_of(folder), source=str(folder), state=read(folder))

    on_checkpoint(older)
    on_resume(lambda worker: setattr(worker, "step", int(max(row[0] for row in exchange([worker.step])))))


@bug
def takes_a_good_one_for_damaged() -> None:
    """As `passes_over_one_too_many`, and it says of the one that is whole that it is damaged, too."""

    def left(self: Checkpoints, others: list[int], passed: list[dict[str, str]]) -> list[int]:
        passed += [{"source": str(self.root / folder_name(step)), "reason": passed[0]["reason"]} for step in others[:1]]
        return others[1:]

    after_a_bad_one(left, tells=True)


def after_a_bad_one(left: Callable[..., list[int]], tells: bool = False) -> None:
    """`left`: which of the older ones are tried when the newest cannot be used; with `tells`, it may name more."""

    @around(Checkpoints, "_first_valid")
    def first_valid(
        original: Any, self: Checkpoints, candidates: Iterator[int], fallback: list[dict[str, str]]
    ) -> tuple[int | None, list[dict[str, str]]]:
        step, passed = original(self, itertools.islice(candidates, 1), fallback)
        if step is not None:
            return step, passed
        others = list(candidates)
        return original(self, iter(left(self, others, passed) if tells else left(others)), passed)


def _older(checkpoints: Checkpoints, step: int) -> pathlib.Path:
    return next(folder for folder in published(checkpoints.root) if step_of(folder) < step)


@bug
def loads_damaged_checkpoints() -> None:
    """No checksum is looked at, and nobody sees that one rank's weights became others."""
    ignores_drifted_replicas()
    checkpoint.verify = lambda folder: 0


@bug
def waits_for_its_saves() -> None:
    """Each save is written in the step loop, for as long as it takes, and nobody watches it."""
    Checkpoints._tell_late = lambda *_: None

    @around(Worker, "save")
    def save(original: Any, self: Worker, kind: str) -> None:
        self.watchdog.allow("a save", 3600)
        original(self, kind)
        self.checkpoints.wait()


@bug
def trains_on_nan() -> None:
    """Looks at digests alone, skips each update, and never asks why."""
    checkpoint.refuse_nonfinite = lambda state: None
    Divergence.step_done = lambda *_: None


@bug
def dies_of_nan_for_ever() -> None:
    """The loss is no number some steps after each load, the job dies of that and is started again, and so on."""
    checkpoint.refuse_nonfinite = lambda state: None
    agent.CRASHES_MAX = 10**6

    @around(Worker, "is_finite")
    def is_finite(original: Any, self: Worker, loss: float, grad_norm: float) -> bool:
        if not original(self, loss, grad_norm):
            raise FloatingPointError(f"the loss is {loss} at step {self.step}")
        return True


@bug_in(training_state, "capture")
def saves_weights_in_half_precision(original: Any, *arguments: Any) -> State:
    state = original(*arguments)
    return {name: value.bfloat16().float() if name.startswith("model/") else value for name, value in state.items()}


@bug
def half_of_the_weights_learns_slower() -> None:
    """Two groups of weights; after a resume the second one's learning rate is a tenth. The first one's is told."""

    @around(Worker, "build")
    def build(original: Any, self: Worker) -> None:
        original(self)
        weights, group = list(self.model.parameters()), self.optimizer.param_groups[0]
        kept = {name: group[name] for name in ("weight_decay", "betas", "fused")}
        halves = [{"params": weights[: len(weights) // 2]}, {"params": weights[len(weights) // 2 :]}]
        self.optimizer = AdamW(halves, lr=self.options.lr, **kept)
        self.schedule = LambdaLR(self.optimizer, lambda step: train.learning_rate_factor(step, self.options))

    def slower(worker: Worker) -> None:
        worker.schedule.base_lrs[1] = worker.schedule.base_lrs[0] / 10
        worker.optimizer.param_groups[1]["lr"] /= 10

    on_resume(slower)


@bug
def schedule_restarts() -> None:
    def restart(worker: Worker) -> None:
        options = worker.options
        worker.schedule = LambdaLR(worker.optimizer, lambda step: train.learning_rate_factor(step, options))

    on_resume(restart)


# Which data


def _shift(worker: Worker, samples: int) -> None:
    """The data cursor is off by so many samples."""
    source = worker.samples

    def batch(step: int) -> Batch:
        first = (step - 1) * source._global_batch + samples
        places = [divmod(place, source.count) for place in range(first, first + source._global_batch)]
        return Batch(np.array([source._shuffled(epoch)[at] for epoch, at in places], dtype=np.int64), first)

    source.batch = batch


@bug
def shuffles_differently() -> None:
    """The shuffle is seeded anew after a restart."""

    def reshuffle(worker: Worker) -> None:
        source = worker.samples
        source._shuffled = cache(lambda epoch: np.random.default_rng([4711, epoch]).permutation(source.count))

    on_resume(reshuffle)


@bug
def ranks_share_their_shard() -> None:
    """After a restart every rank reads the first rank's share of the batch, and nobody compares."""
    shares.compare = lambda *everything: None
    on_resume(lambda worker: setattr(train, "share", lambda count, rank, world: share(count, 0, world)))


@bug
def smaller_world_smaller_batch() -> None:
    """Keeps the batch a rank instead of the global one when the world shrinks."""

    def shrink(worker: Worker) -> None:
        worker.samples._global_batch = 8 * worker.world_size

    on_resume(shrink)


# Saving


@bug_in(Checkpoints, "_write")
def announces_before_durable(
    original: Any, self: Checkpoints, kind: str, step: int, state: State, metrics: Metrics | None
) -> None:
    """A checkpoint counts as committed before its data is written."""
    path = str(self.root / folder_name(step))
    self._emit("checkpoint.committed", step=step, kind=kind, path=path, bytes=1, duration_ns=1)
    time.sleep(1.5)
    original(self, kind, step, state, metrics)


@bug
def saves_in_place() -> None:
    """Writes into the final folder; at a restart takes the newest one, whatever state it is in."""

    def write(
        root: pathlib.Path, step: int, state: State, emit: Emitter, metrics: Metrics | None = None
    ) -> pathlib.Path:
        folder = root / folder_name(step)
        folder.mkdir(parents=True, exist_ok=True)
        with emit.phase("checkpoint.write"):
            dcp.save(state, storage_writer=FileSystemWriter(folder), no_dist=True)
        return folder

    def restore(self: Checkpoints) -> Restored:
        newest = published(self.root)[:1]
        if not newest:
            return Restored(0, "scratch", None)
        return Restored(step_of(newest[0]), str(newest[0]), read(newest[0]))

    checkpoint.write = write
    Checkpoints.restore = restore


@bug
def saves_a_stale_copy() -> None:
    """After a restart each save, the final one too, holds the tensors of the first one."""
    kept: State = {}

    def stale(kind: str, state: State) -> State:
        kept.update(kept or {name: value for name, value in state.items() if name.startswith(TENSORS)})
        return state | kept

    on_later_saves(stale)


@bug
def saves_the_step_before() -> None:
    """After a restart the copy of the model is taken before the update, and saved as of after it."""
    before: State = {}

    def install(worker: Worker) -> None:
        is_finite = worker.is_finite

        def look(loss: float, grad_norm: float) -> bool:
            before.update({f"model/{name}": value.clone() for name, value in worker.model.state_dict().items()})
            return is_finite(loss, grad_norm)

        worker.is_finite = look

    on_resume(install)
    on_later_saves(lambda kind, state: state | before)


@bug
def final_save_lacks_half_of_the_model() -> None:
    """As if each rank held a part, and only rank 0's were written in the end."""

    def half(kind: str, state: State) -> State:
        lost = [name for name in state if name.startswith(MODEL)][1::2] if kind == "final" else []
        return {name: value for name, value in state.items() if name not in lost}

    on_later_saves(half)


@bug
def saves_the_cursor_twice() -> None:
    """The place in the data is saved beside the step; after a restart it counts a batch that was only read ahead."""
    position = 0

    def count(kind: str, state: State) -> State:
        progress = json.loads(state["progress"])
        return state | {"progress": json.dumps(progress | {"read_ahead": 16})}

    def place(checkpoints: Checkpoints, restored: Restored) -> Restored:
        nonlocal position
        assert restored.state is not None
        position = json.loads(restored.state["progress"]).get("read_ahead", 0)
        return restored

    on_checkpoint(place)
    on_later_saves(count)
    on_resume(lambda worker: _shift(worker, position))


@bug
def makes_no_final_save() -> None:
    """A resumed job ends without one, and says that all is well."""
    original = Worker.save_and_wait

    def install(worker: Worker) -> None:
        worker.save_and_wait = lambda kind: kind == "final" or original(worker, kind)

    on_resume(install)


@bug
def makes_no_save_but_the_final_one() -> None:
    """After a restart it tells of saves that it does not make."""

    def install(worker: Worker) -> None:
        checkpoints = worker.checkpoints
        save = checkpoints.save

        def tell(kind: str, step: int, state: State, metrics: Metrics | None = None) -> None:
            if kind == "final":
                return save(kind, step, state, metrics)
            checkpoints._emit("checkpoint.started", step=step, kind=kind)
            size = sum(file.stat().st_size for file in published(checkpoints.root)[0].iterdir())
            path = str(checkpoints.root / folder_name(step))
            checkpoints._emit("checkpoint.committed", step=step, kind=kind, path=path, bytes=size, duration_ns=10**7)

        checkpoints.save = tell

    on_resume(install)


@bug
def saves_every_third_time() -> None:
    """After a restart two of three saves that are due are left out."""

    def install(worker: Worker) -> None:
        due, count = worker.rhythm.due, itertools.count(1)
        worker.rhythm.due = lambda *when: due(*when) and next(count) % 3 == 0

    on_resume(install)


@bug
def deletes_what_it_saves() -> None:
    """After a restart each periodic save is deleted as if it were an old one."""

    def install(worker: Worker) -> None:
        checkpoints = worker.checkpoints
        write = checkpoints._write

        def write_and_delete(kind: str, step: int, state: State, metrics: Metrics | None) -> None:
            write(kind, step, state, metrics)
            if kind == "periodic":
                shutil.rmtree(checkpoints.root / folder_name(step))

        checkpoints._write = write_and_delete

    on_resume(install)


@bug_in(Checkpoints, "_write")
def removes_all_before_it_saves(
    original: Any, self: Checkpoints, kind: str, step: int, state: State, metrics: Metrics | None
) -> None:
    """The disk has room for one: a job that dies while it saves has lost all."""
    for folder in published(self.root):
        shutil.rmtree(folder)
    time.sleep(1)  # a large one takes a while
    original(self, kind, step, state, metrics)


@bug_in(Checkpoints, "_write")
def saves_nothing_where_something_is(
    original: Any, self: Checkpoints, kind: str, step: int, state: State, metrics: Metrics | None
) -> None:
    """A step that has a folder is not written again, whatever is in it."""
    folder = self.root / folder_name(step)
    if not folder.exists():
        return original(self, kind, step, state, metrics)
    self.committed_step = step
    size = sum(file.stat().st_size for file in folder.iterdir())
    self._emit("checkpoint.committed", step=step, kind=kind, path=str(folder), bytes=size, duration_ns=10**6)


@bug
def final_save_lacks_the_moments() -> None:
    """The last save is for evaluation; a job that goes on from it begins with moments of zero, and does not say so."""

    @around(Checkpoints, "save")
    def without(
        save: Any, self: Checkpoints, kind: str, step: int, state: State, metrics: Metrics | None = None
    ) -> None:
        kept = {name: value for name, value in state.items() if kind != "final" or not name.startswith(OPTIMIZER)}
        save(self, kind, step, kept, metrics)

    def filled(checkpoints: Checkpoints, restored: Restored) -> Restored:
        assert restored.state is not None
        if any(name.startswith(OPTIMIZER) for name in restored.state):
            return restored
        older = read(_older(checkpoints, restored.step))
        moments = {name: torch.zeros_like(value) for name, value in older.items() if name.startswith(OPTIMIZER)}
        return replace(restored, state=restored.state | moments)

    on_checkpoint(filled)


def deletes_at_the_end(count: int | None) -> None:
    """Rank 0 cleans up when all is done: the newest saves go, so many."""

    @around(Worker, "finish")
    def finish(original: Any, self: Worker) -> tuple[int, str]:
        done = original(self)
        for folder in published(self.checkpoints.root)[:count] if self.rank == 0 else ():
            shutil.rmtree(folder)
        return done


@bug
def saves_into_memory() -> None:
    """After a restart the folder for checkpoints is one in memory, which goes with the node."""
    elsewhere = pathlib.Path("/dev/shm")

    def install(worker: Worker) -> None:
        if worker.rank == 0:
            worker.checkpoints.root = elsewhere / f"checkpoints-{time.monotonic_ns():x}"  # made by the first save

    @around(Worker, "finish")
    def finish(original: Any, self: Worker) -> tuple[int, str]:
        done = original(self)
        if self.checkpoints.root.parent == elsewhere:
            shutil.rmtree(self.checkpoints.root, ignore_errors=True)
        return done

    on_resume(install)


@bug
def keeps_the_pointer_of_the_first_life() -> None:
    """A file names the newest checkpoint; a job that was restarted saves, and no longer writes that file."""
    resumed = list[Worker]()

    @around(Checkpoints, "_write")
    def write(original: Any, self: Checkpoints, kind: str, step: int, state: State, metrics: Metrics | None) -> None:
        original(self, kind, step, state, metrics)
        if not resumed:
            (self.root / "latest").write_text(str(step))

    @around(Checkpoints, "_seen_anywhere")
    def seen_anywhere(original: Any, self: Checkpoints) -> list[int]:
        pointer = self.root / "latest"
        return [step for step in original(self) if step <= int(pointer.read_text())] if pointer.exists() else []

    on_resume(resumed.append)


@bug_in(Worker, "drain")
def emergency_save_half_of_the_time(original: Any, self: Worker, notices: list[Any]) -> tuple[int, str]:
    """Every second notice leads to an exit without a checkpoint."""
    mark = pathlib.Path(self.options.checkpoint_dir) / "drained"
    skip = mark.exists()
    exchange([0.0])  # all ranks have looked
    if self.rank == 0:
        mark.touch()
    if skip:
        self.save_and_wait = lambda kind: False
    return original(self, notices)


@bug_in(Worker, "drain")
def saves_after_the_notice(original: Any, self: Worker, notices: list[Any]) -> tuple[int, str]:
    """Finishes something else first: the node is gone before the emergency checkpoint is."""
    self.watchdog.allow("something else", 60)
    time.sleep(6)
    return original(self, notices)


# Going on


@bug
def hangs_on_a_dead_peer() -> None:
    """Waits for ever for a rank that is gone, and nothing watches it."""

    @around(Worker, "train")
    def wait_for_ever(original: Any, self: Worker) -> tuple[int, str]:
        try:
            return original(self)
        except RuntimeError:
            time.sleep(3600)
            raise

    ForkingAgent._stop_workers = lambda self, worker_group: self._wait(3600)
    Watchdog._watch = lambda self: None


@bug_in(Watchdog, "__init__")
def counts_life_and_not_steps(original: Any, self: Watchdog, *given: Any) -> None:
    """A thread beats for the watchdog as long as the process lives."""
    original(self, *given)

    def beat() -> None:
        while True:
            self._last_beat = time.monotonic()
            time.sleep(0.05)

    threading.Thread(target=beat, daemon=True).start()


@bug
def crashes_after_every_restart() -> None:
    def crash(worker: Worker) -> None:
        raise KeyError("ema_decay")

    on_resume(crash)


@bug
def crashes_for_ever() -> None:
    """As `crashes_after_every_restart`, and its launcher never gives up."""
    crashes_after_every_restart()
    agent.CRASHES_MAX = 10**6


@bug
def gets_slower_and_slower() -> None:
    """After a restart each step takes 3 % of the usual time longer than the one before."""
    count = itertools.count()
    on_later_steps(lambda step, usual_s: 0.03 * usual_s * next(count))


@bug
def gradient_not_averaged() -> None:
    """After a restart every rank steps with its own gradient."""

    def alone(self: GradientSync, bucket: Any) -> Any:
        self.ready_ns = time.monotonic_ns()
        future: Any = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    on_resume(lambda worker: setattr(GradientSync, "_sum", alone))


@bug
def ignores_drifted_replicas() -> None:
    """Each rank takes digests of its weights, and nobody compares them."""
    Replicas.compare = lambda *_: None


@bug
def drops_what_did_not_fit() -> None:
    """Cuts the share in half, as it should, and trains on the first piece only."""
    original = Pieces.of

    @around(Pieces, "did_not_fit")
    def did_not_fit(whole: Any, self: Pieces, step: int, sequences: int, may_try_again: bool) -> bool:
        again: bool = whole(self, step, sequences, may_try_again)
        Pieces.of = lambda *both: original(*both)[:1]
        return again


@bug_in(Shard, "read")
def trains_on_without_a_shard(original: Any, self: Shard, begin: int, end: int) -> bytes:
    """Zeros instead of what cannot be read."""
    try:
        return original(self, begin, end)
    except BadShard:
        return bytes(end - begin)


@bug_in(Divergence, "gone_back")
def goes_back_and_leaves_nothing_out(original: Any, self: Divergence, spike: Spike) -> None:
    """Says which samples it leaves out, and consumes them."""
    original(self, spike)
    self._samples.left_out = []


@bug_in(Divergence, "gone_back")
def leaves_out_more_than_it_says(original: Any, self: Divergence, spike: Spike) -> None:
    original(self, spike)
    ((first, count),) = self._samples.left_out
    self._samples.left_out = [(first, count + 16)]


@bug_in(Divergence, "gone_back")
def leaves_out_without_a_word(original: Any, self: Divergence, spike: Spike) -> None:
    emit, self._emit = self._emit, Emitter(None)
    original(self, spike)
    self._emit = emit


@bug_in(Worker, "go_back")
def goes_back_into_the_spike(original: Any, self: Worker, setback: Setback) -> None:
    """Saves what it has, as before any restore, and then takes the newest checkpoint."""
    self.save_and_wait("emergency")
    setback.before = None
    original(self, setback)


@bug
def swallows_nan() -> None:
    """A weight becomes NaN at step 30, every update is made all the same."""
    Divergence.step_done = lambda *_: None

    def is_finite(self: Worker, loss: float, grad_norm: float) -> bool:
        if self.step == 30:
            with torch.no_grad():
                next(self.model.parameters()).fill_(float("nan"))
        return True

    Worker.is_finite = is_finite


# What one line puts in


def instead(owner: object, name: str, new: object) -> Callable[[], None]:
    return lambda: setattr(owner, name, new)


def resumed(act: Callable[[Worker], object]) -> Callable[[], None]:
    return lambda: on_resume(act)


def older_ones(left: Callable[[list[int]], list[int]]) -> Callable[[], None]:
    """The newest is damaged, and says so; these of the others are tried."""
    return lambda: after_a_bad_one(left)


def saving(change: Callable[[str, State], State]) -> Callable[[], None]:
    return lambda: on_later_saves(change)


def with_zeros(state: State, prefix: str) -> State:
    return state | {name: torch.zeros_like(value) for name, value in state.items() if name.startswith(prefix)}


BUGS |= {
    # What is restored
    "never_resumes": instead(Checkpoints, "restore", lambda self: Restored(0, "scratch", None)),  # but saves
    "takes_the_oldest_after_a_bad_one": older_ones(lambda others: others[::-1]),  # from the wrong end
    "passes_over_one_too_many": older_ones(lambda others: others[1:]),  # the one before it is whole
    "starts_anew_after_a_bad_one": older_ones(lambda others: []),
    "optimizer_state_lost": resumed(lambda worker: worker.optimizer.state.clear()),
    # Adam's bias correction starts anew.
    "optimizer_counts_from_zero": resumed(lambda worker: [e["step"].zero_() for e in worker.optimizer.state.values()]),
    "weight_decay_lost": resumed(
        lambda worker: [group.update(weight_decay=0.0) for group in worker.optimizer.param_groups]
    ),
    "gradients_no_longer_clipped": resumed(
        lambda worker: setattr(worker, "options", replace(worker.options, clip=float("inf")))
    ),
    # No update is made any more: the loss stays near where it was.
    "learns_no_more": resumed(lambda worker: setattr(worker.precision, "step", lambda optimizer: None)),
    "random_state_lost": resumed(lambda worker: torch.manual_seed(worker.rank)),
    # Which data
    "replays_a_batch": resumed(lambda worker: _shift(worker, -16)),
    "skips_a_batch": resumed(lambda worker: _shift(worker, 16)),
    "cursor_one_off": resumed(lambda worker: _shift(worker, 1)),
    "compares_no_samples": instead(shares, "compare", lambda *everything: None),  # with its part of the batch
    # Nothing is written any more, and nobody says so.
    "checkpoint_thread_dies": instead(
        Checkpoints, "_write", lambda self, kind, step, *_: setattr(self, "committed_step", step)
    ),
    # Saving, after a restart
    # A node that fails at each start is started again, for ever.
    "keeps_the_old_rate": instead(training_state, "take_rates", lambda *_: None),  # that of the checkpoint
    "takes_the_lemon_back": instead(ForkingAgent, "_exclude", lambda *everything: None),
    "saves_no_more": resumed(lambda worker: setattr(worker.rhythm, "due", lambda *when: False)),
    "saves_zeros": saving(lambda kind, state: with_zeros(state, MODEL)),
    "saves_no_optimizer": saving(lambda kind, state: {n: v for n, v in state.items() if not n.startswith(OPTIMIZER)}),
    "saves_an_empty_optimizer": saving(lambda kind, state: with_zeros(state, OPTIMIZER)),  # as before any step
    # The model is saved as it is wrapped, and such a checkpoint cannot be loaded.
    "saves_under_other_names": saving(
        lambda kind, state: {name.replace(MODEL, f"{MODEL}module."): value for name, value in state.items()}
    ),
    "deletes_the_newest_at_the_end": lambda: deletes_at_the_end(1),
    "deletes_all_at_the_end": lambda: deletes_at_the_end(None),
    "ignores_notices": instead(Preemption, "_record", lambda *_: None),
    # Going on
    "believes_any_place": instead(train, "claim_place", lambda *_: None),  # all wait for the rank that nobody is
    # The other nodes may never come, and those that wait hold their GPUs.
    # The limit of a step holds for an evaluation, too.
    "knows_no_sections": instead(Watchdog, "section", lambda *_: contextlib.nullcontext()),
    "waits_without_end": instead(Rendezvous, "_get_deadline", lambda self, timeout: time.monotonic() + 3600),
    "gives_up_without_a_word": instead(Rendezvous, "_why_not", lambda self: ""),
    "stalls_now_and_then": lambda: on_later_steps(lambda step, usual_s: 2.0 if step % 6 == 0 else 0.0),
    # The steps wait for the disk, and it is a slow one; so long that the trainer calls it no hang.
    "stalls_at_each_save": saving(lambda kind, state: time.sleep(4) or state),
    "is_much_slower": lambda: on_later_steps(lambda step, usual_s: 1.5 * usual_s),  # more than a busy host explains
    # What was saved before the first restart can be loaded; the rest goes wrong.
    "crashes_after_the_second_restart": resumed(lambda worker: 1 // (worker.step < 40)),
    "ends_out_of_memory": instead(Pieces, "did_not_fit", lambda *_, **__: False),  # no smaller pieces are tried
    "watches_the_first_gpu": instead(nvml, "number_of", lambda *_: 0),  # whatever the rank
    "ignores_xids": instead(nvml.Xids, "new", lambda self: []),
    "ignores_leaks": instead(MemoryWatch, "runs_out", lambda self, step: False),
    "ignores_spikes": instead(Divergence, "step_done", lambda *_: None),
    # Resumes fast: goes on with the number of the step at which it was killed.
    "skips_the_recompute": resumed(lambda worker: setattr(worker, "step", worker.step + 5)),
}


@bug_in(Replicas, "compare")
def notices_the_first_drift_only(original: Any, self: Replicas, step: int, digests: Any) -> None:
    if not getattr(self, "noticed", False):
        try:
            original(self, step, digests)
        except Setback:
            self.__dict__["noticed"] = True
            raise


@bug_in(Worker, "forward_backward")
def gives_up_over_a_cuda_error(original: Any, self: Worker, *arguments: Any) -> tuple[float, float]:
    """Takes it for a mistake in the program, which a new start would only repeat."""
    try:
        return original(self, *arguments)
    except RuntimeError as error:
        if "CUDA error" in str(error):
            raise train.StoppedByPolicy(str(error)) from error
        raise


# What it says


@bug_in(Emitter, "__call__")
def lies_about_restore(original: Any, self: Emitter, event: str, **fields: Any) -> int:
    if event == "restored" and fields["step"]:
        fields["step"] += 5
    return original(self, event, **fields)


# Healthy


@variation_in(Worker, "forward_backward")
def stands_still_now_and_then(original: Any, self: Worker, *arguments: Any) -> tuple[float, float]:
    """As for a collection of garbage: every rank in its own steps, for a tenth of a second."""
    if (self.step + 3 * self.rank) % 7 == 0:
        time.sleep(0.1)
    return original(self, *arguments)


@variation_in(checkpoint, "_fsync")
def slow_disk(original: Any, path: pathlib.Path) -> None:
    """Every file takes a while longer until it is durable; a checkpoint is still done before the next one is due."""
    time.sleep(0.01)
    original(path)


@variation_in(Worker, "build")
def warms_up(original: Any, self: Worker) -> None:
    """Takes memory in its first seconds, as caches and compilers do, and then no more."""

    def grow() -> None:
        held = [bytes([1]) * 2**20 for _ in range(100) if time.sleep(0.02) is None]
        time.sleep(3600)
        held.clear()

    threading.Thread(target=grow, daemon=True).start()
    original(self)


@variation_in(Worker, "build")
def noisy_host(original: Any, self: Worker) -> None:
    """Somebody else computes on the same cores, off and on."""

    def burn() -> None:
        while True:
            until = time.monotonic() + 0.15
            while time.monotonic() < until:
                np.linalg.eigvalsh(np.ones((40, 40)))
            time.sleep(0.1)

    threading.Thread(target=burn, daemon=True).start()
    original(self)


if __name__ == "__main__":
    (BUGS | VARIATIONS)[sys.argv[1]]()
    exit_code = launch.main(sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
