"""Runs a broken trainer: the reference trainer saves checkpoints, but always starts from scratch.

`chaos gate` runs the broken trainer first. If the run of the broken trainer does not fail, the gate's other results are
worthless.
"""

from __future__ import annotations

from reference_trainer import preemption

if __name__ == "__main__":
    preemption.before_torch()

import os
import sys

from reference_trainer import launch
from reference_trainer.checkpoint import Checkpoints, Restored


def blind(self: Checkpoints) -> Restored:
    return Restored(0, "scratch", None)


if __name__ == "__main__":
    Checkpoints.restore = blind  # type: ignore[method-assign]
    exit_code = launch.main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # as the launcher does
