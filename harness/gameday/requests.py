"""Passes alerts and people's requests from the live page's thread to the job's thread, in a queue of limited length."""

from __future__ import annotations

import queue
from concurrent.futures import Future
from dataclasses import dataclass, field

ASKS_MAX = 500
TEXT_MAX = 2000


@dataclass(frozen=True)
class Ask:
    """A person's request to a running game day. `reply` is set to the reason for a refusal, or to an empty text."""

    action: str  # of `harness.log.vocabulary.PEOPLE`
    role: str = "master"  # observer · participant · master
    text: str = ""
    who: str = ""
    reply: Future[str] = field(default_factory=Future, compare=False)


@dataclass(frozen=True)
class AlertNews:
    name: str
    status: str  # firing · resolved
    summary: str = ""
    fingerprint: str = ""  # fingerprint of its labels: the same alert of another rank is another alert


class Desk:
    """A queue of limited length for requests and alerts. Any thread may add items; only the job's thread takes them."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Ask | AlertNews] = queue.Queue(ASKS_MAX)

    def hand_in(self, what: Ask | AlertNews) -> bool:
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
