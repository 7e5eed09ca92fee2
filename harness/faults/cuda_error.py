"""A CUDA error is permanent: once a kernel has failed, every device call fails until the process restarts."""

from typing import Literal

from pydantic import Field

from harness.faults.contract import Context, Hold, Targets, name_ranks
from harness.faults.shared import inside
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.emitter.device_strikes import CALL_FAILED, ERRORS


class CudaError(inside.InsideFault):
    """After a rank's next step, each device call of its training thread fails with CUDA's own error message. On a GPU,
    `illegal_access` causes a real illegal access. All other errors, and all errors on a CPU, are raised by PyTorch's
    operators.

    The trainer must log the harness's events, or run with the harness's observer, which logs these events.
    """

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
