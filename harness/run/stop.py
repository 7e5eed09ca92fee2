"""Lets users stop a run by a request, not an exception: the job's loop looks at it, and undoes everything in order."""

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

from harness.run.gpu_hours import GpuCap

INSISTS_AFTER_S = 2.0  # `timeout` and some CI systems send a signal twice at once: that is one request


class StopRequest:
    """A user's request to stop, made by a signal, a test or a web page; the job's loop looks at it."""

    def __init__(self) -> None:
        self.reason = ""
        self.cap: GpuCap | None = None  # for all jobs together that attend to this request
        self._asked_at: float | None = None
        self._attended = False

    @property
    def asked(self) -> bool:
        return self._asked_at is not None

    def ask(self, reason: str = "stopped by the user") -> None:
        """Asks for the end of the job that looks at this request. Asking again changes nothing."""
        if self._asked_at is None:
            self.reason, self._asked_at = reason, time.monotonic()

    @contextlib.contextmanager
    def attended(self) -> Iterator[None]:
        """Makes signals set the request during the `with` block. Outside of it, they interrupt."""
        before, self._attended = self._attended, True
        try:
            yield
        finally:
            self._attended = before

    def on_signals(self) -> None:
        """Makes SIGINT and SIGTERM ask for the end from now on. Only the main thread may call this."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal: asks for the end. Raises `KeyboardInterrupt` if no loop looks, or when asked again."""
        insists = self._asked_at is not None and time.monotonic() - self._asked_at > INSISTS_AFTER_S
        self.ask()
        if insists or not self._attended:
            raise KeyboardInterrupt


stop = StopRequest()  # the request that signals make to this process; see `harness.cli.main`
