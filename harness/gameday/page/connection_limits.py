"""Limits the duration and number of connections, so that no client can keep people from pressing Stop."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

ASKS_WITHIN_S = 10.0  # seconds for the first whole request
ANSWERED_WITHIN_S = 30.0  # seconds for each whole answer, unless it stays open, and for the next request
OTHERS_MAX = 100  # most connections beside the answers that stay open
AT_ONCE_MAX = 100  # most new connections taken before any of them can be closed
STAYS_OPEN = "stays_open"  # key in the state of a request, whose handler limits such answers

_open: dict[Patient, None] = {}  # open connections in the order of arrival


class Patient(H11Protocol):
    """A browser's connection, which the server closes if the browser is too slow. If there are too many connections,
    the server closes the oldest one, but prefers connections that have not sent a complete request. The server never
    closes the newest connection or an event stream to make room."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        _open[self] = None
        self._expect_request(ASKS_WITHIN_S)
        others = [each for each in _open if not each.stays_open and not each.transport.is_closing()]
        if len(others) > OTHERS_MAX:
            min(others[:-1], key=lambda each: each.asked).transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._see_request()

    def on_response_complete(self) -> None:
        self._limit.cancel()
        self._expect_request(ANSWERED_WITHIN_S)
        super().on_response_complete()  # reads the next request if it is there already
        self._see_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.cancel()
        _open.pop(self, None)
        super().connection_lost(exc)

    @property
    def stays_open(self) -> bool:
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and cycle.scope["state"].get(STAYS_OPEN, False)

    def _expect_request(self, within_s: float) -> None:
        self.asked = False
        self._limit: asyncio.TimerHandle = self.loop.call_later(within_s, self._give_up)

    def _see_request(self) -> None:
        cycle = self.cycle
        if self.asked or cycle is None or cycle.more_body or cycle.response_complete:
            return
        self.asked = True
        self._limit.cancel()
        self._limit = self.loop.call_later(ANSWERED_WITHIN_S, self._give_up)

    def _give_up(self) -> None:
        if not self.stays_open:
            self.transport.abort()
