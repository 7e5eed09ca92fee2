"""A data loader does not deliver the next batch, for example because of a lost mount or a deadlocked worker."""

from pydantic import Field

from harness.faults.contract import Context, Hold, Targets, name_ranks
from harness.faults.shared import inside
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.emitter.strikes import NEXT_BATCH
from harness.units import Duration


class DataLoaderStall(inside.InsideFault):
    """A rank asks its data loader for the next batch and waits, while heartbeats, watchdogs and its launcher live on.

    The trainer must log the harness's events, or use torch's data loader with the harness's observer, which logs these
    events.
    """

    duration: Duration = Field(
        Duration("60s"), description="Time until the batch comes, or until the job ends the rank."
    )

    runbook = "F10"

    def true_answers(self) -> Truth:
        kinds = (Kind.HANG, Kind.BAD_DATA, Kind.STORAGE, Kind.STRAGGLER)
        return Truth(kinds, Place.RANK, (Decision.IGNORE, Decision.RESTART_IN_PLACE)).of_pause(self.duration)

    def holds(self, targets: Targets) -> list[Hold]:
        return inside.stuck_at(NEXT_BATCH, targets, self.duration.s)

    def describe(self, targets: Targets) -> str:
        until = f"for {self.duration} or until the job gets rid of it"
        return f"{name_ranks(targets)}: the next batch of data does not come, {until}"

    def inject(self, targets: Targets, context: Context) -> None:
        victims = self.find_victims(targets, context)
        inside.see_stuck(NEXT_BATCH, list(victims), context)
        context.wait(self.duration.s, until=lambda: all(inside.is_gone(*victim) for victim in victims.values()))


FAULT = DataLoaderStall
