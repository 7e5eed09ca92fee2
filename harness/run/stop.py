"""Lets users stop a run by a request: when the job's loop sees the request, it ends the run and undoes the faults."""

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

from harness.run.gpu_hours import GpuCap

INSISTS_AFTER_S = 2.0  # `timeout` and some CI systems send a signal twice at once: that is one request


class StopRequest:
    """A user's request to stop, made by a signal, a test or a web page, and checked by the job's loop."""

    def __init__(self) -> None:
        self.reason = ""
        self.cap: GpuCap | None = None  # for all jobs together that attend to this request
        self._asked_at: float | None = None
        self._attended = False

    @property
    def asked(self) -> bool:
        return self._asked_at is not None

    def ask(self, reason: str = "stopped by the user") -> None:
        """Requests the end of the job. Only the first request counts."""
        if self._asked_at is None:
            self.reason, self._asked_at = reason, time.monotonic()

    @contextlib.contextmanager
    def attended(self) -> Iterator[None]:
        """Makes signals request a stop in the `with` block; outside the block, signals raise `KeyboardInterrupt`."""
        before, self._attended = self._attended, True
        try:
            yield
        finally:
            self._attended = before

    def on_signals(self) -> None:
        """Makes SIGINT and SIGTERM request a stop from now on. Only the main thread may call `on_signals`."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        insists = self._asked_at is not None and time.monotonic() - self._asked_at > INSISTS_AFTER_S
        self.ask()
        if insists or not self._attended:
            raise KeyboardInterrupt


stop = StopRequest()  # the request that signals make to this process; see `harness.cli.main`
