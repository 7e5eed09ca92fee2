"""How long from a SIGKILLed rank to the first new step of every rank: our launcher beside plain torchrun.

    python benches/restart.py [KILLS] [RANKS]

The same trainer, the same model, in turns. torchrun gets the variable without which half of its restarts fail.
"""

from __future__ import annotations

import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from harness.log import files, reading

TRAINER = ["--steps", "1000000", "--metadata", "off", "--device", "cpu"]
LAUNCH = ["reference_trainer.launch"]
TORCHRUN = ["torch.distributed.run", "--standalone", "--max-restarts", "1000", "--monitor-interval", "0.05"]
LIMIT_S = 120


def trainers(folder: pathlib.Path, since_ns: int) -> list[reading.Writer]:
    """Logs of the workers that started after `since_ns` and have done a step."""
    logs = [log for log in map(reading.read_source, files.find(folder)) if log and log.role == "trainer"]
    return [log for log in logs if log.header["mono_ns"] > since_ns and len(log.steps["end"])]


def wait_for_steps(folder: pathlib.Path, since_ns: int, ranks: int) -> list[reading.Writer]:
    deadline = time.monotonic() + LIMIT_S
    while len(found := trainers(folder, since_ns) if folder.is_dir() else []) < ranks:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no new step within {LIMIT_S} s")
        time.sleep(0.05)
    return found


def is_ours(pid: int, folder: str) -> bool:
    """Whether this process still is the one we started: a pid may have a new owner by now."""
    try:
        return folder.encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def measure(launcher: list[str], kills: int, ranks: int) -> list[float]:
    """Seconds for each kill."""
    chance = random.Random(0)
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        events = pathlib.Path(folder) / "events"
        command = [sys.executable, "-m", *launcher, "--nproc-per-node", str(ranks)]
        command += ["--"] if launcher == LAUNCH else ["-m", "reference_trainer.train"]
        environment = os.environ | {"CHAOS_EVENTS": str(events), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        process = subprocess.Popen(
            [*command, *TRAINER, "--checkpoint-dir", f"{folder}/checkpoints"],
            env=environment | {"GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            workers = wait_for_steps(events, 0, ranks)
            for _ in range(kills):
                time.sleep(chance.uniform(1.5, 3))
                killed_ns = time.monotonic_ns()
                os.kill(chance.choice(workers).header["pid"], signal.SIGKILL)
                workers = wait_for_steps(events, killed_ns, ranks)
                firsts = [int(log.steps["end"][0]) for log in workers]
                seconds.append((max(firsts) - killed_ns) / 1e9)
        finally:
            for log in filter(None, map(reading.read_source, files.find(events))):
                if is_ours(log.header["pid"], folder):  # torchrun's workers lead sessions of their own
                    os.kill(log.header["pid"], signal.SIGKILL)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return seconds


def main() -> None:
    kills, ranks = (int(argument) for argument in [*sys.argv[1:], "6", "2"][:2])
    for name, launcher in {"reference_trainer.launch": LAUNCH, "torchrun": TORCHRUN}.items():
        seconds = measure(launcher, kills, ranks)
        print(
            f"{name}: {len(seconds)} of {kills} recovered, median {statistics.median(seconds):.2f} s, "
            f"from {min(seconds):.2f} to {max(seconds):.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
