"""Wishes of people and alerts for a game day: a bounded queue between the page's thread and the job's loop."""

from __future__ import annotations

import queue
from concurrent.futures import Future
from dataclasses import dataclass, field

ASKS_MAX = 500
TEXT_MAX = 2000


@dataclass(frozen=True)
class Ask:
    """A wish of a person. `reply` gets why it was refused; empty: it was done."""

    action: str  # of `harness.log.vocabulary.PEOPLE`
    role: str = "master"  # observer · participant · master
    text: str = ""
    who: str = ""
    reply: Future[str] = field(default_factory=Future, compare=False)


@dataclass(frozen=True)
class AlertNews:
    """An alert as it arrived."""

    name: str
    status: str  # firing · resolved
    summary: str = ""
    fingerprint: str = ""  # fingerprint of its labels: the same alert of another rank is another alert


class Desk:
    """A bounded queue: any thread hands in, the job's loop takes out."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Ask | AlertNews] = queue.Queue(ASKS_MAX)

    def hand_in(self, what: Ask | AlertNews) -> bool:
        """Adds an item. Returns whether there was room."""
        try:
            self._queue.put_nowait(what)
        except queue.Full:
            return False
        return True

    def take(self) -> Ask | AlertNews | None:
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None
