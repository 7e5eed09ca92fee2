"""The owner of a node takes the node back: the node first gets a notice, and is gone at the deadline."""

import signal
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from harness.backends.contract import Node, Verb
from harness.faults.contract import Cancelled, Context, TakesNodes, Targets, name_nodes
from harness.log.truth import Decision, Kind, Place, Truth
from harness.units import Duration

ENGINE_S_MAX = 300.0  # beyond the notice: until the engine has taken the node; a cloud takes minutes


class Preemption(TakesNodes):
    """A node gets a notice, by SIGTERM to all its processes or on its metadata endpoint. At the deadline the node is
    taken, whether the trainer is done or not. With `via: engine`, the backend's engine, such as Kubernetes, gives the
    notice and evicts the node in its own way."""

    notice: Duration = Field(Duration("5s"), description="From the notice until the node is taken; 0s: none.")
    via: Literal["signal", "engine", "ec2", "gcp", "azure"] = Field(
        "signal", description="SIGTERM, the engine's own eviction, or whose metadata endpoint."
    )

    runbook = "F7"
    preempts = True

    def true_answers(self) -> Truth:
        without = () if self.replaced() else (Decision.RESTART_IN_PLACE, Decision.EVICT_NODE)
        return Truth((Kind.CRASH,), Place.NODE, (Decision.RESTART_ELSEWHERE, *without))

    def needed(self) -> frozenset[Verb]:
        if self.via == "engine":
            return super().needed() - {Verb.KILL} | {Verb.EVICT}
        if self.notice_s == 0:
            return super().needed()
        return super().needed() | {Verb.SIGNAL if self.via == "signal" else Verb.NOTICE}

    def describe(self, targets: Targets) -> str:
        if self.via == "engine":
            return f"{name_nodes(targets)} evicted by the engine, {self.notice} notice; {self.describe_replacement()}"
        how = "SIGTERM to everything on it" if self.via == "signal" else f"its {self.via} metadata endpoint"
        notice = f"a {self.notice} notice by {how}" if self.notice_s > 0 else "no notice"
        return f"{name_nodes(targets)} reclaimed with {notice}; {self.describe_replacement()}"

    def inject(self, targets: Targets, context: Context) -> None:
        nodes = [context.node(target) for target in targets]
        context.injected()
        if self.via == "engine":
            return self._evict(nodes, context)
        if self.notice_s > 0:
            for node in nodes:
                if self.via == "signal":
                    told = node.signal(signal.SIGTERM)
                    context.effect(told, told, "processes given notice", ok=told > 0, detail=f"SIGTERM on {node.name}")
                else:
                    node.notice(self.via, self.notice_s)
            # A notice cannot be taken back: where a person stops the fault, the node is taken and replaced at once.
            try:
                context.wait(self.notice_s)
            except Cancelled:
                if not context.job_goes_on or self.replacement == "none":
                    raise
            # A trainer that never looks at the endpoint is the trainer's failing, not the fault's: logged, not judged.
            for node in nodes if self.via != "signal" else ():
                context.log("fault.notice_read", node=node.name, times=node.notice_seen())
        self.take(nodes, "reclaimed", context)

    def _evict(self, nodes: Sequence[Node], context: Context) -> None:
        for node in nodes:
            node.evict(self.notice_s)
        limit_s = self.notice_s + ENGINE_S_MAX
        gone = context.wait(limit_s, until=lambda: not any(node.alive for node in nodes))
        for node in nodes:
            context.effect(int(not node.alive), 1, "nodes taken by the engine", ok=not node.alive, detail=node.name)
            context.release(node, "evicted")
        if gone:
            self.bring_replacements(nodes, context)

    @property
    def notice_s(self) -> float:
        return self.notice.s


FAULT = Preemption
