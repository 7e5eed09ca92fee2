"""Decides when a planned fault is injected: once the fault's conditions hold, and no limit makes it wait."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harness.plan.run_plan import Limits, PlannedFault
from harness.run.live_progress import LiveProgress


@dataclass
class Firing:
    """The state of one planned fault, and the times of its events, on which other faults can depend."""

    planned: PlannedFault
    index: int
    moments_ns: dict[str, int] = field(default_factory=dict)  # injected · effect · recovered · healed
    armed_ns: int | None = None
    fired: bool = False
    held_back: str = ""  # why it may not act though it is due; empty: it may, or it is not due
    let_go: bool = False  # a trainer that waited at the trigger was let go, as the fault has acted for long enough
    furthest_before: int = 0  # the job has recovered once progress passes this step
    begun_step: int = 0  # the last complete step when its rehearsal began
    at_once: bool = False  # a person wants it now, whatever it waits for

    def due(self, progress: LiveProgress, others: Mapping[str, "Firing"], start_ns: int, now_ns: int) -> bool:
        """Returns True if the fault is due. Sets `armed_ns` once all conditions hold, except that on the phase."""
        if self.at_once:
            return True
        when = self.planned.when
        base_ns = start_ns
        if when.following is not None:
            moment = others[when.following].moments_ns.get(when.event or "injected")
            if moment is None:
                return False
            base_ns = moment
        if now_ns < base_ns + (when.after_ns or 0):
            return False
        if when.step is not None and progress.complete_step < when.step:
            return False
        if when.more_steps is not None and progress.complete_step < self.begun_step + when.more_steps:
            return False
        if when.phase is None:
            return True
        if self.armed_ns is None:
            self.armed_ns = now_ns
        return any(name == when.phase and at >= self.armed_ns for name, at in progress.phases_seen)

    @property
    def newest_moment(self) -> str:
        """Returns the fault's newest state, such as `healed`. A fault that still acts is never `recovered`."""
        moments = dict(self.moments_ns)  # its thread may add one just now
        if "healed" not in moments:
            moments.pop("recovered", None)
        return max(moments, key=moments.__getitem__, default="acting")

    def over_ns(self) -> int | None:
        if "healed" not in self.moments_ns or ("injected" in self.moments_ns and "recovered" not in self.moments_ns):
            return None
        return max(self.moments_ns["healed"], self.moments_ns.get("recovered", 0))


def obstacle(firing: Firing, others: Iterable[Firing], limits: Limits, now_ns: int) -> str | None:
    """Returns why a due fault must wait, or `None` if it need not wait.

    A fault waits if too many nodes have a fault, or if the pause after the job's last recovery is not over. A fault
    that follows another fault does not wait for the pause after a recovery.
    """
    fired = [other for other in others if other.fired]
    active = [other for other in fired if other.over_ns() is None]
    broken = set[int]().union(*(other.planned.nodes() for other in active))
    allowed = limits.nodes_at_once
    if allowed is not None and len(broken | firing.planned.nodes()) > allowed:
        return f"{len(broken)} of {allowed} nodes that may have a fault at once have one (limits: nodes_at_once)"
    cool_down_ns, followed = limits.cool_down_ns, firing.planned.when.following
    resting = set[int]().union(*(other.planned.nodes() for other in active if other.planned.id != followed))
    if cool_down_ns and resting & firing.planned.nodes():
        return "its node still has an active fault"
    if followed is not None:
        return None
    latest_ns = max((over for other in fired if (over := other.over_ns()) is not None), default=None)
    if latest_ns is not None and now_ns - latest_ns < cool_down_ns:
        return f"the pause of {cool_down_ns / 1e9:g} s after a recovery is not over"
    return None
