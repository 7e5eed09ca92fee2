"""Decides when the next periodic checkpoint is due."""

from __future__ import annotations

import time


class Rhythm:
    """The interval of checkpoints: `every_s` seconds by rank 0's clock, or `every_steps` steps if `every_s` is 0."""

    def __init__(self, every_steps: int, every_s: float):
        self._every_steps, self._every_s = every_steps, every_s
        self._since_s = time.monotonic()  # when the last save began, or this process

    def time_is_up(self) -> bool:
        return self._every_s > 0 and time.monotonic() - self._since_s >= self._every_s

    def due(self, step: int, time_is_up: bool) -> bool:
        """Returns True if a checkpoint is due at this step. `time_is_up` is the result of the method `time_is_up` on
        rank 0."""
        return time_is_up if self._every_s > 0 else step % self._every_steps == 0

    def saved(self) -> None:
        self._since_s = time.monotonic()

    def since(self, steps: int, seconds: float) -> tuple[float, float]:
        return (seconds, self._every_s) if self._every_s > 0 else (steps, self._every_steps)
