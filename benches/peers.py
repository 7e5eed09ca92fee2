"""Kills ranks at random moments: how many come back among their peers, after how long, and with the same bits?

    python benches/peers.py [KILLS] [RANKS] [AT_ONCE] [AGAIN]

AT_ONCE ranks are killed at a time. With AGAIN 1 one more is killed at a random moment of each recovery.
"""

from __future__ import annotations

import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from job import Job, Nursery, completed  # noqa: E402

PEER = ("--recovery", "peer", "--dropout", "0.1")
STEPS_A_KILL = 120
LIMIT_S = 60
RECOVERY_S = 0.3  # about


def kill(job: Job, victims: list[int]) -> None:
    workers = job.workers("a")
    for victim in victims:
        os.kill(workers[victim], signal.SIGKILL)


def new_step_of_all(job: Job, since_ns: int) -> int:
    """When the last rank ended its first step that began after this moment."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        ends = {each["rank"]: each["mono_ns"] for each in reversed(job.seen("step")) if each["begin_ns"] > since_ns}
        if len(ends) == job.nproc:
            return max(ends.values())
        time.sleep(0.01)
    raise TimeoutError(f"no new step within {LIMIT_S} s\n{job.output()}")


def main() -> None:
    kills, ranks, at_once, again = (int(each) for each in [*sys.argv[1:], *("20", "2", "1", "0")[len(sys.argv) - 1 :]])
    steps, chance, seconds = 100 + STEPS_A_KILL * kills, random.Random(kills), list[float]()
    nursery = Nursery()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        undisturbed = completed(nursery, folder / "undisturbed", steps, *PEER, nproc=ranks)
        with Job(nursery, folder / "job", steps, *PEER, nproc=ranks) as job:
            job.start("a")
            job.wait_for_step(1)
            for _ in range(kills):
                time.sleep(chance.uniform(0.4, 1.0))
                killed_ns = time.monotonic_ns()
                kill(job, chance.sample(range(ranks), at_once))
                if again:
                    time.sleep(chance.uniform(0, RECOVERY_S))
                    kill(job, [chance.randrange(ranks)])
                seconds.append((new_step_of_all(job, killed_ns) - killed_ns) / 1e9)
            code = job.code("a")
            restarts = sum(each["source"] not in ("peer", "scratch") for each in job.seen("restored", rank=0))
            same = sum(job.losses()[step] == loss for step, loss in undisturbed.losses().items())
    nursery.close()
    print(f"{ranks} ranks, {kills} times {at_once} killed{', and one more meanwhile' * again}: exit code {code}")
    print(f"{restarts} restarts from a checkpoint; {same} of {steps} losses are the same bit for bit")
    figures = f"median {statistics.median(seconds):.2f} s, from {min(seconds):.2f} to {max(seconds):.2f} s"
    print(f"from SIGKILL to a new step of every rank: {figures}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
