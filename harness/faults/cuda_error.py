"""A CUDA error that sticks: once a kernel went wrong, every device call of the process fails until it starts anew."""

from typing import Literal

from pydantic import Field

from harness.faults.contract import Context, Hold, Targets, name_ranks
from harness.faults.shared import inside
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.emitter.device_strikes import CALL_FAILED, ERRORS


class CudaError(inside.InsideFault):
    """From a step on, each device call of a rank's training thread fails with CUDA's own words. On a GPU an illegal
    access is a real one; other errors, and those on a CPU, are raised by PyTorch's operators.

    The trainer must emit our events itself, or be observed."""

    kind: Literal["illegal_access", "ecc", "nvlink", "launch_failure"] = Field(
        "illegal_access", description="; ".join(f"{kind}: {text}" for kind, text in ERRORS.items())
    )

    runbook = "F1"
    truth = Truth((Kind.GPU, Kind.CRASH), Place.RANK, (Decision.RESTART_IN_PLACE, Decision.RESTART_ELSEWHERE))

    def holds(self, targets: Targets) -> list[Hold]:
        return inside.at_the_next_step(targets, "break_device", self.kind)

    def describe(self, targets: Targets) -> str:
        return f'{name_ranks(targets)}: after its next step each device call fails: "CUDA error: {ERRORS[self.kind]}"'

    def inject(self, targets: Targets, context: Context) -> None:
        self.strike_all(targets, context, CALL_FAILED, "processes with failed calls")


FAULT = CudaError
