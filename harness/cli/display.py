"""Live progress: one line that moves on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.status import Status as Spinner

from harness.run.job import Status

REFRESH_S = 0.1


class Display:
    def __init__(self, console: Console):
        self.console = console
        self._spinner: Spinner | None = console.status("starting") if console.is_terminal else None
        self._shown_at = 0.0
        self._faults = ""

    def __enter__(self) -> Display:
        if self._spinner:
            self._spinner.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._spinner:
            self._spinner.stop()

    def say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True)

    def show(self, status: Status) -> None:
        if status.faults != self._faults:
            self._faults = status.faults
            if status.faults:  # none any more: the next run has begun
                self.say(f"  {status.elapsed_s:6.1f} s  step {status.step}: {status.faults}")
        now = time.monotonic()
        if self._spinner and now - self._shown_at > REFRESH_S:
            self._shown_at = now
            loss = f" · loss {status.loss:.3f}" if status.loss is not None else ""
            self._spinner.update(f"{status.phase} · step {status.step}/{status.steps}{loss} · {status.elapsed_s:.0f} s")
