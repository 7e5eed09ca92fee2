"""Lets a node run only for a part of the time: all its processes are stopped and continued many times a second."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

PERIOD_S = 0.1
TURN_S_MIN = 0.002  # shorter turns are lost in the scheduler's own


class DutyCycle:
    """Slows a node by sending SIGSTOP and SIGCONT in turn. The caller must call `tick` again after as many seconds as
    `tick` returned."""

    def __init__(self, send: Callable[[int], object]):
        self._send = send
        self._share = 1.0
        self._stopped = False
        self._turn_ends = 0.0
        self._since = 0.0
        self._stopped_s = 0.0

    @property
    def active(self) -> bool:
        return self._share < 1.0

    @property
    def stopped_ns(self) -> int:
        now = time.monotonic() - self._since if self._stopped else 0.0
        return round((self._stopped_s + now) * 1e9)

    def set_share(self, share: float) -> None:
        """Lets the node run for this share of each period from now on. A share of 1 ends the throttling."""
        self._share = share
        if not self.active and self._stopped:
            self._turn(stop=False)
        self._turn_ends = 0.0

    def tick(self) -> float | None:
        """Stops or continues the slowed node if it is time. Returns the seconds until the next call, or `None` if the
        node is not slowed."""
        if not self.active:
            return None
        now = time.monotonic()
        if now >= self._turn_ends:
            self._turn(stop=not self._stopped)
            share = 1.0 - self._share if self._stopped else self._share
            self._turn_ends = now + max(TURN_S_MIN, share * PERIOD_S)
        return max(0.0, self._turn_ends - time.monotonic())

    def _turn(self, stop: bool) -> None:
        self._send(signal.SIGSTOP if stop else signal.SIGCONT)
        now = time.monotonic()
        if self._stopped:
            self._stopped_s += now - self._since
        self._stopped, self._since = stop, now
