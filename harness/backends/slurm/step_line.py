"""A process of ours on a node of the job, started by `srun --overlap`, and calls to it over its input and output."""

from __future__ import annotations

import pathlib
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from harness.backends.agent import boot, rpc
from harness.backends.slurm.engine import Slurm
from harness.errors import BackendError

READY_S_MAX = 20.0
CALL_S_MAX = 10.0
END_S_MAX = 5.0


class StepLine:
    """Its end, whoever ends it, is the end of the process there. `ready` is the first thing that the process said."""

    def __init__(
        self,
        slurm: Slurm,
        where: Sequence[str],
        source: str,
        module: str,
        arguments: Sequence[str],
        errors: pathlib.Path,
    ):
        """`where`: options of srun that name job and node; `source`: what was delivered there.

        Raises `BackendError` when it does not come up.
        """
        self.ready: rpc.Message = {}
        self._came_up, self._ended = threading.Event(), threading.Event()
        ours, theirs = socket.socketpair()
        options = ("--overlap", "--ntasks=1", "--mem=0", "--export=NONE", "--mpi=none", "--chdir=/", "--unbuffered")
        program = boot.command(sys.executable, source, module, arguments)
        with theirs, errors.open("ab") as log:
            self._process = slurm.begin("srun", *where, *options, *program, link=theirs, errors=log)
        self._client = rpc.Line(ours, self._take, self._note_end)
        if not self._came_up.wait(READY_S_MAX) or self.ended:
            self.close()
            text = errors.read_text(errors="replace").strip()
            raise BackendError(f"srun: {text.splitlines()[-1][:300] if text else 'no answer'}")

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def call(self, method: str, limit_s: float = CALL_S_MAX, **params: Any) -> Any:
        return self._client.call(method, limit_s, **params)

    def close(self) -> None:
        self._client.close()
        try:
            self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _take(self, event: rpc.Message) -> None:
        self.ready = event
        self._came_up.set()

    def _note_end(self) -> None:
        self._ended.set()
        self._came_up.set()
