"""Process 1 of a container node: starts the node's command, signals and lists its processes, serves its metadata.

It is spoken to over the container's own standard input and output, in the frames of `harness.lab.rpc`: nothing
listens on the network for it, and it works over a daemon on another host as well. The end of standard input
means that the harness is gone: it ends, and the kernel ends everything else on the node with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.errors import ChaosError, UsageError
from harness.lab import metadata, processes, rpc, spawn

METADATA_ADDRESS = ("169.254.169.254", 80)


class Init:
    def __init__(self, name: str):
        self._endpoint = metadata.Endpoint(name)
        self._main_pid = 0
        self._calls: dict[str, Callable[..., Any]] = {
            "run": self._run,
            "signal": self._signal,
            "pids": self._pids,
            "notice": self._endpoint.announce,
            "notice_seen": lambda: self._endpoint.seen,
        }

    async def serve(self) -> None:
        """Answers calls and reaps until the end of standard input."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        # `docker stop` tells only process 1; a host that is reclaimed tells everything on it.
        loop.add_signal_handler(signal.SIGTERM, self._signal, signal.SIGTERM, None)
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        listener = _listen()
        await self._endpoint.serve(listener)
        _tell({"event": "ready", "metadata": listener.getsockname()})
        with contextlib.suppress(ConnectionError):  # the harness is gone
            while True:
                _tell(self._answer(await rpc.receive_async(reader)))

    def _answer(self, message: rpc.Message) -> rpc.Message:
        try:
            return {"id": message["id"], "result": self._calls[message["call"]](**message["params"])}
        except (OSError, ChaosError) as error:
            return {"id": message["id"], "error": rpc.error_to_message(error)}

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):  # no child at all
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._main_pid:
                    self._main_pid = 0
                    _tell({"event": "exit", "code": os.waitstatus_to_exitcode(status)})

    def _run(self, command: Sequence[str], env: Mapping[str, str], log: str) -> int:
        if self._main_pid:
            raise UsageError("the node runs its command already")
        self._main_pid = spawn.execute(command, dict(os.environ) | dict(env), log)
        return self._main_pid

    def _pids(self) -> list[int]:
        return sorted(process.pid for process in processes.every() if process.pid != 1 and process.running)

    def _signal(self, signum: int, pid: int | None) -> int:
        if pid is not None:
            found = processes.read(pid)
            return int(found is not None and found.running and found.signal(signum))
        count = len(self._pids())
        # Outside a PID namespace of our own, -1 would mean every process of the user.
        assert os.getpid() == 1, "only process 1 of a node may signal everything it sees"
        with contextlib.suppress(ProcessLookupError):  # nothing but this process is left
            os.kill(-1, signum)  # atomic: nothing can be forked in the middle
        return count


def _tell(message: rpc.Message) -> None:
    sys.stdout.buffer.write(rpc.pack(message))
    sys.stdout.buffer.flush()


def _listen() -> socket.socket:
    """The address every cloud uses, where the container has it; otherwise one on the loopback device."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(METADATA_ADDRESS)
    except OSError:  # the network gave no such address, or the port needs a privilege
        listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    listener.setblocking(False)
    return listener


if __name__ == "__main__":
    asyncio.run(Init(sys.argv[1]).serve())
