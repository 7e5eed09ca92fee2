"""Reads the state of GPUs as a given process of a node sees it, with the libraries and the environment of this
process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from typing import Any

from harness.errors import UsageError
from harness.node import boot, kernel, processes, spawn

TAIL_BYTES = 2**18


class GpuWatch:
    def __init__(self, children: spawn.Children):
        self._children = children
        self._pid = 0
        self._lines = -1

    def watch(self, pid: int | None) -> str | None:
        """Starts to read GPUs as process `pid` sees them; stops reading if `pid` is `None`. Returns the process's
        CUDA_VISIBLE_DEVICES."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        if self._lines >= 0:
            os.close(self._lines)
        self._pid, self._lines = 0, -1
        if pid is None:
            return None
        env = processes.environment(pid)
        if boot.GPU_ENV not in env:
            raise UsageError(f"process {pid} is gone, or was started without {boot.GPU_ENV}: it asks another library")
        self._lines = lines = os.memfd_create("gpus")
        command = boot.command(sys.executable, boot.place(), "harness.node.gpu_health")
        self._pid = started = spawn.fork(lambda: _become(command, env, lines), keep=(lines,))
        self._children.on_exit(started, lambda _: self._ended(started))
        return env.get("CUDA_VISIBLE_DEVICES")

    def newest(self) -> dict[str, Any]:
        if self._lines < 0:
            raise UsageError("nobody watches the GPUs of this node")
        size = os.fstat(self._lines).st_size
        text = os.pread(self._lines, TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")
        whole, _, rest = text.rpartition("\n")
        line = whole.rpartition("\n")[2]
        try:
            told = json.loads(line)
            age_s = (time.monotonic_ns() - told["at_ns"]) / 1e9
            return {"devices": told["devices"], "xids": told["xids"], "ours": told["ours"], "age_s": age_s, "error": ""}
        except (ValueError, KeyError, TypeError):
            error = (line or rest)[:300] or ("" if self._pid else "it ended without a word")
            return {"devices": [], "xids": [], "ours": False, "age_s": 0.0, "error": error}

    def _ended(self, pid: int) -> None:
        self._pid = 0 if self._pid == pid else self._pid


def _become(command: list[str], env: dict[str, str], lines: int) -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(lines, 1)
    os.dup2(lines, 2)
    os.execvpe(command[0], command, env)
