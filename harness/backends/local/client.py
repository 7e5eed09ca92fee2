"""Starts and calls labd, the daemon that holds this machine's virtual nodes."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from typing import IO

import harness.errors
from harness.errors import BackendError
from harness.node import processes, rpc

START_S_MAX = 60.0
END_S_MAX = 15.0

_ROOT = str(pathlib.Path(harness.errors.__file__).resolve().parent.parent)
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from harness.node.lab_daemon import main; main(sys.argv[2])"


def marks(run_id: str, node: str, incarnation: int) -> dict[str, str]:
    return {
        processes.RUN_ENV: run_id,
        processes.OWNER_ENV: processes.owner_text(),
        "CHAOS_NODE": node,
        "CHAOS_INCARNATION": str(incarnation),
    }


class LabClient(rpc.Line):
    """A connection to the daemon that holds the virtual nodes of a run; the virtual nodes end with the connection.
    `control` is the address of the host that runs the control command (usually the rendezvous store)."""

    def __init__(self, mode: str, run_id: str, log: pathlib.Path | None, on_event: rpc.OnEvent = lambda _: None):
        """Starts the virtual nodes' daemon. Raises `rpc.StageError` if the kernel refuses an operation that virtual
        nodes need, and `BackendError` if the daemon does not start."""
        self.mode = mode
        # Without a log labd's own messages go to a file that has no name and leaves nothing.
        with log.open("a+b") if log else tempfile.TemporaryFile() as output:
            super().__init__(_start(mode, run_id, output), on_event)
            try:
                if not self.wait_ready(START_S_MAX):
                    if not self.ended:
                        raise BackendError(f"the lab was not ready within {START_S_MAX:g} s")
                    output.seek(0)
                    text = output.read().decode(errors="replace").strip()
                    raise BackendError(f"the lab ended before it was ready: {text[-2000:] or 'no message'}")
            except BaseException:
                self.close()
                raise
        self.control: str = self.ready["control"]


def _start(mode: str, run_id: str, output: IO[bytes]) -> rpc.ChildStream:
    link, theirs = socket.socketpair()
    harness_pidfd = os.pidfd_open(os.getpid())
    try:
        spec = {"mode": mode, "run_id": run_id, "link": theirs.fileno(), "harness": harness_pidfd}
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", _BOOT, _ROOT, json.dumps(spec)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | marks(run_id, "lab", 1),
            pass_fds=(theirs.fileno(), harness_pidfd),
            start_new_session=True,  # Ctrl-C is for the harness, which then closes the lab
        )
    except OSError as error:
        link.close()
        raise BackendError(f"the lab cannot be started: {error}") from error
    finally:
        theirs.close()
        os.close(harness_pidfd)
    return rpc.ChildStream(link, process, END_S_MAX)  # where it does not end itself, labd dies with its keeper
