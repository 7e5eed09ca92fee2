"""Real frameworks, observed: each example trainer is killed, goes on, and must be told right.

    make stacks STACKS=VENV ARGS=NAMES

`VENV` is a virtual environment with what `examples/trainers/*/requirements.txt` names; the project's own environment
has none of it, so that these checks are no part of `make test`. Exit status 1: something was told wrong.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

from event_files import WriterLog, read_log
from observer import observing

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples" / "trainers"
NAMES = ("dcp", "fsdp2", "hugging_face", "lightning", "accelerate")
STEPS, KILL_AT, RANKS, LIMIT_S = 60, 30, 2, 240


@dataclass
class Life:
    """One start of a job: each rank's log."""

    code: int
    ranks: dict[int, WriterLog] = field(default_factory=dict)

    def told(self, rank: int, name: str) -> list[dict[str, Any]]:
        return [event for event in self.ranks[rank].events if event["event"] == name]


def live(venv: pathlib.Path, name: str, folder: pathlib.Path, kill_at: int | None) -> Life:
    """`kill_at`: SIGKILL to rank 0 when it has told this step."""
    env = observing.environment(folder, HF_HUB_OFFLINE="1")
    before = {log.header["writer"] for log in observing.logs(folder / "events")}
    words = [
        venv / "bin/torchrun",
        "--nproc-per-node",
        RANKS,
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
    ]
    words += [EXAMPLES / name / "train.py", "--steps", STEPS, "--checkpoints", folder / "checkpoints"]
    with open(folder / "output.log", "ab") as output:
        job = subprocess.Popen([str(word) for word in words], env=env, cwd=folder, stdout=output, stderr=output)
        try:
            if kill_at is not None:
                _kill_rank(folder / "events", kill_at, before, job)
            code = job.wait(LIMIT_S)
        finally:
            job.kill()
    logs = [log for log in read_log(folder / "events") if log.header["writer"] not in before]
    return Life(code, {log.header["rank"]: log for log in logs if log.header["role"] == "trainer"})


def _kill_rank(events: pathlib.Path, step: int, before: set[str], job: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end and job.poll() is None:
        for log in observing.logs(events):
            mine = log.header.get("rank") == 0 and log.header["writer"] not in before
            if mine and any(event["event"] == "step" and event["step"] >= step for event in log.events):
                os.kill(int(log.header["pid"]), signal.SIGKILL)
                return
        time.sleep(0.1)


def problems(first: Life, second: Life) -> list[str]:
    """What was told wrong of a job that was killed and went on."""
    if set(first.ranks) != set(range(RANKS)) or set(second.ranks) != set(range(RANKS)) or second.code:
        return [f"ranks {sorted(first.ranks)} and {sorted(second.ranks)}, exit status {second.code}"]
    saves = {event["step"]: event for event in first.told(0, "checkpoint.committed")}
    if not saves:
        return ["no checkpoint was told"]
    return [problem for rank in range(RANKS) for problem in _of_rank(rank, second, saves)]


def _of_rank(rank: int, life: Life, saves: dict[int, dict[str, Any]]) -> list[str]:
    restored, steps = life.told(rank, "restored"), [event["step"] for event in life.told(rank, "step")]
    found = [f"rank {rank}: {event}" for event in life.told(rank, "observer.failed")]
    if len(restored) != 1 or restored[0].get("step") not in saves:
        return [*found, f"rank {rank} restored {restored}; saved were {sorted(saves)}"]
    event = restored[0]
    if event.get("content") != saves[event["step"]]["content"]:
        found.append(f"rank {rank}: the content is another one than was saved: {event}")
    if steps != list(range(event["step"] + 1, STEPS + 1)):
        found.append(f"rank {rank} restored step {event['step']} and did {steps}")
    return found


def consumed(life: Life, rank: int, steps: range) -> list[int]:
    told = {event["step"]: event for event in life.told(rank, "step")}
    return [sample for step in steps if "samples" in told.get(step, {}) for sample in observing.expanded(told[step])]


def in_words(first: Life, second: Life) -> str:
    """The restored step, and which samples each rank took twice when what was lost is left out."""
    restored = second.told(0, "restored")[0]["step"]
    words = [f"went on from step {restored}"]
    for rank in range(RANKS):
        before, after = (
            consumed(first, rank, range(1, restored + 1)),
            consumed(second, rank, range(restored + 1, STEPS + 1)),
        )
        every = [*before, *after]
        words.append(f"rank {rank}: {len(every)} samples, {len(every) - len(set(every))} of them again")
    return "; ".join(words)


def main() -> int:
    venv, names = pathlib.Path(sys.argv[1]).absolute(), sys.argv[2:] or NAMES
    wrong = 0
    for name in names:
        with tempfile.TemporaryDirectory(prefix="chaos-stacks-") as folder:
            first = live(venv, name, pathlib.Path(folder), KILL_AT)
            second = live(venv, name, pathlib.Path(folder), None)
            found = problems(first, second)
            if found:
                found.append(pathlib.Path(folder, "output.log").read_text(errors="replace")[-2000:])
        wrong += bool(found)
        print(f"{name}: {'wrong' if found else 'right'}: {'; '.join(found) or in_words(first, second)}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
