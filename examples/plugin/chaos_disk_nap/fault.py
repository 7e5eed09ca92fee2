"""A rank stands still for a while. Say here what the fault does, in one line: `chaos faults` shows it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence

from harness.backends.contract import Node, Verb
from harness.errors import NodeGone
from harness.faults.contract import Context, Fault, Target, name_ranks, ranks_of
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.units import Duration
from pydantic import Field

CONTRACT = 1  # the version of the contract of plug-ins that this file is written for
STOPS_WITHIN_S = 3.0


class DiskNap(Fault):
    """The process of a rank is stopped, and goes on afterwards."""

    duration: Duration = Field(Duration("3s"), description="The time that it stands still.")

    needs = frozenset({Verb.SIGNAL})  # of the backend; a plan that needs more is refused before anything runs
    may = frozenset({May.STOP})  # a healthy job may have to restart over it; without this line: it only slows the job
    aims_at = "rank"

    def true_answers(self) -> Truth:
        return Truth((Kind.HANG,), Place.RANK, (Decision.IGNORE,)).of_pause(self.duration)

    def freezes(self) -> bool:
        return True

    def describe(self, targets: Sequence[Target]) -> str:
        return f"{name_ranks(targets)} stands still for {self.duration}"

    def inject(self, targets: Sequence[Target], context: Context) -> None:
        """Acts, and measures from outside that it acts: without a measured effect the run is invalid."""
        victims = {rank: context.pid_of(rank) for rank in ranks_of(targets)}
        for node, pid in victims.values():
            node.signal(signal.SIGSTOP, pid)
        context.injected()
        began = time.monotonic()  # the duration counts from here, measuring included
        for rank, (node, pid) in victims.items():
            stopped = context.wait(STOPS_WITHIN_S, until=lambda n=node, p=pid: _is_stopped(n, p))  # type: ignore[misc]
            context.effect(int(stopped), 1, "processes stopped", ok=stopped, detail=f"rank {rank} on {node.name}")
        context.wait(max(0.0, self.duration.s - (time.monotonic() - began)))

    def heal(self, targets: Sequence[Target], context: Context) -> None:
        """Undoes it. It is always called, also after a failed `inject`, and may be called twice."""
        for target in targets:
            with contextlib.suppress(NodeGone):  # then nothing stands still there
                context.node(target).thaw()

    def see_end(self, targets: Sequence[Target], context: Context) -> None:
        """Measures that it is over."""
        for node in {context.node(target) for target in targets}:
            left = sum(each.state == "T" for each in node.processes())
            context.ended(left, 0, "processes stopped", ok=not left, detail=node.name)


def _is_stopped(node: Node, pid: int) -> bool:
    return any(each.pid == pid and each.state == "T" for each in node.processes())


# It changes nothing outside of its nodes. A fault that does, such as one that writes a file, says so first in `inject`:
#     context.undo("faults.disk_nap", path="my-file")  # below the run's folder, `context.run_dir`
# Beside FAULT it has a function, which gets this later, also after SIGKILL of the harness, and perhaps twice:
#     def UNDO(run_dir: pathlib.Path, path: RunPath) -> None:
#         (run_dir / path).unlink(missing_ok=True)
FAULT = DiskNap
