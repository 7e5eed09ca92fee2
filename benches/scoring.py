"""How long scoring takes at scale: 1,000 ranks × 10,000 steps with 20 restarts is ten million step events.

    python benches/scoring.py [--ranks 1000] [--steps 10000] [--restarts 20]

The log is generated first (about 3 GB for ten million events); only reading and judging it is timed.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import resource
import tempfile
import time

from harness.judge.score import Evidence, judge
from harness.timeline import timeline

MS = 1_000_000


def write_log(events: pathlib.Path, ranks: int, steps: int, restarts: int, gpus: int = 8) -> int:
    """A job that is killed `restarts` times and goes back half a checkpoint interval each time; returns its events."""
    events.mkdir(parents=True)
    nodes = max(1, ranks // gpus)
    now, first, count, harness = 0, 1, 0, _Log(events / "harness.jsonl", "harness", 0)
    workload = {"nodes": nodes, "min_nodes": nodes, "ranks_per_node": gpus, "steps": steps}
    faults = [{"id": f"kill{n}", "fault": "rank_kill", "targets": []} for n in range(restarts)]
    harness.log(0, "plan", plan={"workload": workload, "faults": faults, "expect": {"recovery_time": {"max": "60s"}}})
    for node in range(nodes):
        harness.log(0, "node.allocated", node=f"node{node}", incarnation=1, gpus=gpus)
    for attempt in range(restarts + 1):
        last = steps if attempt == restarts else (attempt + 1) * steps // (restarts + 1)
        for rank in range(ranks):
            count += _worker(events, now, rank, ranks, gpus, first, last, attempt, ended=attempt == restarts)
        now += (last - first + 1) * 100 * MS + 5000 * MS
        if attempt < restarts:
            targets = [{"node": "node0", "incarnation": 1, "rank": 0}]
            at = now - 2000 * MS  # a tenth of a second before the first worker ends over it
            harness.log(at, "fault.injected", fault=f"kill{attempt}", kind="rank_kill", targets=targets, kills=True)
            harness.log(at, "fault.effect", fault=f"kill{attempt}", measured=1, expected=1, unit="deaths", ok=True)
            first = max(1, last - 20)
    harness.log(now, "run.finished", outcome="completed", reason="")
    harness.close()
    return count


def _worker(
    events: pathlib.Path, now: int, rank: int, ranks: int, gpus: int, first: int, last: int, attempt: int, ended: bool
) -> int:
    node, local = divmod(rank, gpus)
    identity = {"node": f"node{node}", "incarnation": 1, "rank": rank, "local_rank": local, "world_size": ranks}
    log = _Log(
        events / f"trainer-node{node}.1-{rank}-{attempt}.jsonl", "trainer", now, pid=attempt * ranks + rank, **identity
    )
    log.log(now + 1000 * MS + rank, "rendezvous", world_size=ranks)
    log.log(now + 2000 * MS + rank, "restored", step=first - 1, source="checkpoint")
    begin = now + 2500 * MS
    for step in range(first, last + 1):
        end = begin + 100 * MS - (rank % 97) * 1000
        log.step(end, step, begin)
        begin = end
    log.log(begin + 600 * MS, "exiting", code=0 if ended else 1, reason="completed" if ended else "error")
    log.close()
    return last - first + 1


class _Log:
    def __init__(self, path: pathlib.Path, role: str, at: int, **identity: object):
        self.path, self.lines = path, list[str]()
        header = {"schema": 1, "writer": path.stem, "role": role, "host": "h", "clock": "c", "line": 0} | identity
        self.lines.append(json.dumps(header | {"wall_ns": 10**18 + at, "mono_ns": at}))

    def log(self, at: int, event: str, **fields: object) -> None:
        told = {"event": event} | fields | {"wall_ns": 10**18 + at, "mono_ns": at, "line": len(self.lines)}
        self.lines.append(json.dumps(told))

    def step(self, at: int, step: int, begin: int) -> None:
        self.lines.append(
            f'{{"event":"step","step":{step},"begin_ns":{begin},"loss":{2.1 + 1 / step!r},"grad_norm":{1 / step!r},'
            f'"lr":0.0003,"digest":"{step:016x}","first":{(step - 1) * 1024},"count":1024,"data_ns":100000,'
            f'"checkpoint_ns":0,"sync_ns":5000000,"wall_ns":{10**18 + at},"mono_ns":{at},"line":{len(self.lines)}}}'
        )

    def close(self) -> None:
        self.path.write_text("\n".join(self.lines) + "\n")


def _cpu_s() -> float:
    """Of this process and of those it has waited for: on a busy machine it says more than the clock on the wall."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in usage)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--restarts", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = pathlib.Path(folder)
        events = write_log(run_dir / "events", arguments.ranks, arguments.steps, arguments.restarts)
        begin, used = time.monotonic(), _cpu_s()
        run = timeline.load(run_dir)
        read = time.monotonic()
        card = judge(Evidence(run), "bench")
        end = time.monotonic()
    usage = [resource.getrusage(who).ru_maxrss / 2**20 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"{events:,} step events: read in {read - begin:.1f} s, judged in {end - read:.1f} s", end="")
    print(f" ({_cpu_s() - used:.1f} s of CPU in all), peak memory {usage[0]:.2f} GiB ", end="")
    print(f"(largest child {usage[1]:.2f}); {card.verdict}: {card.reasons[0]}")


if __name__ == "__main__":
    main()
