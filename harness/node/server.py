"""Answers the harness's calls in a process inside a container, over standard input and output.

The process needs no open network port, and the container engine may be on another host. The process ends at the end of
standard input, which means that the harness is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from harness.errors import ChaosError
from harness.node import rpc

Calls = Mapping[str, Callable[..., Any]]  # plain or async functions; results must be JSON
Tell = Callable[[rpc.Message], None]  # sends it


def tell(message: rpc.Message) -> None:
    sys.stdout.buffer.write(rpc.pack(message))
    sys.stdout.buffer.flush()


async def serve(calls: Calls, reap: Callable[[], None], ready: Mapping[str, Any]) -> None:
    """Sends the event `ready` to the harness, then answers calls. `reap` is called when child processes have ended."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, reap)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tell({"event": "ready"} | dict(ready))
    await answer_all(calls, reader, tell)


async def answer_all(
    calls: Calls, reader: asyncio.StreamReader, tell: Tell, note: Callable[[str], None] = lambda _: None
) -> None:
    """Answers the harness's calls until the harness is gone. `note` is called with each failed call and its error."""
    tasks: set[asyncio.Task[None]] = set()
    with contextlib.suppress(ConnectionError):
        while True:
            task = asyncio.create_task(_answer(calls, await rpc.receive_async(reader), tell, note))
            tasks.add(task)  # kept referenced, or the loop could drop it
            task.add_done_callback(tasks.discard)


async def _answer(calls: Calls, message: rpc.Message, tell: Tell, note: Callable[[str], None]) -> None:
    try:
        result = calls[message["call"]](**message["params"])
        answer = {"result": await result if inspect.isawaitable(result) else result}
    except Exception as error:
        if not isinstance(error, (ChaosError, OSError)):
            traceback.print_exc()
        answer = {"error": rpc.error_to_message(error)}
        note(f"{message['call']}: {error}")
    tell({"id": message["id"]} | answer)
