"""When the next periodic checkpoint is due: after so many steps, or after so much time since the last one."""

from __future__ import annotations

import time


class Rhythm:
    """`every_s` above 0 counts time; else every `every_steps`-th step counts. Rank 0's clock decides for all."""

    def __init__(self, every_steps: int, every_s: float):
        self._every_steps, self._every_s = every_steps, every_s
        self._since_s = time.monotonic()  # when the last save began, or this process

    def time_is_up(self) -> bool:
        """By this rank's clock."""
        return self._every_s > 0 and time.monotonic() - self._since_s >= self._every_s

    def due(self, step: int, time_is_up: bool) -> bool:
        """`time_is_up`: what rank 0 said in this step."""
        return time_is_up if self._every_s > 0 else step % self._every_steps == 0

    def saved(self) -> None:
        """A save begins now."""
        self._since_s = time.monotonic()

    def since(self, steps: int, seconds: float) -> tuple[float, float]:
        """How much has passed since the last commit, and the interval, both in the unit that counts."""
        return (seconds, self._every_s) if self._every_s > 0 else (steps, self._every_steps)
