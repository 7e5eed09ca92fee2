"""Injects faults inside a trainer's process: an exception, a held interpreter lock, a memory leak, or the user's own
code."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from typing import Any

from harness.node.emitter import device_strikes, silent_corruption

RAISED, SEIZED, LET_GO = "exception_raised", "interpreter_seized", "interpreter_let_go"
CALLED, RETURNED, FAILED = "own_code_called", "own_code_returned", "own_code_failed"
LEAKING = "leak_begun"
NEXT_BATCH = "next_batch"  # a failpoint: the rank asks for its next batch of data
SAID_CHARS_MAX = 1000
LEAVES_S_MAX = 1.0
TICK_S = 0.005
LEAK_BYTES, LEAK_EVERY_S = 2**20, 0.05

Append = Callable[[dict[str, Any]], int]


class Inside:
    """The argument of a user's function `inject`: the rank and the last finished step of the process (`None` if
    unknown)."""

    def __init__(self, rank: int | None, step: int | None, append: Append):
        self.rank, self.step = rank, step
        self.world_size = int(os.environ["WORLD_SIZE"]) if os.environ.get("WORLD_SIZE", "").isdigit() else None
        self._append = append

    def log(self, text: object) -> None:
        self._append({"event": "failpoint", "name": "own_code_says", "text": str(text)[:SAID_CHARS_MAX]})


def strike(
    what: str,
    argument: Any,
    append: Append,
    rank: int | None = None,
    step: int | None = None,
    over: Callable[[], bool] = lambda: False,
    seed: int = 0,
) -> None:
    """Injects a fault into this trainer's process. The fault `raise` raises an exception with the text `argument` in
    the calling thread. The fault `seize` stops all Python threads for `argument` seconds. The fault `leak` takes memory
    until `over` returns True; `argument` is "BYTES_PER_S BYTES_AT_MOST". The fault `call` calls the function `inject`
    in the source code `argument`. The fault `break_device` makes later GPU calls fail with the error `argument`. The
    fault `corrupt` corrupts a number in memory."""
    if what == "raise":
        append({"event": "failpoint", "name": RAISED, "text": str(argument)})
        _raise_soon(str(argument))
    elif what == "seize":
        append({"event": "failpoint", "name": SEIZED})
        stood_still_s = _seize(float(argument))
        append({"event": "failpoint", "name": LET_GO, "stood_still_s": stood_still_s})
    elif what == "leak":
        rate, most = (int(word) for word in str(argument).split())
        threading.Thread(target=_leak, args=(rate, most, over), name="leak", daemon=True).start()
        append({"event": "failpoint", "name": LEAKING})
    elif what == "call":
        append({"event": "failpoint", "name": CALLED})
        said = _call(str(argument), Inside(rank, step, append))
        append({"event": "failpoint", **said})
    elif what == "break_device":
        device_strikes.break_device(str(argument), append)
    elif what == "corrupt":
        silent_corruption.corrupt(str(argument), append, step, over, seed)


def _call(source: str, inside: Inside) -> dict[str, str]:
    """Runs the user's code for a fault. If the user's code raises an error, the error is printed and returned, and the
    training continues."""
    space: dict[str, Any] = {"__name__": "own_code"}
    try:
        exec(compile(source, "<own_code>", "exec"), space)
        found = space["inject"](inside)
    except Exception as error:
        traceback.print_exc()
        return {"name": FAILED, "text": f"{type(error).__name__}: {error}"[:SAID_CHARS_MAX]}
    return {"name": RETURNED, "text": str(found)[:SAID_CHARS_MAX]}


def _raise_soon(text: str) -> None:
    """Raises an exception in this thread once the thread has left the harness's code, which could swallow the
    exception."""
    victim = threading.get_ident()
    kind = type("InjectedError", (RuntimeError,), {"__str__": lambda self: text, "__module__": "builtins"})

    def deliver() -> None:
        deadline = time.monotonic() + LEAVES_S_MAX
        while _is_ours(sys._current_frames().get(victim)) and time.monotonic() < deadline:
            time.sleep(0.001)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(victim), ctypes.py_object(kind))

    threading.Thread(target=deliver, name="injected-error", daemon=True).start()


def _is_ours(frame: types.FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("harness."):
            return True
        frame = frame.f_back
    return False


def _leak(rate: int, most: int, over: Callable[[], bool]) -> None:
    begin, taken = time.monotonic(), list[mmap.mmap]()
    while not over():
        due = min(most, rate * (time.monotonic() - begin))
        while (len(taken) + 1) * LEAK_BYTES <= due:
            pages = mmap.mmap(-1, LEAK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            pages.write(b"\x01" * LEAK_BYTES)
            taken.append(pages)
        time.sleep(LEAK_EVERY_S)
    for pages in taken:
        pages.close()


def _seize(seconds: float) -> float:
    """Stops all Python threads by sleeping in C code that holds the interpreter lock. Returns for how many seconds a
    test thread stood still."""
    over, gap = threading.Event(), [0.0]

    def tick() -> None:
        before = time.monotonic()
        while not over.wait(TICK_S):
            now = time.monotonic()
            before, gap[0] = now, max(gap[0], now - before)

    ticker = threading.Thread(target=tick, name="seized", daemon=True)
    ticker.start()
    time.sleep(4 * TICK_S)
    ctypes.PyDLL(None).usleep(ctypes.c_uint(int(seconds * 1e6)))
    time.sleep(4 * TICK_S)
    over.set()
    ticker.join(1.0)
    return gap[0]
