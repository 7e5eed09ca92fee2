"""A node is gone without notice, for example because of a power failure or a kernel panic."""

from pydantic import Field

from harness.backends.contract import Verb
from harness.faults.contract import Context, TakesNodes, Targets, name_nodes
from harness.log.truth import Decision, Kind, Place, Truth


class NodeLoss(TakesNodes):
    """Everything on the node dies at once, with no notice; a replacement comes later or never."""

    silent: bool = Field(False, description="Without a reset of its connections: the link goes down first.")

    runbook = "F7"
    truth = Truth((Kind.CRASH,), Place.NODE, (Decision.RESTART_ELSEWHERE, Decision.EVICT_NODE))

    def needed(self) -> frozenset[Verb]:
        return super().needed() | {Verb.NET_LINK} if self.silent else super().needed()

    def describe(self, targets: Targets) -> str:
        how = "without a word, its link first" if self.silent else "without notice"
        return f"{name_nodes(targets)} lost {how}; {self.describe_replacement()}"

    def inject(self, targets: Targets, context: Context) -> None:
        nodes = [context.node(target) for target in targets]
        for node in nodes if self.silent else ():
            node.unplug()  # never plugged in again: the link goes with the node
        context.injected()
        self.take(nodes, "lost", context)


FAULT = NodeLoss
