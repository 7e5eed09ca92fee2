"""A process, a whole node or a rank hangs without dying. A rank can hang in a collective, a save, a load or its
start."""

import contextlib
import signal
import time
from typing import Literal

from pydantic import Field

from harness.backends.contract import Node, Verb
from harness.errors import NodeGone
from harness.faults.contract import Context, Hold, Targets, name_ranks, ranks_of
from harness.faults.shared import inside
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.types import ProcessState
from harness.units import Duration

STOPS_WITHIN_S = 3.0
WATCHED_S = 0.5  # how long it is looked at to see that nothing moves
PLACES = {  # where a rank gets stuck: the trainer's failpoint
    "stuck_in_collective": "all_reduce",
    "stuck_in_save": "checkpoint.snapshot",
    "stuck_in_load": "restore",
    "late": "rendezvous",
}
WAYS = {
    "freeze_rank": "the process of the rank is stopped",
    "freeze_node": "everything on the rank's node is stopped, its connections stay open",
    "freeze_launcher": "what started the rank is stopped: its keep-alives are missing, its workers go on",
    "stuck_in_collective": "the rank enters the gradient all-reduce and does not come back",
    "stuck_in_save": "the same in its next save",
    "stuck_in_load": "the same in its next load, after a restart",
    "late": "the rank's next process sleeps before it joins the others",
}


class Hang(inside.InsideFault):
    """A rank or its node hangs but seems alive, until the fault ends or the job removes it."""

    how: Literal[
        "freeze_rank", "freeze_node", "freeze_launcher", "stuck_in_collective", "stuck_in_save", "stuck_in_load", "late"
    ] = Field("freeze_rank", description="; ".join(f"{way}: {what}" for way, what in WAYS.items()))
    duration: Duration = Field(Duration("60s"), description="Processes that are still there afterwards go on.")
    within: Duration = Field(
        Duration("30s"), description="How long to wait for a rank that is to get stuck somewhere to come there."
    )

    runbook = "F9"

    def true_answers(self) -> Truth:
        place = Place.NODE if self.how in ("freeze_node", "freeze_launcher") else Place.RANK
        more = {
            "freeze_node": (Decision.RESTART_ELSEWHERE, Decision.EVICT_NODE),
            "freeze_launcher": (Decision.IGNORE,),
        }
        decisions = (Decision.RESTART_IN_PLACE, *more.get(self.how, ()))
        return Truth((Kind.HANG,), place, decisions).of_pause(self.duration)

    def freezes(self) -> bool:
        return self.how in ("freeze_rank", "freeze_node")

    def needed(self) -> frozenset[Verb]:
        return self.needs | {Verb.FREEZE} if self.how == "freeze_node" else self.needs

    def holds(self, targets: Targets) -> list[Hold]:
        return inside.stuck_at(self._place, targets, self.duration.s, self.within.s) if self._place else []

    def describe(self, targets: Targets) -> str:
        return f"{name_ranks(targets)}: {WAYS[self.how]}, for {self.duration} or until the job gets rid of it"

    def inject(self, targets: Targets, context: Context) -> None:
        if self._place:
            inside.see_stuck(self._place, ranks_of(targets), context, self.within.s)
        victims = self.find_victims(targets, context)
        if self.how == "freeze_launcher":
            victims = {rank: (node, inside.launcher_of(rank, node, pid)) for rank, (node, pid) in victims.items()}
        if not self._place:
            for node, pid in victims.values():
                node.freeze() if self.how == "freeze_node" else node.signal(signal.SIGSTOP, pid)
            context.injected()
            for rank, (node, pid) in victims.items():
                self._see_frozen(rank, node, pid, context)
        context.wait(self.duration.s, until=lambda: all(inside.is_gone(*victim) for victim in victims.values()))

    def heal(self, targets: Targets, context: Context) -> None:
        context.let_go()
        for target in () if self._place else targets:
            with contextlib.suppress(NodeGone):  # then nothing hangs there any more
                context.node(target).thaw()

    def see_end(self, targets: Targets, context: Context) -> None:
        if self._place:
            return super().see_end(targets, context)
        for node in {context.node(target) for target in targets}:
            context.wait(STOPS_WITHIN_S, until=lambda n=node: not _stopped(n))  # type: ignore[misc]
            left = _stopped(node)
            context.ended(left, 0, "processes stopped", ok=not left, detail=node.name)

    @property
    def _place(self) -> str:
        return PLACES.get(self.how, "")

    def _see_frozen(self, rank: int, node: Node, pid: int, context: Context) -> None:
        def look() -> list[ProcessState]:
            return [each for each in node.processes() if self.how == "freeze_node" or each.pid == pid]

        context.wait(STOPS_WITHIN_S, until=lambda: all(each.state == "T" for each in look()))
        before, since_ns = look(), time.monotonic_ns()
        context.wait(WATCHED_S)
        after = look()
        stopped = sum(each.state == "T" for each in after)
        used_ms = (sum(each.cpu_ns for each in after) - sum(each.cpu_ns for each in before)) / 1e6
        steps = len(context.step_times_ns(rank, since_ns))
        ok = 0 < stopped == len(before) and used_ms == 0 and (steps == 0 or self.how == "freeze_launcher")
        detail = f"{node.name}: {used_ms:g} ms of CPU and {steps} steps of rank {rank} in {WATCHED_S:g} s"
        context.effect(stopped, len(before), "processes stopped", ok=ok, detail=detail)


def _stopped(node: Node) -> int:
    return sum(each.state == "T" for each in node.processes())


FAULT = Hang
