"""The rendezvous store dies and loses its data, for example because its host has crashed."""

from typing import Literal

from pydantic import Field

from harness.backends.contract import Verb
from harness.faults.contract import Context, Fault, Targets
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.units import Duration


class RendezvousLoss(Fault):
    """Kills the control command, which runs the rendezvous store. The store comes back empty after a while, or never.
    To cut nodes off from a living store, use `partition` with `cut_off_from: control`."""

    restart_after: Duration | Literal["never"] = Field(Duration("2s"), description="When it is started again, empty.")

    runbook = "F3"
    needs = frozenset({Verb.CONTROL})
    may = frozenset({May.STOP})
    # The host `control` may be named all the same.
    truth = Truth((Kind.NETWORK, Kind.CRASH), Place.JOB, (Decision.IGNORE, Decision.RESTART_IN_PLACE))

    def describe(self, targets: Targets) -> str:
        if self.restart_after == "never":
            return "the rendezvous store dies and does not come back"
        return f"the rendezvous store dies and comes back empty {self.restart_after} later"

    def inject(self, targets: Targets, context: Context) -> None:
        context.injected()
        context.cluster.kill_control()
        left = int(context.cluster.control_running)
        context.effect(left, 0, "rendezvous stores running", ok=left == 0)
        if self.restart_after != "never":
            context.wait(self.restart_after.s)
            context.cluster.restart_control()

    def see_end(self, targets: Targets, context: Context) -> None:
        if self.restart_after != "never":
            running = int(context.cluster.control_running)
            context.ended(running, 1, "rendezvous stores running", ok=running == 1)


FAULT = RendezvousLoss
