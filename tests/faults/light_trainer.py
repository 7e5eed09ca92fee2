"""A trainer without torch: one rank a node, a step is a little work on the CPU, with all events a real one has.

`LIGHT_HURRY`: until this file exists it is in no hurry, so that whoever looks on has time.
"""

import hashlib
import os
import subprocess
import sys
import time

from harness.node.emitter import Emitter

WORK = bytes(1 << 20)
ROUNDS = 12  # about 10 ms of a free CPU
UNHURRIED_S = 0.1


def train(steps: int) -> None:
    rank = int(os.environ["CHAOS_NODE"].removeprefix("node"))
    emit = Emitter.open("trainer", rank=rank, local_rank=0, world_size=1)
    emit("started")
    emit.failpoint("rendezvous")
    emit("rendezvous", world_size=int(sys.argv[2]))
    emit("restored", step=0, source="scratch", fallback=[])
    ballast = bytearray(40 << 20)  # what makes this the largest process of its node
    begin_ns, hurry = time.monotonic_ns(), os.environ.get("LIGHT_HURRY")
    for step in range(1, steps + 1):
        emit.failpoint("next_batch")
        emit.failpoint("checkpoint.snapshot")
        emit.failpoint("all_reduce")
        if hurry and not os.path.exists(hurry):
            time.sleep(UNHURRIED_S)
        for _ in range(ROUNDS):
            hashlib.sha256(WORK).digest()
        begin_ns = emit("step", step=step, begin_ns=begin_ns, loss=1.0 / step)
    emit("exiting", code=0, reason="completed", step=len(ballast) * 0 + steps)


def supervise() -> None:
    """Starts the worker again until it succeeds."""
    for _ in range(20):
        if subprocess.run([sys.executable, "-S", __file__, *sys.argv[1:], "worker"]).returncode == 0:
            return
    sys.exit(1)


if __name__ == "__main__":
    train(int(sys.argv[1])) if sys.argv[-1] == "worker" else supervise()
