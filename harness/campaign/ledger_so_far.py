"""The ledger of a job that still runs, worked out from its log as it is now, in a process of its own.

    python -m harness.campaign.ledger_so_far RUN_DIR [FAULT_FREE]      prints one JSON object

It is the judge's own ledger: no second definition of an account. The job's loop does not wait for it.
"""

from __future__ import annotations

import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from harness.errors import ChaosError
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.evidence import beside
from harness.judge.score import load_score
from harness.log import reading
from harness.node import kernel
from harness.timeline import timeline

CPU_LIMIT_S = 120
LIMIT_S = 900  # a process of low priority waits long where others use the CPUs
MEMORY_BYTES_MAX = 4 * 2**30  # about twenty million steps
SOURCE = pathlib.Path(__file__).resolve().parents[2]  # never the harness of the folder that the user is in


def ask(run_dir: pathlib.Path, fault_free: pathlib.Path | None = None) -> dict[str, Any] | None:
    """The ledger so far, from a process of low priority; `None` where it cannot be worked out.

    `fault_free`: the folder with the fault-free runs, where the run's own does not hold them yet.
    """
    folders = [str(folder.resolve()) for folder in (run_dir, fault_free) if folder is not None]
    command = [sys.executable, "-m", "harness.campaign.ledger_so_far", *folders]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False, cwd=SOURCE
        )
        told = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return told if isinstance(told, dict) else None


def so_far(run_dir: pathlib.Path, fault_free: pathlib.Path) -> dict[str, Any]:
    """GPU-seconds by account, what follows from them, and the CPU time that it took to say so.

    Raises `ChaosError` for a log that cannot be read.
    """
    at = time.time()
    log = reading.read(run_dir / "events")
    if log.harness:  # a job that hangs writes nothing, and its GPU time runs on
        log.harness.events.append({"event": "ledger.asked", "at": time.monotonic_ns()})
    evidence = beside(timeline.build(log), fault_free)
    values: Mapping[str, Any] = load_score("wasted_gpu_hours").score(Analysis.of(evidence), None).values
    allocated = values["gpu_seconds_allocated"]
    return {
        "at": at,
        "accounts": values["accounts"],
        "allocated": allocated,
        "goodput": values["accounts"]["productive"] / allocated if allocated else None,
        "wasted_all": values["gpu_seconds_wasted"],
        "wasted_faults": values["gpu_seconds_wasted_by_faults"],
        "dollars": values.get("dollars_wasted"),
        "cpu_s": time.process_time(),
    }


def main() -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    os.nice(19)
    run_dir = pathlib.Path(sys.argv[1])
    try:
        told = so_far(run_dir, pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else run_dir)
    except (ChaosError, OSError, MemoryError) as error:
        sys.exit(f"the ledger cannot be worked out: {error}")
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
