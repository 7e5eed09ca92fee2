"""Computes a running job's GPU time by account (such as `productive`) from its log so far, in a separate process.

The separate process runs the judge's own code, so that the loop that watches the job need not wait. If `SINCE` names an
event of the harness, the output also has the GPU time since the first such event.

    python -m harness.campaign.ledger_so_far RUN_DIR FAULT_FREE [SINCE]      prints one JSON object
"""

import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from harness.errors import ChaosError
from harness.evidence.logs import Evidence, beside
from harness.judge.facts.analysis import Analysis
from harness.log import reading
from harness.node import kernel
from harness.report.figures import price_per_gpu_hour
from harness.timeline import timeline
from harness.timeline.timeline import Timeline
from harness.timeline.window import narrowed

S = 1_000_000_000
CPU_LIMIT_S = 120
LIMIT_S = 900  # seconds; a process of low priority waits long for busy CPUs
MEMORY_BYTES_MAX = 4 * 2**30  # bytes, about twenty million steps
SOURCE = pathlib.Path(__file__).resolve().parents[2]  # this harness, whatever lies in the current folder


def ask(run_dir: pathlib.Path, fault_free: pathlib.Path | None = None, since: str = "") -> dict[str, Any] | None:
    """Returns the GPU time of a running job by account (such as `productive`), or `None` if it cannot be computed.
    `fault_free` is the folder with the fault-free runs, if the run's own folder does not hold them yet."""
    folders = [str(folder.resolve()) for folder in (run_dir, fault_free or run_dir)]
    command = [sys.executable, "-m", "harness.campaign.ledger_so_far", *folders, *filter(None, [since])]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, cwd=SOURCE)
        told = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return told if isinstance(told, dict) else None


def so_far(run_dir: pathlib.Path, fault_free: pathlib.Path, since: str = "") -> dict[str, Any]:
    """Returns a running job's GPU-seconds by account (such as `productive`), and the CPU time of this computation.
    Raises `ChaosError` for an unreadable log."""
    at = time.time()
    log = reading.read(run_dir / "events")
    events = log.harness.events if log.harness else []
    if first(events, "run.finished") is None:  # the GPU time of a hanging job runs on, though it writes nothing
        events.append({"event": "ledger.asked", "at": time.monotonic_ns()})
    evidence = beside(_without_the_step_under_way(timeline.build(log)), fault_free)
    told = booked(evidence)
    from_then = first(events, since) if since else None
    apart = {} if from_then is None else {"since": booked(evidence, from_then)}
    return told | apart | {"at": at, "cpu_s": time.process_time()}


def booked(evidence: Evidence, since: int | None = None) -> dict[str, Any]:
    if since is not None:
        part = narrowed(evidence.run, since)
        own = replace(part.beside, job=part.beside.job or evidence.run)
        evidence = replace(evidence, run=replace(part, beside=own))
    return as_told(Analysis.of(evidence))


def as_told(evidence: Analysis) -> dict[str, Any]:
    """Returns a job's GPU-seconds by account, its goodput (0 to 1), and the GPU-seconds that it wasted."""
    ledger, price = evidence.ledger, price_per_gpu_hour(evidence.run)
    wasted, productive = ledger.wasted / S, ledger.accounts["productive"]
    return {
        "accounts": {name: amount / S for name, amount in ledger.accounts.items()},
        "allocated": ledger.allocated / S,
        "goodput": productive / ledger.allocated if ledger.allocated else None,
        "wasted_all": wasted,
        "wasted_faults": ledger.wasted_by_faults / S,
        "dollars": None if price is None else price * wasted / 3600,
    }


def first(events: Iterable[Mapping[str, Any]], name: str) -> int | None:
    """Returns the time of the first event with this name, or `None` without one. Skips events with `ok: false`."""
    return min((event["at"] for event in events if event["event"] == name and event.get("ok", True)), default=None)


def _without_the_step_under_way(run: Timeline) -> Timeline:
    """Removes a running job's unfinished step, which may still complete or be lost."""
    last = run.segments[-1] if run.segments else None
    if last is None or last.phase != "interrupted_step" or any(each.t_regained is None for each in run.episodes):
        return run
    before = (each for each in run.slots if each.allocated < last.begin)
    slots = [replace(each, released=min(each.released, last.begin)) for each in before]
    return replace(run, slots=slots, segments=run.segments[:-1], end=last.begin)


def main() -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    os.nice(19)
    run_dir = pathlib.Path(sys.argv[1])
    try:
        told = so_far(run_dir, pathlib.Path(sys.argv[2]), *sys.argv[3:])
    except (ChaosError, OSError, MemoryError) as error:
        sys.exit(f"the ledger cannot be worked out: {error}")
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
