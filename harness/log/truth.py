"""Defines what a diagnosis of a failure says, and `Truth`, the right diagnosis of a fault, as the fault declares it.

A diagnosis states what broke (`Kind`), on which rank or node, and what to do about it (`Decision`). `chaos diagnose`
and `expect: {diagnosis: …}` compare a diagnosis with the `Truth` of each fault.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from harness.units import Duration

PAUSE_S = 5.0  # a shorter pause is benign: no watchdog of a real job fires so soon


class Kind(StrEnum):
    """The kind of a failure. `NONE` means that nothing is wrong, and `UNKNOWN` that something unknown is wrong."""

    HANG = "hang"
    STRAGGLER = "straggler"
    CRASH = "crash"
    BAD_DATA = "bad-data"
    CORRUPTION = "corruption"
    NETWORK = "network"
    STORAGE = "storage"
    GPU = "gpu"
    NONE = "none"
    UNKNOWN = "unknown"


class Decision(StrEnum):
    """A reaction to a failure, by the job itself or by its operator."""

    RESTART_IN_PLACE = "restart-in-place"
    RESTART_ELSEWHERE = "restart-elsewhere"
    EVICT_NODE = "evict-node"
    ROLL_BACK = "roll-back"
    STOP = "stop"
    IGNORE = "ignore"


class Place(StrEnum):
    """How precisely a diagnosis can locate a fault: by its rank, its node, its file, or only by the job."""

    RANK = "rank"
    NODE = "node"
    FILE = "file"
    JOB = "job"  # no rank or node is to blame, so accusing one accuses an innocent


@dataclass(frozen=True)
class Truth:
    """The right diagnosis of a fault, as precise as a job's logs can show."""

    kinds: tuple[Kind, ...]  # the first one names the fault in tables; with `Kind.NONE` nobody need say anything
    place: Place  # coarser is "right, but coarse"
    decisions: tuple[Decision, ...]  # those that help
    either_side: bool = False  # in a job of two nodes, the other node looks the same

    @property
    def benign(self) -> bool:
        """Returns True if nothing is wrong, so that no reaction is needed."""
        return Kind.NONE in self.kinds

    @property
    def must_leave(self) -> bool:
        """Returns True if every right decision removes the fault's node from the job."""
        leaving = {Decision.EVICT_NODE, Decision.RESTART_ELSEWHERE}
        return not self.benign and Decision.EVICT_NODE in self.decisions and leaving.issuperset(self.decisions)

    def of_pause(self, lasts: Duration | None) -> Self:
        """Returns the right diagnosis of a pause of length `lasts`. For a pause of less than 5 s, "nothing is wrong" is
        a right diagnosis, too."""
        return replace(self, kinds=(Kind.NONE, *self.kinds)) if lasts and lasts.s < PAUSE_S else self
