"""Live progress: one line that moves on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.status import Status as Spinner
from rich.text import Text

from harness.report.words import one_line
from harness.run.job import Status

REFRESH_S = 0.1


class Display:
    """Observes a run: takes its typed status, and shows it. It has no say in the run."""

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
        """One line about what happens next."""
        self.console.print(Text(one_line(line) if line.strip() == line else "  " + one_line(line)), soft_wrap=True)

    def show(self, status: Status) -> None:
        """Draws the line anew; what changed about the faults gets a line of its own."""
        if status.faults != self._faults:
            self._faults = status.faults
            if status.faults:  # none any more: the next run has begun
                self.say(f"  {status.elapsed_s:6.1f} s  step {status.step}: {status.faults}")
        now = time.monotonic()
        if self._spinner and now - self._shown_at > REFRESH_S:
            self._shown_at = now
            loss = f" · loss {status.loss:.3f}" if status.loss is not None else ""
            line = f"{status.phase} · step {status.step}/{status.steps}{loss} · {status.elapsed_s:.0f} s"
            self._spinner.update(Text(one_line(line)))
