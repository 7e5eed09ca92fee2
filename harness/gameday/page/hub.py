"""From the job's loop to browsers: the newest view of the day, and who waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

from harness.gameday.day_view import DayView, NewsView, for_role
from harness.report.words import plain, words

WAIT_S = 10.0  # then a remark is sent, so that a dead connection is found
RECONNECT_MS = 1500


class Hub:
    """`publish` may be called by any thread; all else belongs to the event loop of the page."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()  # another one for each version: each stream waits for the end of its own
        self._version = 0
        self.view: DayView | None = None
        self._feed: Sequence[NewsView] = ()
        self._texts: dict[str, str] = {}  # by role, of this version
        self.closing = False
        self.streams = 0  # that are open

    def start(self) -> None:
        """In the event loop."""
        self._loop = asyncio.get_running_loop()

    def publish(self, view: DayView, participants_feed: Sequence[NewsView]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it closes just now
                self._loop.call_soon_threadsafe(self._take, view, participants_feed)

    def _take(self, view: DayView, feed: Sequence[NewsView]) -> None:
        self._version, self.view, self._feed, self._texts = self._version + 1, view, feed, {}
        self._wake()

    def close_soon(self) -> None:
        """Every stream ends, after what it has not sent yet. Any thread may call this."""
        self.closing = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def text(self, role: str) -> str:
        """The newest view as JSON, as this role may see it."""
        if role not in self._texts and self.view is not None:
            view = dataclasses.asdict(for_role(self.view, role, self._feed))
            # Phases as the report calls them; those of the outage keep their name beside it, for their colour.
            outage = [(phase, words(phase), lasted_s) for phase, lasted_s in view["outage"]]
            shown = {**view, "phase": words(view["phase"]), "outage": outage}
            self._texts[role] = json.dumps(_harmless(shown), separators=(",", ":"))
        return self._texts.get(role, "null")

    async def stream(self, role: str) -> AsyncIterator[str]:
        """Server-sent events: the newest view at once, and each later one; what a slow browser missed is left out."""
        yield f"retry: {RECONNECT_MS}\n\n"
        async for message in self._messages(role):
            yield message
        yield "event: over\ndata: null\n\n"

    async def _messages(self, role: str) -> AsyncIterator[str]:
        sent = 0
        while not (self.closing and self._version == sent):
            if self._version > sent:
                sent = self._version
                yield f"id: {sent}\ndata: {self.text(role)}\n\n"
                continue
            try:
                await asyncio.wait_for(self._changed.wait(), WAIT_S)
            except TimeoutError:
                yield ": still here\n\n"


def _harmless(value: Any) -> Any:
    """Texts without what could turn the direction of text; numbers that JSON has no word for become null."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _harmless(each) for key, each in value.items()}
    return [_harmless(each) for each in value] if isinstance(value, (list, tuple)) else value
