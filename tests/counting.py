"""How much work something is: counted, not timed."""

import sys
from collections.abc import Callable
from typing import Any


def lines_run(work: Callable[[], object]) -> int:
    """The lines of Python that run; each turn of a loop is one."""
    count = 0

    def trace(frame: object, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
