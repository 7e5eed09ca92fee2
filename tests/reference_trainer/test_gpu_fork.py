"""A launcher on a machine with GPUs: no forked process can use CUDA that its parent has started."""

from __future__ import annotations

import subprocess
import sys

PRELOADS = """
import torch
from reference_trainer import launch
from reference_trainer.options import Options

def started(*_):
    raise SystemExit("CUDA was started")

torch.cuda.is_available = torch.cuda._lazy_init = started
launch.preload(Options())
print("loaded", flush=True)
torch.cuda.is_available()
"""


def test_nothing_that_a_launcher_does_before_the_fork_starts_cuda() -> None:
    done = subprocess.run([sys.executable, "-c", PRELOADS], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr.splitlines()[-1:]) == ("loaded\n", ["CUDA was started"])  # by the last line alone
