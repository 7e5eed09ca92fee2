"""A node is gone without a word: power, kernel panic, a host taken away."""

from __future__ import annotations

from collections.abc import Sequence

from harness.fault import Context, TakesNodes, Target, name_nodes


class NodeLoss(TakesNodes):
    """Everything on the node dies at once, with no notice; a replacement comes later or never."""

    def describe(self, targets: Sequence[Target]) -> str:
        return f"{name_nodes(targets)} lost without notice; {self.describe_replacement()}"

    def inject(self, targets: Sequence[Target], context: Context) -> None:
        nodes = [context.node(target) for target in targets]
        context.injected()
        self.take(nodes, "lost", context)


FAULT = NodeLoss
