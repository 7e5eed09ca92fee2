"""The harness's side of a lab: starting labd, calling it, ending it."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import IO, Any

import harness.errors
from harness.backends.agent import processes, rpc
from harness.errors import BackendError

START_S_MAX = 20.0
END_S_MAX = 15.0

_ROOT = str(pathlib.Path(harness.errors.__file__).resolve().parent.parent)
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from harness.backends.agent.daemon import main; main(sys.argv[2])"


def marks(run_id: str, node: str, incarnation: int) -> dict[str, str]:
    """The environment variables by which a process of ours is known."""
    return {
        processes.RUN_ENV: run_id,
        processes.OWNER_ENV: processes.owner_text(),
        "CHAOS_NODE": node,
        "CHAOS_INCARNATION": str(incarnation),
    }


class LabClient:
    """A running lab. `control` is the address beside the nodes; `on_event` is called from a thread of the client."""

    def __init__(self, mode: str, run_id: str, log: pathlib.Path | None, on_event: Callable[[rpc.Message], None]):
        """Raises `rpc.StageError` where the kernel refuses, `BackendError` where labd does not come up."""
        self.mode = mode
        self.ended = False
        self._on_event = on_event
        with contextlib.ExitStack() as undo, _log(log) as output:
            link, theirs = socket.socketpair()
            undo.callback(link.close)
            with theirs:
                self._process = _start(mode, run_id, theirs, output)
            undo.callback(self._end_process)
            undo.callback(link.close)  # undone first: the end of the stream ends labd
            ready = _first_event(link, output)
            self.control: str = ready["control"]
            link.settimeout(None)
            self._client = rpc.Client(link, on_event, self._ended)
            undo.pop_all()

    def call(self, method: str, limit_s: float = 30.0, **params: Any) -> Any:
        return self._client.call(method, limit_s, **params)

    def close(self) -> None:
        """Ends the lab; every process in it is gone when this returns. Idempotent."""
        self._client.close()
        self._end_process()

    def _ended(self) -> None:
        self.ended = True
        self._on_event({"event": "ended"})

    def _end_process(self) -> None:
        try:
            self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()  # labd dies with its keeper
            self._process.wait(END_S_MAX)


def _log(path: pathlib.Path | None) -> IO[bytes]:
    """Where labd's own messages go; without a path, a file that has no name and leaves nothing."""
    return path.open("a+b") if path else tempfile.TemporaryFile()


def _start(mode: str, run_id: str, link: socket.socket, output: IO[bytes]) -> subprocess.Popen[bytes]:
    harness_pidfd = os.pidfd_open(os.getpid())
    try:
        spec = {"mode": mode, "run_id": run_id, "link": link.fileno(), "harness": harness_pidfd}
        return subprocess.Popen(
            [sys.executable, "-S", "-c", _BOOT, _ROOT, json.dumps(spec)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | marks(run_id, "lab", 1),
            pass_fds=(link.fileno(), harness_pidfd),
            start_new_session=True,  # Ctrl-C is for the harness, which then closes the lab
        )
    except OSError as error:
        raise BackendError(f"the lab cannot be started: {error}") from error
    finally:
        os.close(harness_pidfd)


def _first_event(link: socket.socket, output: IO[bytes]) -> rpc.Message:
    link.settimeout(START_S_MAX)
    try:
        event = rpc.receive(link)
    except TimeoutError as error:
        raise BackendError(f"the lab was not ready within {START_S_MAX:g} s") from error
    except ConnectionError as error:
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
        raise BackendError(f"the lab ended before it was ready: {text[-2000:] or 'no message'}") from error
    if event["event"] == "failed":
        raise rpc.to_error(event["error"])
    return event
