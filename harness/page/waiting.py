"""Connections that ask nothing: they must not keep anybody from pressing Stop."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

ASKS_WITHIN_S = 10.0
UNASKED_MAX = 100

_unasked: dict[Patient, None] = {}  # in the order in which they came


class Patient(H11Protocol):
    """Closed when no whole request comes in time. Of too many that wait, the oldest is closed, never the newest."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        _unasked[self] = None
        self._limit: asyncio.TimerHandle = self.loop.call_later(ASKS_WITHIN_S, self._give_up)
        while len(_unasked) > UNASKED_MAX:
            next(iter(_unasked))._give_up()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None:
            self._has_asked()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_asked()
        super().connection_lost(exc)

    def _has_asked(self) -> None:
        self._limit.cancel()
        _unasked.pop(self, None)

    def _give_up(self) -> None:
        self._has_asked()
        self.transport.abort()
