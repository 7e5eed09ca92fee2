"""What older Pythons call by another name: nodes may have Python 3.9."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
from collections.abc import Sequence
from typing import TypeVar

# One class from Python 3.11 on, four before.
TIMEOUTS: tuple[type[Exception], ...] = (
    TimeoutError,
    asyncio.TimeoutError,
    concurrent.futures.TimeoutError,
    socket.timeout,
)

T = TypeVar("T")


def pairs(items: Sequence[T]) -> list[tuple[T, T]]:
    """Each item with the one after it."""
    return [(items[number], items[number + 1]) for number in range(len(items) - 1)]
