"""What the signals share: one process's place in the job, its step, its event log, and the guard around each hook."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from harness.emitter import Emitter

F = TypeVar("F", bound=Callable[..., Any])

# Who may say how many steps are done: the first that says anything is believed.
SOURCES = ("ledger", "framework", "optimizer", "checkpoint")
ERROR_CHARS_MAX = 1000


class Watch:
    """One process, as seen by its signals."""

    def __init__(self) -> None:
        self.tells: set[str] = set()
        self.restarts = _number("TORCHELASTIC_RESTART_COUNT") or 0
        self._began = time.time_ns(), time.monotonic_ns()
        self._offers: dict[str, int] = {}
        self._done: int | None = None
        self.fresh = True  # no state was put in from elsewhere: the first step is the first one of the training
        self._after_step: list[Callable[[int | None], None]] = []
        self._missing: dict[str, str] = {}
        self._emitter: Emitter | None = None
        self._waiting: list[tuple[str, dict[str, Any]]] = []
        self.in_child = False
        os.register_at_fork(after_in_child=self._forked)

    # Where this process is in the job

    @property
    def rank(self) -> int | None:
        """In the job; `None` while nothing tells it."""
        return _of_group("get_rank", "RANK")

    @property
    def world(self) -> int | None:
        """How many ranks the job has."""
        return _of_group("get_world_size", "WORLD_SIZE")

    @property
    def local_rank(self) -> int | None:
        return _number("LOCAL_RANK")

    # The absolute step

    @property
    def step(self) -> int | None:
        """How many steps of the whole training are done, restarts included. `None`: nothing tells it."""
        return self._done

    def state_replaced(self) -> None:
        """A state from elsewhere was put in: how many steps it holds is unknown until the next offer."""
        self._offers.clear()
        self._done, self.fresh = None, False

    def offer_step(self, source: str, step: int) -> None:
        """Says how many steps the training has done by now, as one of `SOURCES` knows it.

        Between two offers the steps are counted. A source of less trust than one that has spoken is not heard.
        """
        place = SOURCES.index(source)
        self._offers[source] = step
        if all(SOURCES.index(other) >= place for other in self._offers):
            self._done = step

    def stepped(self) -> int | None:
        """One more step is done: called by the signal `steps`."""
        if self._done is not None:
            self._done += 1
        for callback in self._after_step:
            callback(self._done)
        return self._done

    def after_step(self, callback: Callable[[int | None], None]) -> None:
        """Calls it after every step with the absolute step."""
        self._after_step.append(self.guard("after_step")(callback))

    # The log

    def emit(self, name: str, **fields: Any) -> None:
        """Writes one event to this process's file. Nothing in a forked child, which is not the trainer."""
        if self.in_child:
            return
        if self._emitter is None and self.rank is None and name != "exiting":
            self._waiting.append((name, fields))  # until the process knows who it is
            return
        self._opened()(name, **fields)

    def _opened(self) -> Emitter:
        if self._emitter is None:
            identity = {"rank": self.rank or 0, "world_size": self.world or 1, "tells": sorted(self.tells)}
            self._emitter = Emitter.open("trainer", began=self._began, **identity)
            for name, fields in self._waiting:
                self._emitter(name, **fields)
            self._waiting.clear()
        return self._emitter

    def _forked(self) -> None:
        self.in_child = True

    # Failing alone

    def missing(self, signal: str, error: BaseException) -> None:
        """Says once that a signal is not observed any more, and why."""
        if signal not in self._missing:
            self._missing[signal] = text = f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]
            self.emit("observer.failed", signal=signal, error=text)

    def guard(self, signal: str, remove: Callable[[], None] = lambda: None) -> Callable[[F], F]:
        """A decorator for hooks: what a hook raises is told once, `remove` is called, and it does nothing any more."""

        def around(hook: F) -> F:
            dead = False

            @functools.wraps(hook)
            def guarded(*args: Any, **kwargs: Any) -> Any:
                nonlocal dead
                if dead:
                    return None
                try:
                    return hook(*args, **kwargs)
                except Exception as error:
                    dead = True
                    self.missing(signal, error)
                    remove()
                    return None

            return guarded  # type: ignore[return-value]

        return around


def _of_group(getter: str, variable: str) -> int | None:
    """As the process group says; else as the launcher did."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return int(getattr(dist, getter)())
    return _number(variable)


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else None
