"""Passes the newest data on a game day from the job's thread to the browsers that show the live page."""

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

WAIT_S = 10.0  # seconds of silence after which a remark is sent, to find dead connections
RECONNECT_MS = 1500


class Hub:
    """The newest data for the live page. Threads other than the page's may call only `publish` and `close_soon`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()  # new for each version: each stream waits for the end of its own version
        self._version = 0
        self.view: DayView | None = None
        self._feed: Sequence[NewsView] = ()
        self._texts: dict[str, str] = {}  # role → text of this version
        self.closing = False
        self.streams = 0  # number of open streams

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def publish(self, view: DayView, participants_feed: Sequence[NewsView]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop is closing
                self._loop.call_soon_threadsafe(self._take, view, participants_feed)

    def _take(self, view: DayView, feed: Sequence[NewsView]) -> None:
        self._version, self.view, self._feed, self._texts = self._version + 1, view, feed, {}
        self._wake()

    def close_soon(self) -> None:
        self.closing = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def text(self, role: str) -> str:
        if role not in self._texts and self.view is not None:
            view = dataclasses.asdict(for_role(self.view, role, self._feed))
            # Phases in the words of the report. Those of an outage keep their name, too, for their colour.
            outage = [(phase, words(phase), lasted_s) for phase, lasted_s in view["outage"]]
            shown = {**view, "phase": words(view["phase"]), "outage": outage}
            self._texts[role] = json.dumps(_harmless(shown), separators=(",", ":"))
        return self._texts.get(role, "null")

    async def stream(self, role: str) -> AsyncIterator[str]:
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
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _harmless(each) for key, each in value.items()}
    return [_harmless(each) for each in value] if isinstance(value, (list, tuple)) else value
