"""Holds the state that all observers of a process share: rank, step and event log, and the guards of hooks."""

from __future__ import annotations

import collections
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from harness.node.emitter import Emitter, Moment
from harness.node.observer import told_by_hand

F = TypeVar("F", bound=Callable[..., Any])

# Who may say how many steps are done: the first that says anything is believed.
SOURCES = ("ledger", "framework", "optimizer", "checkpoint")
ERROR_CHARS_MAX = 1000
ADD_UP = ("loss", "samples", "data_ns", "checkpoint_ns", "sync_ns")  # over the parts of a step
UNWRITTEN_MAX = 64  # events that wait for a device
SHOWS_TRAINER = ("step", "restored", "exiting")
OWNER_ENV = "CHAOS_OBSERVED"  # the worker that this process is part of: its children are not the trainer


class Later:
    """A number that the GPU is still computing. Calling `ready` does not wait for the number."""

    def ready(self) -> bool:
        raise NotImplementedError

    def value(self) -> Any:
        raise NotImplementedError


class Arriving(Later):
    """The sum of numbers on a GPU, copied to the host while the GPU continues to work."""

    def __init__(self, torch: Any, figures: list[Any], more: float):
        with torch.no_grad():
            there = torch.stack([figure.reshape(()) for figure in figures]).sum()
            self._here = torch.empty((), dtype=there.dtype, pin_memory=True)
            self._here.copy_(there, non_blocking=True)
        self._event, self._more = torch.cuda.Event(), more
        self._event.record(torch.cuda.current_stream(there.device))

    def ready(self) -> bool:
        return bool(self._event.query())

    def value(self) -> float:
        self._event.synchronize()
        return float(self._here) + self._more


class _Both(Later):
    def __init__(self, *parts: Any):
        self._parts = parts

    def ready(self) -> bool:
        return all(part.ready() for part in self._parts if isinstance(part, Later))

    def value(self) -> Any:
        return sum(part.value() if isinstance(part, Later) else part for part in self._parts)


class Watch:
    def __init__(self, began: Moment):
        self.torch: Any = sys.modules["torch"]
        self.tells: set[str] = set()
        self.restarts = _number("TORCHELASTIC_RESTART_COUNT") or 0
        self.fresh = True  # no state was loaded: the first step is the training's first
        self.quiet = 0  # above 0: optimizer calls are no steps of the training
        self.each_alone = False  # each optimizer's step counts: they do not step equally often
        self.spent_ns = 0  # time in our own hooks, as far as measured
        self.accumulated: Callable[[], dict[str, int] | None] = dict  # fields of a save: see the signal `batches`
        self.discarded: Callable[[], Any] = dict  # forgets what was gathered of a step: see the signal `loss`
        self.look_again: Callable[[], Any] = dict  # watches models made since: see the signal `batches`
        self.in_child = _belongs_to_another()
        self._began = began
        self._offers: dict[str, int] = {}
        self.step: int | None = (
            None  # how many of the whole training are done, restarts included; None: nothing tells it
        )
        self.evaluates_again = False  # an optimizer that calls its closure several times is at work
        self._fields: dict[str, Any] = {}
        self._frozen: dict[str, Any] = {}
        self._of_step: list[Callable[[], dict[str, Any] | None]] = []
        self._when_made: list[Callable[[Any], None]] = []
        self._after_step: list[Callable[[int | None], None]] = []
        self._missing: dict[str, str] = {}
        self._emitter: Emitter | None = None
        self._unwritten: collections.deque[tuple[str, dict[str, Any], Moment]] = collections.deque()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    # Where this process is in the job

    @property
    def rank(self) -> int | None:
        """Returns this process's rank in the job, counted over all torchft replicas; `None` if the rank is not known
        yet."""
        rank, group = _of_group("get_rank", "RANK"), _number("REPLICA_GROUP_ID") or 0
        return rank if rank is None else rank + group * (_of_group("get_world_size", "WORLD_SIZE") or 1)

    @property
    def world(self) -> int | None:
        world = _of_group("get_world_size", "WORLD_SIZE")
        return world if world is None else world * (_number("NUM_REPLICA_GROUPS") or 1)

    # The absolute step

    def state_replaced(self) -> None:
        """Records that another training state was loaded. The step is unknown until the next `offer_step`."""
        self._offers.clear()
        self.step, self.fresh = None, False

    def offer_step(self, source: str, step: int) -> None:
        """Sets how many steps the training has done so far, as reported by `source`, one of `SOURCES`. A step count is
        ignored if an earlier count came from a more trusted source."""
        place = SOURCES.index(source)
        self._offers[source] = step
        if all(SOURCES.index(other) >= place for other in self._offers):
            self.step = step

    def count_each_alone(self) -> None:
        """Counts each optimizer's step as a training step from now on. A restored step that comes from a framework, an
        optimizer or a checkpoint becomes unknown, because these may count steps differently."""
        if not self.each_alone and not self.fresh and "ledger" not in self._offers:
            self.state_replaced()
        self.each_alone = True

    # The step that is being done

    def note(self, **fields: Any) -> None:
        """Adds fields to the event of the current step. A value may be a `Later`, a number that the GPU still
        computes."""
        self._fields.update(fields)

    def add(self, field: str, amount: int) -> None:
        self._fields[field] = self._fields.get(field, 0) + amount

    def of_step(self, fields: Callable[[], dict[str, Any] | None]) -> None:
        """Registers a function that returns further fields for each step's event, called when the step is done."""
        self._of_step.append(self.guard("of_step")(fields))

    def when_optimizer_made(self, callback: Callable[[Any], None]) -> None:
        """Registers a function that is called with each new optimizer, once the optimizer has its parameters."""
        self._when_made.append(self.guard("when_optimizer_made")(callback))

    def optimizer_made(self, optimizer: Any, _: None) -> None:
        for callback in self._when_made:
            callback(optimizer)

    def after_step(self, callback: Callable[[int | None], None]) -> None:
        """Registers a function that is called after every step, with the absolute number of the step."""
        self._after_step.append(self.guard("after_step")(callback))

    def freeze(self) -> None:
        """Closes the current step's set of fields: fields that are added later belong to the next step."""
        for ask in self._of_step:
            self._fields.update(ask() or {})
        for name, value in self._fields.items():
            if name not in self._frozen:
                self._frozen[name] = value
            elif name in ADD_UP:  # for fields that do not add up, the first counts
                first = self._frozen[name]
                late = isinstance(first, Later) or isinstance(value, Later)
                self._frozen[name] = _Both(first, value) if late else first + value
        self._fields = {}

    def begin_anew(self) -> None:
        self.freeze()
        self._frozen = {}
        self.look_again()

    def stepped(self, at: Moment, applied: bool = True) -> None:
        """Counts one more step and logs its fields. A step whose number is unknown is not logged."""
        if self.step is None and self.fresh:
            self.step = 0
        fields, self._frozen = self._frozen, {}
        if self.step is None:
            self.missing("steps", ValueError("a state was loaded, but its number of steps is unknown"))
        else:
            self.step += 1
            self._tell("step", {"step": self.step, **fields, **({} if applied else {"applied": False})}, at)
        for callback in self._after_step:
            callback(self.step)

    # The log

    def emit(self, event: str, /, **fields: Any) -> None:
        """Writes one event to this process's log. In a child process, which is not the trainer, writes nothing."""
        self._tell(event, fields, now())

    @property
    def active(self) -> bool:
        return self._emitter is not None

    def failpoint(self, name: str) -> None:
        log = told_by_hand.emitter or self._emitter
        if log is not None and not self.in_child:
            log.failpoint(name)

    def flush(self, wait: bool = False) -> None:
        """Writes the events whose values have arrived from the GPU. With `wait`, waits for the values of all events."""
        while self._unwritten:
            name, fields, at = self._unwritten[0]
            late = [value for value in fields.values() if isinstance(value, Later)]
            full = len(self._unwritten) > UNWRITTEN_MAX
            if not wait and not full and not all(value.ready() for value in late):
                return
            self._unwritten.popleft()
            told = {}
            for key, value in fields.items():
                if isinstance(value, Later):
                    value = value.value() if wait or not full or value.ready() else None
                if value is not None:
                    told[key] = value
            self._write(name, told, at)

    def _tell(self, name: str, fields: dict[str, Any], at: Moment) -> None:
        if self.in_child:
            return
        self._unwritten.append((name, fields, at))
        if self._emitter is None and name not in SHOWS_TRAINER and (self.rank is None or name == "observer.failed"):
            return  # until the process knows who it is, and that it trains
        self.flush()

    def _write(self, name: str, fields: dict[str, Any], at: Moment) -> None:
        if self._emitter is None:
            identity: dict[str, Any] = {"rank": self.rank or 0, "world_size": self.world or 1}
            if (local_rank := _number("LOCAL_RANK")) is not None:
                identity["local_rank"] = local_rank
            identity |= {"began": self._began, "tells": sorted(self.tells)}
            self._emitter = told_by_hand.emitter or told_by_hand.open_ours(**identity)
            if told_by_hand.emitter is None:
                self._emitter.tell("started", {}, self._began)
        if name not in told_by_hand.names:
            self._emitter.tell(name, fields, at)

    def _forked(self) -> None:
        """Makes a forked child process open its own log, because the child may train. A child of a launched worker logs
        nothing."""
        self._emitter = None
        self._unwritten.clear()
        self.in_child = "RANK" in os.environ
        self._began = now()

    # Failing alone

    def missing(self, signal: str, error: BaseException) -> None:
        if signal not in self._missing:
            self._missing[signal] = text = f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]
            self.emit("observer.failed", signal=signal, error=text)

    def guard(self, signal: str, remove: Callable[[], None] = lambda: None) -> Callable[[F], F]:
        """Decorates a hook. After the hook's first error, the error is logged, `remove` is called, and the hook does
        nothing any more."""

        def around(hook: F) -> F:
            dead = False

            @functools.wraps(hook)
            def guarded(*args: Any, **kwargs: Any) -> Any:
                nonlocal dead
                if dead:
                    return None
                begin = time.perf_counter_ns()
                try:
                    return hook(*args, **kwargs)
                except Exception as error:
                    dead = True
                    self.missing(signal, error)
                    remove()
                    return None
                finally:
                    self.spent_ns += time.perf_counter_ns() - begin

            return guarded  # type: ignore[return-value]

        return around


def now() -> Moment:
    return time.time_ns(), time.monotonic_ns()


def _belongs_to_another() -> bool:
    """Returns True if an observed worker started this process, for example as a data loader or compiler."""
    if "RANK" not in os.environ:
        return False
    pid, job = str(os.getpid()), os.environ.get("TORCHELASTIC_RUN_ID", "")
    owner, _, its_job = os.environ.get(OWNER_ENV, "").partition(" ")
    if owner and owner != pid and its_job == job:
        return True
    os.environ[OWNER_ENV] = f"{pid} {job}"
    return False


def _of_group(getter: str, variable: str) -> int | None:
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return int(getattr(dist, getter)())
    return _number(variable)


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else None
