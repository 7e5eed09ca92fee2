"""Defines the keys that a scenario may set under `expect: {diagnosis: …}`."""

from typing import Literal

from pydantic import Field

from harness.judge.bounds import Bounds, DurationNs

# A `Decision`; or one of the restarts; or one of those that the fault's file calls right.
Wanted = Literal[
    "right", "restart-in-place", "restart-elsewhere", "evict-node", "roll-back", "stop", "ignore", "restart"
]


class DiagnosisBounds(Bounds):
    """The job must report what broke, and who caused it (event `diagnosis`), for each fault with a known right
    answer."""

    right_within: DurationNs | None = Field(None, description="From each fault until the right answer about it.")
    max_innocents: int | None = Field(None, ge=0, description="Accused ranks and nodes that no fault had struck.")
    decision: Wanted | None = Field(
        None, description="What is done about each fault. `right`: as the fault's file says; `restart`: anywhere."
    )


BOUNDS = {"diagnosis": DiagnosisBounds}
