"""Measures each node for `chaos preflight`. This program runs in the trainer's own Python, and imports only the
standard library, torch, and the harness's event logger, which is copied to every node.

The process that the engine starts examines the node without torch, and starts a process for each rank. The rank
processes check their torch installation, form a process group, and measure together. The results are logged as
`preflight` events."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import importlib
import itertools
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from harness.node.emitter import Emitter, nvml

PORT = 29400
PATIENCE_S = 120.0  # for the others, and for one operation with them
PATH_S = 10.0  # so long a path may take to answer: a dead file server never does
ENTRIES_MAX = 1000
SETTINGS = ("NCCL_", "TORCH_", "OMP_", "GLOO_", "FI_", "UCX_")
OWN_SETTINGS = ("NCCL_HOSTID",)  # of one node, on purpose

COMPUTE_S, WINDOW_S, STEP_S = 7.0, 1.0, 0.04
CLOCK_LOOKS = 12
ALONE_NODES = 8  # so many nodes take turns; more of them measure at the same time
LINK_S, LOOKS, LINK_BYTES_MAX, LINKS_S = 0.25, 3, 2**30, 90.0
AGAIN, AGAIN_AFTER_S = 2, 5.0  # so often, and so long after, what seems slow is measured again: a host may be busy
SLOW_RANK, SLOW_LINK = 0.75, 0.65  # of the fastest: less than this is measured again
SIZES = (2**16, 2**20, 2**22, 2**24, 2**26, 2**28)
SIZE_S, SIZE_TIMES, NEXT_SIZE_S = 1.5, 8, 3.0
STORED_BYTES, STORED_S, BLOCK, FILES = 64 * 2**20, 5.0, 4 * 2**20, 64


class Job:
    def __init__(self, options: argparse.Namespace, torch: Any, tell: Callable[..., None]):
        self.options, self.torch, self.tell = options, torch, tell
        self.nodes, self.ranks, self.local = options.nodes, options.ranks, options.local_rank
        self.node, self.size = options.index, options.nodes * options.ranks
        self.rank = self.node * self.ranks + self.local
        self.dist = importlib.import_module("torch.distributed")
        self.gpu = torch.cuda.is_available()
        self.device = f"cuda:{self.local % torch.cuda.device_count()}" if self.gpu else "cpu"
        if self.gpu:
            torch.cuda.set_device(self.device)
        torch.set_num_threads(1)

    def meet(self) -> None:
        how: dict[str, Any] = {
            "rank": self.rank,
            "world_size": self.size,
            "timeout": datetime.timedelta(seconds=PATIENCE_S),
        }
        self.dist.init_process_group("gloo", init_method=f"tcp://{self.options.head}:{PORT}", **how)
        self.fast = self.group(range(self.size))

    def group(self, ranks: Any) -> Any:
        """Makes a process group of these ranks. All ranks must call this method, also ranks that are not in the
        group."""
        return self.dist.new_group(
            list(ranks), backend="nccl" if self.gpu else "gloo", timeout=datetime.timedelta(seconds=PATIENCE_S)
        )

    def any(self, mine: bool) -> bool:
        """Returns True if `mine` is True on any rank. All ranks must call this method, and wait for each other."""
        told = self.torch.tensor([int(mine)])
        self.dist.all_reduce(told, op=self.dist.ReduceOp.MAX)
        return bool(told.item())

    def most(self, mine: float) -> float:
        """Returns the largest value of `mine` on any rank. All ranks must call this method, and wait for each other."""
        told = self.torch.tensor([mine], dtype=self.torch.float64)
        self.dist.all_reduce(told, op=self.dist.ReduceOp.MAX)
        return float(told.item())

    def settle(self) -> None:
        if self.gpu:
            self.torch.cuda.synchronize()


def compute(job: Job, emit: Emitter) -> None:
    """Repeats the same matrix product on each rank, and logs the average speed about once a second."""
    side = 4096 if job.gpu else 256
    matrix = job.torch.rand(side, side, device=job.device, dtype=job.torch.float16 if job.gpu else job.torch.float32)

    def work(times: int) -> float:
        begin = time.perf_counter()
        for _ in range(times):
            job.torch.mm(matrix, matrix)
        job.settle()
        return time.perf_counter() - begin

    work(2)
    times = job.torch.tensor([max(1, round(4 * STEP_S / max(work(4), 1e-6)))])
    job.dist.broadcast(times, 0)
    steps, again = itertools.count(1), 0
    best = _windows(job, emit, work, int(times), 2 * side**3, steps)
    while again < AGAIN and job.any(statistics.median(best) < SLOW_RANK * job.most(statistics.median(best))):
        again += 1
        _once_more(emit, "compute")
        best = max(best, _windows(job, emit, work, int(times), 2 * side**3, steps), key=statistics.median)
    job.tell("compute", flops=best, again=again)


def _once_more(emit: Emitter, stage: str) -> None:
    emit("phase", name=f"preflight.{stage}.again", edge="begin")
    time.sleep(AGAIN_AFTER_S)


def _windows(
    job: Job, emit: Emitter, work: Callable[[int], float], times: int, flop: int, steps: Iterator[int]
) -> list[float]:
    windows, spent, done, begin, opened = [], 0.0, 0, time.monotonic(), time.monotonic()
    for step in steps:
        begin_ns = time.monotonic_ns()
        spent, done = spent + work(times), done + times
        now = time.monotonic()
        over = job.any(job.rank == 0 and now - begin > COMPUTE_S)
        emit("step", step=step, begin_ns=begin_ns)
        if now - opened >= WINDOW_S:
            windows.append(flop * done / spent)
            spent, done, opened = 0.0, 0, time.monotonic()
        if over:
            break
    return windows[1:] or windows  # while the first one passes, the others are still warming up


def clocks(job: Job, emit: Emitter) -> None:
    """Measures by how many seconds each node's wall clock differs from the first node's, by messages in both
    directions."""
    moment, offsets = job.torch.zeros(1, dtype=job.torch.float64), []
    for other in range(job.ranks, job.size, job.ranks):
        looks = []
        for _ in range(CLOCK_LOOKS):
            if job.rank == 0:
                begin = time.time()
                job.dist.send(moment, other)
                job.dist.recv(moment, other)
                end = time.time()
                looks.append((end - begin, moment.item() - (begin + end) / 2))
            elif job.rank == other:
                job.dist.recv(moment, 0)
                moment[0] = time.time()
                job.dist.send(moment, 0)
        if looks:
            waited, offset = min(looks)
            offsets.append([other // job.ranks, offset, waited / 2])
    if job.rank == 0:
        job.tell("clocks", offsets=offsets)


def tournament(count: int) -> Iterator[list[tuple[int, int]]]:
    """Yields rounds of pairs, in which each of `count` ranks meets every other rank once."""
    places: list[int | None] = [*range(count), *[None] * (count % 2)]
    half = len(places) // 2
    for _ in range(len(places) - 1):
        paired = [(places[number], places[-1 - number]) for number in range(half)]
        yield [(a, b) for a, b in paired if a is not None and b is not None]
        places.insert(1, places.pop())


def rounds(nodes: int, ranks: int) -> list[list[tuple[int, int]]]:
    """Returns rounds of rank pairs; the pairs of a round are measured at the same time. Pairs within nodes come first,
    then pairs with equal local ranks on two nodes, because each GPU may have its own network card."""
    firsts = range(0, nodes * ranks, ranks)
    within = [[(first + a, first + b) for first in firsts for a, b in pairs] for pairs in tournament(ranks)]
    between = [[(a * ranks + own, b * ranks + own) for a, b in p] for p in tournament(nodes) for own in range(ranks)]
    if nodes <= ALONE_NODES:
        between = [[pair] for pairs in between for pair in pairs]
    return [pairs for pairs in (*within, *between) if pairs]


def links(job: Job, emit: Emitter) -> None:
    """Measures the speed of links from each rank to other ranks in bytes per second, until the time limit. Slow links
    are measured again, and the faster measurement counts, because a busy host may have slowed the other."""
    planned, begin, found = rounds(job.nodes, job.ranks), time.monotonic(), dict[int, float]()
    message = job.torch.ones(32 * 2**20 if job.gpu else 2**20, dtype=job.torch.uint8, device=job.device)
    done = 0
    for number, pairs in enumerate(planned + planned):
        if job.any(job.rank == 0 and time.monotonic() - begin > LINKS_S):
            if job.rank == 0 and number < len(planned):
                job.tell("links_left", left=sum(map(len, planned[number:])))
            break
        _measure(job, message, pairs, found)
        done = number + 1
    again = 0
    while again < AGAIN and (slow := _slow_rounds(job, planned[:done], found)):
        again += 1
        _once_more(emit, "links")
        begin = time.monotonic()
        for pairs in slow:
            if not job.any(job.rank == 0 and time.monotonic() - begin > LINKS_S / 2):
                _measure(job, message, pairs, found)
    job.tell("links", to=list(found.items()), again=again)


def _measure(job: Job, message: Any, pairs: list[tuple[int, int]], found: dict[int, float]) -> None:
    for a, b in (pair for pair in pairs if job.rank in pair):
        for sender, receiver in ((a, b), (b, a)):
            if job.rank == sender:
                found[receiver] = max(_send(job, message, receiver), found.get(receiver, 0.0))
            else:
                _receive(job, message, sender)


def _slow_rounds(
    job: Job, planned: list[list[tuple[int, int]]], found: dict[int, float]
) -> list[list[tuple[int, int]]]:
    slow = set[int]()
    for within in (True, False):
        mine = {to: speed for to, speed in found.items() if (to // job.ranks == job.node) is within}
        most = job.most(max(mine.values(), default=0.0))
        slow |= {to for to, speed in mine.items() if speed < SLOW_LINK * most}
    return [pairs for pairs in planned if job.any(any(job.rank in (a, b) and slow & {a, b} for a, b in pairs))]


def _send(job: Job, message: Any, to: int) -> float:
    count, many, best, looks = job.torch.zeros(1, dtype=job.torch.int64, device=job.device), 1, 0.0, 0
    while looks < LOOKS:
        count[0], begin = many, time.perf_counter()
        job.dist.send(count, to, group=job.fast)
        for _ in range(many):
            job.dist.send(message, to, group=job.fast)
        job.dist.recv(count, to, group=job.fast)
        count.item()  # waits for the GPU, too
        took = time.perf_counter() - begin
        if took >= LINK_S or many * message.numel() >= LINK_BYTES_MAX:
            best, looks = max(best, many * message.numel() / took), looks + (1 if took < 4 * LINK_S else LOOKS)
        else:
            many = min(8 * many, math.ceil(1.3 * many * LINK_S / took))
    count[0] = 0
    job.dist.send(count, to, group=job.fast)
    return best


def _receive(job: Job, message: Any, sender: int) -> None:
    count = job.torch.zeros(1, dtype=job.torch.int64, device=job.device)
    while True:
        job.dist.recv(count, sender, group=job.fast)
        if not count.item():
            return
        for _ in range(int(count.item())):
            job.dist.recv(message, sender, group=job.fast)
        job.dist.send(count, sender, group=job.fast)


def all_reduce(job: Job, emit: Emitter) -> None:
    """Measures all-reduces of several sizes: of all ranks, of the ranks of a node, and of one rank of each node."""
    _reduce(job, "all", job.fast, job.size, 0)
    if job.ranks == 1:
        return
    within = [job.group(range(first, first + job.ranks)) for first in range(0, job.size, job.ranks)]
    between = [job.group(range(own, job.size, job.ranks)) for own in range(job.ranks)]
    _reduce(job, "within", within[job.node], job.ranks, job.node * job.ranks)
    _reduce(job, "between", between[job.local], job.nodes, job.local)


def _reduce(job: Job, which: str, group: Any, ranks: int, first: int) -> None:
    found: list[list[float]] = []
    for size in SIZES if ranks > 1 else ():
        tensor, times = job.torch.ones(size // 4, device=job.device), list[float]()
        job.dist.all_reduce(tensor, group=group)
        begin = time.monotonic()
        while True:
            job.settle()
            job.any(False)  # all begin together
            at = time.perf_counter()
            job.dist.all_reduce(tensor, group=group)
            job.settle()
            times.append(time.perf_counter() - at)
            enough = time.monotonic() - begin > SIZE_S or len(times) >= SIZE_TIMES
            if job.any(job.rank == 0 and enough and len(times) > 1):
                break
        found.append([size, statistics.median(times)])
        if job.any(4 * found[-1][1] > NEXT_SIZE_S):
            break
    if job.rank == first and found:
        job.tell("all_reduce", which=which, ranks=ranks, times=found)


def storage(job: Job, emit: Emitter) -> None:
    """Measures how long it takes to write, sync, read and list files in the checkpoint folder. Up to `ALONE_NODES`
    nodes measure one after the other, and more nodes measure at the same time."""
    turns = job.nodes if job.nodes <= ALONE_NODES else 1
    for turn in range(turns):
        if job.local == 0 and turn == job.node % turns:
            folder = pathlib.Path(job.options.saves, f".preflight-{job.node}-{os.getpid()}")
            job.tell("storage", **stored(folder))
        job.any(False)


def stored(folder: pathlib.Path) -> dict[str, Any]:
    looks = list[dict[str, Any]]()
    while len(looks) < LOOKS:
        looks.append(told := _stored(folder))
        if not (told.get("same") and told.get("listed")):
            return told
        if told["write_s"] + told["fsync_s"] + told["read_s"] > STORED_S / LOOKS:
            break
    best = min(looks, key=lambda each: each["write_s"] + each["fsync_s"])
    return best | {"read_s": min(each["read_s"] for each in looks)}


def _stored(folder: pathlib.Path) -> dict[str, Any]:
    block, done, told = os.urandom(BLOCK), 0, dict[str, Any]()
    file, doing = folder / "file", "making a folder"
    try:
        folder.mkdir(parents=True)
        doing, begin = "writing", time.perf_counter()
        with open(file, "wb", buffering=0) as target:
            while done < STORED_BYTES and time.perf_counter() - begin < STORED_S:
                done += target.write(block)
            told |= {"bytes": done, "write_s": time.perf_counter() - begin}
            doing, begin = "fsync", time.perf_counter()
            os.fsync(target.fileno())
            told["fsync_s"] = time.perf_counter() - begin
            with contextlib.suppress(OSError):
                os.posix_fadvise(target.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        doing, begin, same = "reading", time.perf_counter(), 0
        with open(file, "rb", buffering=0) as source:
            while part := source.read(BLOCK):
                same += len(part) if part == block[: len(part)] else 0
        told |= {"read_s": time.perf_counter() - begin, "same": same == done}
        doing = "making files"
        for number in range(FILES):
            (folder / str(number)).touch()
        doing, begin = "listing", time.perf_counter()
        told["listed"] = len(os.listdir(folder)) == FILES + 1
        told["list_s"] = time.perf_counter() - begin
    except OSError as error:
        told["error"] = f"{doing}: {error.strerror}"
    with contextlib.suppress(OSError):
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()
    return told


STAGES = {"compute": compute, "clocks": clocks, "links": links, "all_reduce": all_reduce, "storage": storage}


def look(options: argparse.Namespace) -> dict[str, Any]:
    own = {name: value for name, value in os.environ.items() if name.startswith(SETTINGS) and name not in OWN_SETTINGS}
    memory = _first_line("/proc/meminfo", "MemTotal").split()
    unwell = nvml.unwell(PATH_S)
    driver = (nvml.facts().get("driver") if not unwell else None) or _first_line(
        "/proc/driver/nvidia/version", "NVRM"
    ).partition("Module")[2]
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "driver": " ".join(driver.split()[:1]),
        "cpu": _first_line("/proc/cpuinfo", "model name"),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": int(memory[0]) * 1024 if memory else 0,
        "gpus_unwell": unwell,
        "unset": [name for name in options.variable if name not in os.environ],
        "settings": {name: hashlib.sha256(value.encode()).hexdigest()[:12] for name, value in own.items()},
        "links": dict(_link_speeds()),
        "paths": {path: path_seen(path) for path in options.path},
    }


def _first_line(file: str, begin: str) -> str:
    with contextlib.suppress(OSError), open(file, errors="replace") as lines:
        return next((line.partition(":")[2].strip() for line in lines if line.startswith(begin)), "")
    return ""


def _link_speeds() -> Iterator[tuple[str, int]]:
    """Yields the name and the speed in Mbit/s of each network card, but not of virtual cards."""
    for card in sorted(pathlib.Path("/sys/class/net").glob("*")):
        with contextlib.suppress(OSError, ValueError):
            speed = int((card / "speed").read_text())
            if speed > 0 and (card / "device").exists():
                yield card.name, speed


def path_seen(path: str) -> dict[str, Any]:
    """Returns what is at a path, such as a file or a mount. A separate thread looks at the path, because a file system
    may hang."""
    found: dict[str, Any] = {"kind": "stuck"}

    def ask() -> None:
        seen: dict[str, Any] = {"kind": "unseen"}
        try:
            seen["kind"] = "folder" if os.path.isdir(path) else "file" if os.stat(path) else ""
            seen["mount"], seen["filesystem"] = mount_of(os.path.realpath(path))
            if seen["kind"] == "folder":
                with os.scandir(path) as entries:
                    seen["entries"] = len(list(itertools.islice(entries, ENTRIES_MAX)))
            else:
                seen["bytes"] = os.path.getsize(path)
            room = os.statvfs(path)
            seen["free_bytes"] = room.f_bavail * room.f_frsize
        except (FileNotFoundError, NotADirectoryError):
            seen = {"kind": "absent"}
        except OSError as error:
            seen["error"] = error.strerror or str(error)
        found.update(seen)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATH_S)
    return dict(found)


def mount_of(path: str) -> tuple[str, str]:
    best = ("", "")
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", errors="replace") as lines:
        for line in lines:
            before, _, after = line.partition(" - ")
            point = before.split()[4].replace("\\040", " ")
            if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best[0]):
                best = point, after.split()[0]
    return best


def software(torch: Any) -> dict[str, Any]:
    told = {"torch": str(torch.__version__), "cuda": str(torch.version.cuda or ""), "gpus": torch.cuda.device_count()}
    if told["gpus"]:
        gpu = torch.cuda.get_device_properties(0)
        told |= {"gpu": gpu.name, "gpu_bytes": gpu.total_memory}
        with contextlib.suppress(Exception):
            told["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return told


def measure(options: argparse.Namespace) -> int:
    rank, size = options.index * options.ranks + options.local_rank, options.nodes * options.ranks
    emit = Emitter.open("trainer", rank=rank, local_rank=options.local_rank, world_size=size)
    emit("started")

    def tell(probe: str, **values: Any) -> None:
        emit("preflight", probe=probe, values=values)

    stage = "import of torch"
    try:
        torch = importlib.import_module("torch")
        tell("software", **software(torch))
        if not options.probes:
            return 0
        stage = "rendezvous"
        job = Job(options, torch, tell)
        job.meet()
        emit("rendezvous", world_size=size, world="preflight")
        for stage, probe in STAGES.items():
            if stage in options.probes.split(","):
                emit("phase", name=f"preflight.{stage}", edge="begin")
                probe(job, emit)
                job.any(False)
        job.dist.destroy_process_group()
    except Exception as error:
        tell("failed", stage=stage, error=f"{type(error).__name__}: {error}"[:500])
        return 1
    emit("exiting", code=0, reason="completed")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("index", "nodes", "ranks"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("head", "saves", "probes"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--local-rank", type=int)
    parser.add_argument("--path", action="append", default=[])
    parser.add_argument("--variable", action="append", default=[])
    options = parser.parse_args()
    if options.local_rank is not None:
        return measure(options)
    Emitter.open("agent")("preflight", probe="node", values=look(options))
    words = [sys.executable, *sys.argv, "--local-rank"]
    ranks = [subprocess.Popen([*words, str(number)]) for number in range(options.ranks)]
    return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
