"""`make kills`: kills runs at random moments and counts what is left once `chaos heal` has been called.

    python -m kills [--count 200] [--seed 1] [--backends local,docker,slurm,kubernetes]

Each time a run with network, CPU and storage faults is started and SIGKILLed at a random moment, in one of three ways:
the harness alone, its whole process group, or the harness together with its reverter and the keeper of its lab, so
that nobody is left to clean up. Exits 1 if anything was left, with a list of it.
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import yaml
from conformance.places import PLACES, WORKER, Place, fuse_mounts_below
from waiting import HANG_S

from harness.node import processes
from harness.trainers.shared.placeholders import escaped

ROOT = pathlib.Path(__file__).resolve().parents[2]
WAYS = ("harness", "group", "everybody")
STEPS = 600
MOMENT_S_MAX = 8.0


def fault(identity: str, kind: str, after: str, node: int, **parameters: object) -> dict[str, object]:
    return {"id": identity, "fault": kind, "when": {"after": after}, "target": {"node": node}} | parameters


LOSS = fault("loss", "nic_loss", "1s", 0, loss_percent=5, duration="9s")
SLOW = fault("slow", "straggler", "2s", 1, duration="9s")
DISK = fault("disk", "storage_slow", "1s", 0, latency="5ms", duration="9s")
STOP = fault("stop", "partition", "2s", 1, duration="9s")
GONE = fault("stop", "node_loss", "4s", 1, replacement={"after": "4s"})
TAKEN = fault("taken", "preemption", "4s", 0, notice="2s", via="engine", replacement={"after": "4s"})
FAULTS = {"local": [LOSS, SLOW, DISK], "docker": [LOSS, STOP], "slurm": [GONE], "kubernetes": [SLOW, TAKEN]}


@dataclass(frozen=True)
class Kill:
    """One kill: of what, when (seconds after the run began), whether a run was there, what was left after healing."""

    backend: str
    way: str
    moment_s: float
    acted: bool
    left: list[str]


def write_scenario(folder: pathlib.Path, backend: str) -> pathlib.Path:
    path = folder / f"kills-{backend}.yaml"
    command = ["{python}", "-S", "-c", escaped(WORKER), str(STEPS), "0", "{run_dir}/checkpoints"]
    document = {
        "version": 1,
        "name": f"kills-{backend}",
        "title": "A run that is killed",
        "workload": {"trainer": {"command": command}, "nodes": 2, "steps": STEPS},
        "faults": FAULTS[backend],
        "expect": {},
        "abort": {"if_no_step_for": "10m", "wall_clock": "10m"},
    }
    path.write_text(yaml.safe_dump(document))
    return path


def kill_once(place: Place, way: str, moment_s: float, reports: pathlib.Path) -> Kill:
    """Starts a run, kills it, heals, and looks for what is left."""
    before = run_ids(reports)
    harness = start(place, reports)
    deadline = time.monotonic() + HANG_S
    while run_ids(reports) == before and harness.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(moment_s)
    acted = harness.poll() is None and run_ids(reports) != before
    strike(harness, way, reports)
    harness.wait()
    heal(reports)
    left = settled(place, run_ids(reports) - before, reports)
    return Kill(place.backend_name, way, moment_s, acted, left)


def start(place: Place, reports: pathlib.Path) -> subprocess.Popen[bytes]:
    scenario = write_scenario(reports, place.backend_name)
    with open(reports / "harness.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "harness", "run", str(scenario), "--backend", place.backend_name],
            env=os.environ | {"CHAOS_REPORTS": str(reports), "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def strike(harness: subprocess.Popen[bytes], way: str, reports: pathlib.Path) -> None:
    with contextlib.suppress(ProcessLookupError):
        if way == "group":
            os.killpg(harness.pid, signal.SIGKILL)
        if way == "everybody":
            guards = list(guards_of(reports))
            harness.send_signal(signal.SIGSTOP)
            for process in guards:
                process.signal(signal.SIGKILL)
        harness.kill()


def guards_of(reports: pathlib.Path) -> Iterator[processes.ProcEntry]:
    """The reverters of the runs below this folder, and the keepers of their labs."""
    ids = run_ids(reports)
    for process in processes.every():
        with contextlib.suppress(OSError):
            words = pathlib.Path(f"/proc/{process.pid}/cmdline").read_bytes()
            marks = processes.environment(process.pid)
            ours = marks.get("CHAOS_RUN_ID") in ids and marks.get("CHAOS_NODE") == "lab"
            if ours or (b"harness.run.undo" in words and str(reports).encode() in words):
                yield process


def run_ids(reports: pathlib.Path) -> set[str]:
    found = set()
    for plan in [*reports.glob("*/plan.json"), *reports.glob(".*/*/plan.json")]:
        with contextlib.suppress(OSError, ValueError, KeyError):  # it is being written
            found.add(_run_id(plan))
    return found


@functools.cache
def _run_id(plan: pathlib.Path) -> str:
    return str(json.loads(plan.read_text())["run_id"])


def heal(reports: pathlib.Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "harness", "heal"],
        env=os.environ | {"CHAOS_REPORTS": str(reports), "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        timeout=HANG_S,
        check=False,
        capture_output=True,
    )


def settled(place: Place, runs: set[str], reports: pathlib.Path) -> list[str]:
    """What is left once everything that ends by itself had time for it: a process that was just killed, say."""
    deadline = time.monotonic() + HANG_S
    while True:
        left = [each for run in runs for each in place.left_of(run)] + fuse_mounts_below(reports)
        left += [f"process {each.pid}" for each in guards_of(reports)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def rehearse(count: int, seed: int, backends: list[str], reports: pathlib.Path) -> list[Kill]:
    """`count` kills, in turn over the backends and the ways; moments by the seed."""
    places = [next(place for place in PLACES if place.backend_name == name) for name in backends]
    for place in places:  # makes the fault-free run, which is kept: from then on it is runs with faults that are killed
        start(place, reports).wait(HANG_S)
        told = [path.read_text() for path in reports.glob(f"kills-{place.backend_name}-*/events/harness.jsonl")]
        assert told and '"event":"fault.effect"' in told[0], (reports / "harness.log").read_text()
    dice = random.Random(seed)
    kills = []
    for number in range(count):
        place, way = places[number % len(places)], WAYS[number // len(places) % len(WAYS)]
        kill = kill_once(place, way, dice.uniform(0.0, MOMENT_S_MAX), reports)
        seen = "; ".join(kill.left) or "nothing left"
        seen = seen if kill.acted else f"no run was there to kill; {seen}"
        print(f"{number + 1}/{count} {kill.backend}, {kill.way}, {kill.moment_s:.2f} s: {seen}", flush=True)
        kills.append(kill)
    return kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backends", default="local")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos-kills-") as folder:
        kills = rehearse(arguments.count, arguments.seed, arguments.backends.split(","), pathlib.Path(folder))
    bad, idle = [kill for kill in kills if kill.left], [kill for kill in kills if not kill.acted]
    print(f"{len(kills)} kills, something left after {len(bad)} of them, {len(idle)} without a run to kill")
    sys.exit(1 if bad or idle else 0)


if __name__ == "__main__":
    main()
