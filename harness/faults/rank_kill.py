"""A rank's process dies at once, for example by a segmentation fault or by `kill -9`."""

import signal
from functools import partial
from typing import Literal

from pydantic import Field

from harness.backends.contract import Verb
from harness.faults.contract import Context, Fault, Targets, name_ranks, ranks_of
from harness.faults.shared.inside import is_gone
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth

GONE_WITHIN_S = 5.0


class RankKill(Fault):
    """The worker process of a rank is killed; its node and its launcher live on."""

    signal: Literal["SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM"] = Field("SIGKILL", description="What ends it.")

    runbook = "F7"
    needs = frozenset({Verb.SIGNAL})
    may = frozenset({May.KILL})
    aims_at = "rank"
    truth = Truth((Kind.CRASH,), Place.RANK, (Decision.RESTART_IN_PLACE,))

    def graceful(self) -> bool:
        return self.signal == "SIGTERM"

    def describe(self, targets: Targets) -> str:
        return f"{self.signal} to the worker of {name_ranks(targets)}"

    def inject(self, targets: Targets, context: Context) -> None:
        for rank in ranks_of(targets):
            node, pid = context.pid_of(rank)
            context.injected()
            node.signal(signal.Signals[self.signal], pid)
            gone = context.wait(GONE_WITHIN_S, until=partial(is_gone, node, pid))
            context.effect(int(gone), 1, "processes gone", ok=gone, detail=f"rank {rank} on {node.name}")


FAULT = RankKill
