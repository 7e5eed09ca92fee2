"""Lists a node's RDMA devices, and disturbs the RDMA traffic of its processes by a C library.

The C library is loaded into every process of the node from the start, and reads the node's fault settings every few
milliseconds. Processes write their counts of RDMA requests to files. RDMA devices, drivers and processes outside of the
node are not affected.
"""

from __future__ import annotations

import pathlib
import re
import struct
from dataclasses import dataclass
from typing import Any

from harness.node import boot, compiling

SOURCE = pathlib.Path(__file__).with_name("rdma.c")
FOLDER = "rdma"  # below the run's
LIBRARY = "libchaos-rdma.so"
SYSFS = pathlib.Path("/sys")
HOW = ("nothing", "delay", "error", "port_down")  # by the numbers of `rdma.c`
LINE = 80  # bytes of a line of counts there
COUNTS = "rdma-"  # the name of a process's file of counts begins so
_NUMBER = re.compile(r"[0-9]{19}")
_ORDER = struct.Struct("=qq")


@dataclass(frozen=True)
class Counts:
    """A process's RDMA counts: requests posted to its device, requests disturbed by a fault (`struck`), the total
    seconds that disturbed requests waited, and queries of a port that were answered with "down"."""

    posted: int = 0
    struck: int = 0
    waited_s: float = 0.0
    queries: int = 0

    def __add__(self, other: Counts) -> Counts:
        waited_s = self.waited_s + other.waited_s
        return Counts(self.posted + other.posted, self.struck + other.struck, waited_s, self.queries + other.queries)


def look(sysfs: pathlib.Path | None = None) -> dict[str, Any]:
    root = sysfs or SYSFS
    ports = root.glob("class/infiniband/*/ports/*/state")
    active = {file.parts[-4] for file in ports if "ACTIVE" in _read(file)}
    gpus = any((root / driver).exists() for driver in ("module/nvidia", "class/kfd"))
    return {"devices": sorted(active), "gpus": gpus}


def _read(file: pathlib.Path) -> str:
    try:
        return file.read_text()
    except OSError:  # a device that went away just now
        return ""


def prepare(run_dir: pathlib.Path) -> dict[str, str]:
    """Builds the library that disturbs RDMA, and returns the environment variables that processes of nodes need. Raises
    `CannotRunError` if there is no C compiler."""
    folder = run_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    compiling.build(folder / LIBRARY, "-fvisibility=hidden", "-Wall", str(SOURCE), "-ldl")
    return {boot.RDMA_ENV: str(folder)}


def order(run_dir: pathlib.Path, node: str, how: str, delay_s: float = 0.0) -> None:
    """Sets how the RDMA traffic of the node's processes is disturbed from now on. `how` is one of `HOW`."""
    fresh = run_dir / FOLDER / f".{node}.new"
    fresh.write_bytes(_ORDER.pack(HOW.index(how), round(delay_s * 1e9)))
    fresh.chmod(0o644)
    fresh.replace(run_dir / FOLDER / node)


def counts(last_lines: str) -> Counts:
    """Returns a process's newest RDMA counts from the last lines of its file, or zeros if the file has no counts."""
    fields = last_lines[-LINE:].split()
    if len(fields) != 4 or not last_lines.endswith("\n") or not all(map(_NUMBER.fullmatch, fields)):
        return Counts()
    posted, struck, waited_ns, queries = map(int, fields)
    return Counts(posted, struck, waited_ns / 1e9, queries)
