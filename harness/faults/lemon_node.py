"""A bad node (a *lemon*) fails again soon after each start, or is slow until the job no longer uses it."""

import contextlib
import signal
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Literal, NamedTuple

from pydantic import Field, field_validator

from harness.backends.contract import Node, Verb
from harness.errors import NodeGone
from harness.faults.contract import Context, Fault, Target, Targets, name_nodes
from harness.faults.shared.inside import is_gone
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.units import Duration

GONE_WITHIN_S = 5.0
SOON_S = 60.0
SLOW_SEEN_S, DENIED_TOLERANCE = 1.0, 0.3


class Life(NamedTuple):
    incarnation: int
    pids: tuple[int, ...]


class LemonNode(Fault):
    """A node fails within the first minute after each start, or is slow, until the job no longer uses the node.

    The fault belongs to the node, not to its processes: restarted workers fail as well, and so does the whole node
    after its return. The job should exclude the node after some failures, and name it.
    """

    fails: Literal["crash", "loss", "slow"] = Field(
        "crash",
        description="crash: its workers are killed; loss: all of it is, and the same node comes back; slow: it is slow "
        "until the job lets it go, and comes back as slow.",
    )
    factor: float = Field(4.0, gt=1.05, le=20, description="slow: all on the node takes so many times as long.")
    bears: Duration = Field(
        Duration("60s"), description="slow: if the job keeps the node for so long, it is as fast as before."
    )
    after: Duration = Field(Duration("0s"), description="From the first step of a life until it fails; 60s at most.")
    back_after: Duration = Field(Duration("2s"), description="loss, slow: so long it is away.")
    lives: int = Field(8, ge=2, le=100, description="At most so many lives fail: then the node is well.")
    unused_for: Duration = Field(
        Duration("8s"),
        description="So long after its last life, it is no longer used if nothing runs on it and others train.",
    )

    runbook = "F7"
    needs = frozenset({Verb.SIGNAL})
    may = frozenset({May.KILL})
    sticks = True

    def true_answers(self) -> Truth:
        kind = Kind.STRAGGLER if self.fails == "slow" else Kind.CRASH
        return Truth((kind,), Place.NODE, (Decision.EVICT_NODE, Decision.RESTART_ELSEWHERE))

    @field_validator("after")
    @classmethod
    def _soon(cls, given: Duration) -> Duration:
        if given.s > SOON_S:
            raise ValueError(f"{given}: a lemon fails within the first {SOON_S:g} s of a life")
        return given

    def needed(self) -> frozenset[Verb]:
        taken = frozenset({Verb.KILL, Verb.REPLACE})
        return {"crash": self.needs, "loss": taken, "slow": taken | {Verb.CPU}}[self.fails]

    def replaced(self) -> bool | None:
        return None if self.fails == "crash" else True

    def describe(self, targets: Targets) -> str:
        back = f"back {self.back_after} later"
        slow = f"all on it takes {self.factor:g} times as long; once the job lets it go, it is {back}"
        what = {"crash": "its workers are killed", "loss": f"lost, and {back}", "slow": slow}[self.fails]
        when = f"{self.after} after the first step of each life" if self.after.ns else "at the first step of each life"
        return f"{name_nodes(targets)} is a lemon: {when} {what}, until the job goes on without it"

    def inject(self, targets: Targets, context: Context) -> None:
        context.injected()
        struck = {target: self._fail(target, context, 1) for target in targets}
        times = dict.fromkeys(targets, 1)
        for target in self._new_lives(struck, context):
            context.wait(self.after.s)
            times[target] += 1
            context.injected_again(target, _newest(target, context))
            struck[target] = self._fail(target, context, times[target])
            if times[target] >= self.lives:
                del struck[target]

    def _new_lives(self, struck: Mapping[Target, Life], context: Context) -> Iterator[Target]:
        begun: dict[tuple[Target, Life], int] = {}  # when each life was first seen, ns

        def alive_again() -> Target | None:
            for target, before in struck.items():
                node = _newest(target, context)
                life = _life(node, context)
                since_ns = begun.setdefault((target, life), time.monotonic_ns())
                ranks = context.ranks_on(node) if node.alive and life != before else ()
                if ranks and all(context.step_times_ns(rank, since_ns) for rank in ranks):
                    return target
            return None

        while struck:
            if context.wait(self.unused_for.s, until=lambda: alive_again() is not None):
                if (target := alive_again()) is not None:
                    yield target
                continue
            if any(_runs(_newest(target, context)) for target in struck):
                continue  # it may only take long to start, or wait for a place
            lemons = {target.node_index for target in struck}
            others = [node for index, node in enumerate(context.cluster.nodes) if index not in lemons]
            recent_ns = time.monotonic_ns() - self.unused_for.ns // 2
            goes_on = any(context.step_times_ns(rank, recent_ns) for node in others for rank in context.ranks_on(node))
            if goes_on or not any(map(_runs, others)):
                return

    def _fail(self, target: Target, context: Context, number: int) -> Life:
        node = _newest(target, context)
        life, detail = _life(node, context), f"life {number} of {node.name}"
        if self.fails == "crash":
            alive = {*life.pids}.intersection(node.pids())  # what has ended by itself proves nothing
            for pid in alive:
                node.signal(signal.SIGKILL, pid)
            gone = sum(context.wait(GONE_WITHIN_S, until=partial(is_gone, node, pid)) for pid in alive)
            context.effect(gone, max(1, len(alive)), "processes gone", ok=0 < gone == len(alive), detail=detail)
            return life
        if self.fails == "slow" and not self._is_let_go(node, context, detail):
            return life
        context.log("fault.taking", node=node.name)
        with contextlib.suppress(NodeGone):  # an engine may have ended a node that the job let go
            node.kill()
        context.release(node, "lost")
        left = len(node.pids())
        gone_whole = left == 0 and not node.alive
        if self.fails == "loss":
            context.effect(left, 0, "processes left on the node", ok=gone_whole, detail=detail)
        context.wait(self.back_after.s)
        context.replace(node)
        return life

    def _is_let_go(self, node: Node, context: Context, detail: str) -> bool:
        node.throttle(1 / self.factor)
        before = node.cpu_use()
        context.wait(SLOW_SEEN_S)
        now = node.cpu_use()
        denied, asked = (now.throttled_ns - before.throttled_ns) / (now.at_ns - before.at_ns), 1 - 1 / self.factor
        ok = abs(denied - asked) <= DENIED_TOLERANCE * asked
        context.effect(round(denied, 3), round(asked, 3), "of the time without a CPU", ok=ok, detail=detail)
        if context.wait(self.bears.s, until=lambda: not _runs(node)):
            return True
        node.throttle(None)
        return False

    def heal(self, targets: Targets, context: Context) -> None:
        for node in (_newest(target, context) for target in targets if self.fails == "slow"):
            with contextlib.suppress(NodeGone):
                node.throttle(None)


def _newest(target: Target, context: Context) -> Node:
    return context.cluster.nodes[target.node_index]


def _life(node: Node, context: Context) -> Life:
    return Life(node.incarnation, tuple(sorted(context.worker_pids(node))))


def _runs(node: Node) -> bool:
    return node.alive and bool(node.pids())


FAULT = LemonNode
