"""Keeps the CPU, the memory bandwidth or a GPU of a node busy, to simulate other users of the machine.

    burner KIND DESCRIPTOR NUMBER

`DESCRIPTOR` is an open file descriptor; its file holds one float, the average number of busy burner processes. For
example, if the file holds 1.5, burner 0 (by `NUMBER`) is always busy, and burner 1 is busy for half of each 20 ms.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

PERIOD_S = 0.02
BLOCK_BYTES = 16 * 2**20  # beyond the caches of most machines
LOAD = struct.Struct("d")


def burn_cpu() -> Callable[[], object]:
    block = bytes(64 * 1024)
    return lambda: hashlib.sha256(block).digest()


def burn_memory() -> Callable[[], object]:
    source, target = bytearray(BLOCK_BYTES), bytearray(BLOCK_BYTES)

    def copy() -> None:
        target[:] = source

    return copy


def burn_gpu() -> Callable[[], object]:
    # Only here, in a process of its own: the harness itself never loads it.
    torch: Any = importlib.import_module("torch")
    matrix = torch.ones(4096, 4096, device="cuda")

    def multiply() -> None:
        torch.mm(matrix, matrix)
        torch.cuda.synchronize()

    return multiply


KINDS: dict[str, Callable[[], Callable[[], object]]] = {"cpu": burn_cpu, "memory": burn_memory, "gpu": burn_gpu}


def main(kind: str, descriptor: int, number: int) -> None:
    burn = KINDS[kind]()
    while True:
        load = LOAD.unpack(os.pread(descriptor, LOAD.size, 0))[0]
        share = min(1.0, max(0.0, load - number))
        end = time.monotonic() + PERIOD_S
        busy_until = end - (1.0 - share) * PERIOD_S
        while time.monotonic() < busy_until:
            burn()
        time.sleep(max(0.0, end - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
