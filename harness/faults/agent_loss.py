"""Only the launcher of a node is killed: its workers live on as orphans, and no process restarts them."""

import signal

from pydantic import Field

from harness.backends.contract import Node, Verb
from harness.faults.contract import Context, TakesNodes, Targets, name_nodes
from harness.faults.shared.inside import launcher_of
from harness.log.truth import Decision, Kind, Place, Truth
from harness.units import Duration

GONE_WITHIN_S = 5.0


class AgentLoss(TakesNodes):
    """Kills a node's launcher (torchrun's agent) by SIGKILL, and later the whole node with its orphaned workers.

    To stop only the launcher's keep-alives, use `hang` with `how: freeze_launcher`. To kill the rendezvous store, use
    `rendezvous_loss`."""

    orphans_for: Duration = Field(
        Duration("5s"), description="How long its orphans may live on before the node is taken."
    )

    runbook = "F7"
    needs = frozenset({Verb.SIGNAL, Verb.KILL})
    truth = Truth((Kind.CRASH,), Place.NODE, (Decision.RESTART_ELSEWHERE, Decision.RESTART_IN_PLACE))

    def describe(self, targets: Targets) -> str:
        then = f"the node is taken {self.orphans_for} later; {self.describe_replacement()}"
        return f"the launcher on {name_nodes(targets)} is killed, its workers live on; {then}"

    def inject(self, targets: Targets, context: Context) -> None:
        nodes = [context.node(target) for target in targets]
        for node in nodes:
            self._kill_launcher(node, context)
        context.wait(self.orphans_for.s)
        self.take(nodes, "its launcher was killed", context)

    def _kill_launcher(self, node: Node, context: Context) -> None:
        ranks = context.ranks_on(node)
        workers = {context.pid_of(rank)[1] for rank in ranks}
        launchers = {launcher_of(rank, node, context.pid_of(rank)[1]) for rank in ranks}
        context.injected()
        for launcher in launchers:
            node.signal(signal.SIGKILL, launcher)
        gone = context.wait(GONE_WITHIN_S, until=lambda: not launchers & set(node.pids()))
        orphans = len(workers & set(node.pids()))
        detail = f"{node.name}: {orphans} of its {len(workers)} workers live on"
        ok = gone and bool(launchers)
        context.effect(len(launchers) if gone else 0, len(launchers), "launchers gone", ok=ok, detail=detail)


FAULT = AgentLoss
