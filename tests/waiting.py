"""Waits for what real processes, sockets and files do.

A busy machine may take long for anything, so no test measures how long it waits. `HANG_S` only keeps a test from hanging
for ever. What has to be fast is measured in `benches/`, beside something else in the same run.
"""

import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")
HANG_S = 600.0
LOOK_S = 0.01  # between two looks


def until(look: Callable[[], T | Literal[False] | None], what: object) -> T:
    """What `look` sees once there is something to see. `what` says what was waited for; a function says it at the end."""
    deadline = time.monotonic() + HANG_S
    while not (seen := look()):
        assert time.monotonic() < deadline, f"waited {HANG_S:g} s for {what() if callable(what) else what}"
        time.sleep(LOOK_S)
    return seen
