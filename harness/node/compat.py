"""Defines names that older Python versions lack, because nodes may have Python 3.9."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket

# One class from Python 3.11 on, four before.
TIMEOUTS: tuple[type[Exception], ...] = (
    TimeoutError,
    asyncio.TimeoutError,
    concurrent.futures.TimeoutError,
    socket.timeout,
)
