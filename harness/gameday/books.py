"""Computes the GPU time that a game day wastes, for the live page and for the final report."""

from __future__ import annotations

import contextlib
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.campaign.ledger_so_far import ask
from harness.gameday.day_file import Budget
from harness.report.words import gpu_seconds, percent

STEADY = "gameday.steady"  # event from which on the budget counts
EVERY_S = 5.0
SHARE = 8  # the ledger takes at most this fraction (1/8) of one core
FAILED_S = 10.0  # seconds from a failed count to the next
LAST_S = 20.0  # most seconds for which the verdict waits for the last count
PERCENT_FROM_S = 60.0  # GPU-seconds from which the percentage counts: one restart would fill less


@dataclass(frozen=True)
class Booked:
    """The GPU-seconds that a game day used and wasted. `since` holds only what was used and wasted after the job was
    first steady."""

    allocated: float
    wasted: float
    by_faults: float
    dollars: float | None = None
    since: Booked | None = None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Booked:
        apart = told.get("since")
        amounts = told["allocated"], told["wasted_all"], told["wasted_faults"], told["dollars"]
        return cls(*amounts, None if apart is None else cls.of(apart))

    @property
    def percent(self) -> float:
        return 100 * self.wasted / self.allocated if self.allocated else 0.0

    @property
    def caused(self) -> str:
        return gpu_seconds(self.by_faults)

    @property
    def words(self) -> str:
        return f"{gpu_seconds(self.wasted)} of {gpu_seconds(self.allocated)} ({percent(self.percent)})"

    def spent(self, budget: Budget, gpus: int) -> list[tuple[str, float]]:
        """Returns each limit of the budget as a text, with the part of the limit that is used up (1.0 is all of it)."""
        found, part = [], self.since
        if part is not None and (hours := budget.wasted_gpu_hours) is not None:
            told = f"{gpu_seconds(part.wasted)} of {hours:g} GPU-hours"
            found.append((told, part.wasted / 3600 / hours))
        if part is not None and (most := budget.wasted_percent) is not None:
            counts = part.allocated >= PERCENT_FROM_S * gpus
            found.append((f"{percent(part.percent)} of {most:g} %", part.percent / most if counts else 0.0))
        return found


@dataclass
class Books:
    """The newest figures on a game day's GPU time, which a background thread computes again every few seconds."""

    newest: Booked | None = None
    asked_ns: int = 0  # time of that request; 0: it is the final count
    _over: threading.Event = field(default_factory=threading.Event)  # set once the job is over
    _closed: threading.Event = field(default_factory=threading.Event)  # set once no later count is taken

    @contextlib.contextmanager
    def kept(self, run_dir: pathlib.Path, asking: Callable[..., dict[str, Any] | None] = ask) -> Iterator[None]:
        keeper = threading.Thread(target=self._keep, args=(run_dir, asking), name="books", daemon=True)
        keeper.start()
        try:
            yield
            self._over.set()
            keeper.join(LAST_S)
        finally:
            self._over.set()
            self._closed.set()

    def close(self, last: Booked | None) -> None:
        """Ends the updates, and replaces the newest figures by `last` (the report's figures), if given."""
        self._over.set()
        self._closed.set()
        if last is not None:
            self.newest, self.asked_ns = last, 0

    def _keep(self, run_dir: pathlib.Path, asking: Callable[..., dict[str, Any] | None]) -> None:
        pause_s = EVERY_S
        last = False
        while not last and not self._closed.is_set():
            last = self._over.wait(pause_s)
            now_ns = time.monotonic_ns()
            told = asking(run_dir, None, STEADY)
            if self._closed.is_set():
                return
            if told is None:
                pause_s = FAILED_S
                continue
            self.newest, self.asked_ns = Booked.of(told), now_ns
            pause_s = max(EVERY_S, SHARE * told["cpu_s"])
