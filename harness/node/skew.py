"""Gives a node its own wall clock: a C library in each of its processes adds an offset that it reads from a file.

The machine's clock does not change. Only programs that ask the C library for the time see the offset. File times (set
by the kernel), static binaries and monotonic clocks are not shifted.
"""

from __future__ import annotations

import functools
import os
import pathlib
import struct
import subprocess
import sys
import time
from collections.abc import Sequence

from harness.errors import CannotRunError
from harness.node import compiling, owner_names

SOURCE = pathlib.Path(__file__).with_name("skew.c")
PROBE_OFFSET_S = 7200
_OFFSET = struct.Struct("=q")


def _folder(run_dir: pathlib.Path) -> pathlib.Path:
    return run_dir / "clock"


def prepare(run_dir: pathlib.Path) -> dict[str, str]:
    """Builds the C library that shifts processes' wall clocks, and returns the environment variables that processes of
    nodes need. Raises `CannotRunError` if there is no C compiler."""
    folder = _folder(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libskew.so"
    compiling.build(library, str(SOURCE), "-ldl")
    return {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(folder)}


def make_offsets(run_dir: pathlib.Path, nodes: Sequence[str]) -> None:
    """Makes, for each node, the file with the clock offset, before the node's processes start. Does nothing in a run
    without a fault that skews clocks."""
    folder = _folder(run_dir)
    for node in nodes if folder.is_dir() else ():
        if not (folder / node).exists():
            set_offset(run_dir, node, 0.0)


def set_offset(run_dir: pathlib.Path, node: str, offset_s: float) -> None:
    """Sets the offset of the node's wall clock, also for running processes."""
    descriptor = os.open(_folder(run_dir) / node, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        file.write(_OFFSET.pack(round(offset_s * 1e9)))  # in place: it is mapped


@functools.cache
def why_not() -> str | None:
    """Tries to shift a process's wall clock on this machine. Returns the reason if that fails, else `None`."""
    code = "import time; print(time.time(), time.monotonic())"
    with owner_names.temporary_folder() as run_dir:
        try:
            marks = prepare(run_dir) | {"CHAOS_NODE": "probe"}
            set_offset(run_dir, "probe", PROBE_OFFSET_S)
            environment = os.environ | marks
            command = [sys.executable, "-S", "-c", code]
            limit_s = compiling.COMPILE_S_MAX
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit_s)
            wall_s, monotonic_s = map(float, done.stdout.split())
        except CannotRunError as error:
            return str(error)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return f"a library cannot be loaded into a process here: {error}"
    fooled = abs(wall_s - time.time() - PROBE_OFFSET_S) < 60 and abs(monotonic_s - time.monotonic()) < 60
    return None if fooled else "a library that is loaded into a process does not change its clock here"
