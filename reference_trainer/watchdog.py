"""Detects that training stands still, and reports which rank is stuck or slow."""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence

from harness.events import Emitter, usage
from reference_trainer import flight_recorder

EXIT_HUNG = 70  # sysexits' EX_SOFTWARE

STACK_CHARS_MAX = 20_000
CULPRIT_S = 1.0  # seconds for which a rank that only waits leaves it to the stuck one to name itself
STEP = "a step"


class Watchdog:
    """Ends the process when no step has ended for too long: `max(floor_s, factor × median step)`.

    Only finished steps count as progress. Work other than training steps is declared as a section with its own time
    limit. The watchdog works without other ranks, because a hung rank does not answer. When a process ends, its peers
    see the connection break, and the agents restart all ranks.
    """

    def __init__(self, emit: Emitter, rank: int, floor_s: float, factor: float, startup_s: float):
        self._emit, self._rank = emit, rank
        self._floor_s = floor_s
        self._factor = factor
        self._steps_s: collections.deque[float] = collections.deque(maxlen=50)
        self._step = 0
        self.allow("the start", startup_s)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def step_done(self, step: int) -> None:
        now = time.monotonic()
        self._step = step
        self._steps_s.append(now - self._last_beat)
        self._begin(STEP, max(self._floor_s, self._factor * statistics.median(self._steps_s)))

    def allow(self, what: str, limit_s: float) -> None:
        """Allows `limit_s` seconds until the next step has ended. All ranks can be busy until then, so a rank that
        exceeds this limit does not report itself as the rank that hangs."""
        self._begin(what, limit_s, guilty=False)

    @contextlib.contextmanager
    def section(self, what: str, limit_s: float) -> Iterator[None]:
        """Allows `limit_s` seconds for a declared section, such as a save. After the section, the former time limit
        begins again from zero."""
        before = self._what, self._limit_s, self._guilty
        self._begin(what, limit_s)
        try:
            yield
        finally:
            self._begin(*before)

    def peer_lost(self) -> None:
        """Notes that a collective failed. Until the next step, this rank does not report itself as the hanging rank."""
        self._guilty = False

    def _begin(self, what: str, limit_s: float, guilty: bool = True) -> None:
        self._last_beat = time.monotonic()  # written first, for the same reason
        self._what, self._limit_s, self._guilty = what, limit_s, guilty

    def _watch(self) -> None:
        previous = time.monotonic()
        while True:
            time.sleep(min(0.05, self._floor_s / 4))
            now = time.monotonic()
            if now - previous > self._floor_s / 2:
                self._last_beat += now - previous  # the whole process was frozen: that is not a hang of its own
            previous = now
            limit_s = self._limit_s  # read first: a shorter limit must not meet an older beat
            silent_s = now - self._last_beat
            if silent_s > limit_s:
                self._fail(silent_s)

    def _fail(self, silent_s: float) -> None:
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            stacks = file.read().decode(errors="replace")
        place = _place()
        what = "no step" if self._what == STEP else f"stuck in {self._what}"
        detail = f"{what} for {silent_s:.2f} s (limit {self._limit_s:.2f} s)"
        print(f"watchdog: {detail}\n{stacks}", file=sys.stderr, flush=True)
        self._emit("anomaly", kind="hang", detail=f"{detail}\n{stacks[:STACK_CHARS_MAX]}")
        usage.tell_peers(self._emit)
        if flight_recorder.tell(self._emit) and self._guilty:  # it is this rank that the others wait for
            tell_hang(self._emit, [self._rank], f"{detail}; it waits for no other rank, and is in {place}")
        else:
            time.sleep(CULPRIT_S)
        self._emit("exiting", code=EXIT_HUNG, reason="hang", step=self._step)
        os._exit(EXIT_HUNG)


def tell_hang(emit: Emitter, ranks: Sequence[int], why: str) -> None:
    who = [{"rank": rank} for rank in ranks]
    emit("diagnosis", kind="hang", who=who, decision="restart-in-place", why=why)


def _place() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and os.path.dirname(frame.f_code.co_filename) != os.path.dirname(__file__):
        frame = frame.f_back
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_name} ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"


class StragglerReport:
    """Compares the ranks' own compute times, without the time for which they wait for others, over a window of steps.

    A rank is slow if its median is above `factor` × the usual median. From its second slow window in a row on, a slow
    rank logs itself once in each window. The first slow window is not logged, because a busy host can slow a single
    window. If the rank's node is excluded, the rank logs itself in any case.
    """

    def __init__(self, emit: Emitter, rank: int, factor: float, window: int = 20, excluded_after: int = 0):
        """After `excluded_after` slow windows in a row, the rank's node is excluded. With 0, no node is excluded."""
        self._emit = emit
        self._rank = rank
        self._factor = factor
        self._window = window
        self._excluded_after = excluded_after
        self._seconds: list[Sequence[float]] = []
        self.in_a_row = 0  # slow windows, up to now

    @property
    def excluded(self) -> bool:
        return 0 < self._excluded_after <= self.in_a_row

    def step_done(self, compute_s: Sequence[float]) -> None:
        self._seconds.append(compute_s)
        if len(self._seconds) < self._window:
            return
        medians = [statistics.median(of_rank) for of_rank in zip(*self._seconds, strict=True)]
        self._seconds.clear()
        # The lower median: with two ranks the faster one is the yardstick, or nobody could ever be slow.
        usual = statistics.median_low(medians)
        mine = medians[self._rank]
        self.in_a_row = self.in_a_row + 1 if mine > self._factor * usual else 0
        if self.in_a_row > 1 or self.excluded:
            detail = f"rank {self._rank} computes {mine * 1e3:.0f} ms a step, usual is {usual * 1e3:.0f} ms"
            excess_ns = round((mine - usual) * 1e9)
            told = {"rank": self._rank, "slowdown": mine / usual, "excess_ns": excess_ns}
            self._emit("anomaly", kind="straggler", detail=detail, **told)
            decision = "evict-node" if self.excluded else "ignore"
            self._emit("diagnosis", kind="straggler", who=[{"rank": self._rank}], decision=decision, why=detail)
