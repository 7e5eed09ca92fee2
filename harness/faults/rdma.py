"""A node's RDMA is slow, or fails, or its port is down, for example because of a bad cable or a congested fabric."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field, PrivateAttr, field_validator

from harness.backends.contract import Node
from harness.faults.contract import Context, Fault, RunPath, Target, name_nodes
from harness.log import untrusted_files
from harness.log.consequences import Consequences, May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node import compiling, rdma
from harness.node.node_paths import answers_of
from harness.node.rdma import Counts
from harness.units import Duration

SEEN_WITHIN_S = 20.0
TOLERANCE = 0.25  # of the delay that was asked for; a busy machine waits longer, and that counts as acting
OVER_S = 0.5  # from the order to its last effect, which a process tells 50 ms later
WATCHED_S = 0.5

_SAYS = {
    "delay": "each work request waits {delay} before the device gets it",
    "error": "what it sends completes with the error `retry exceeded`",
    "port_down": "its ports say that they are down, and what it sends completes with the error `retry exceeded`",
}
_LEAVE = (Decision.EVICT_NODE, Decision.RESTART_ELSEWHERE)


class Rdma(Fault):
    """Delays the RDMA work requests of a node's processes, or makes them fail, by replaced functions in libibverbs'
    verbs table. The RDMA device itself is not touched. The plan is refused if a targeted node has no RDMA device.

    **Proven only against a simulated libibverbs**, because no RDMA hardware was at hand. The fault does not act on
    programs that bypass the verbs table: NVSHMEM's IBGDA and UCX's own drivers, which write to the card themselves, and
    libraries that look up libibverbs' functions by `dlsym`. A run without a counted RDMA request is invalid. The
    harness's machine needs a C compiler, and the job's processes must keep the variable `LD_PRELOAD`."""

    how: Literal["delay", "error", "port_down"] = Field(
        description="; ".join(f"{how}: {says}" for how, says in _SAYS.items()).format(delay="`delay`")
    )
    delay: Duration = Field(
        Duration("1ms"), description="How long a work request waits, with `how: delay`; 10s at most."
    )
    duration: Duration = Field(Duration("10s"), description="After that all is as before.")

    runbook = "F3"
    truth = Truth((Kind.NETWORK,), Place.NODE, (Decision.RESTART_IN_PLACE, *_LEAVE), either_side=True)
    _before: dict[Node, Counts] = PrivateAttr(default_factory=dict)

    @field_validator("delay")
    @classmethod
    def _short(cls, delay: Duration) -> Duration:
        if not 0 < delay.s <= 10:
            raise ValueError(f"{delay}: more than 0, and 10s at most")
        return delay

    @classmethod
    def lacks(cls) -> list[str]:
        return [why] if (why := compiling.why_not()) else super().lacks()

    def over_rdma(self) -> bool:
        return True

    def true_answers(self) -> Truth:
        return replace(self.truth, decisions=(*_LEAVE, Decision.IGNORE)) if self.how == "delay" else self.truth

    def consequences(self) -> Consequences:
        found = super().consequences()
        return found if self.how == "delay" else replace(found, may=found.may | {May.STOP})

    def environment(self, run_dir: pathlib.Path) -> Mapping[str, str]:
        return rdma.prepare(run_dir)

    def describe(self, targets: Sequence[Target]) -> str:
        return f"RDMA of {name_nodes(targets)}, for {self.duration}: {_SAYS[self.how].format(delay=self.delay)}"

    def inject(self, targets: Sequence[Target], context: Context) -> None:
        nodes = [context.node(target) for target in targets]
        self._before |= {node: _counted(context.run_dir, node) for node in nodes}
        for node in nodes:
            context.undo("faults.rdma", node=node.name)
            rdma.order(context.run_dir, node.name, self.how, self.delay.s)
        context.injected()
        end = time.monotonic() + self.duration.s
        within_s = min(SEEN_WITHIN_S, self.duration.s)
        context.wait(within_s, until=lambda: all(self._since(node, context).struck for node in nodes))
        for node in nodes:
            self._measure(node, context)
        context.wait(max(0.0, end - time.monotonic()))

    def heal(self, targets: Sequence[Target], context: Context) -> None:
        for node in self._before:
            UNDO(context.run_dir, node.name)

    def see_end(self, targets: Sequence[Target], context: Context) -> None:
        context.wait(OVER_S)
        before = {node: _counted(context.run_dir, node) for node in self._before}
        context.wait(WATCHED_S)
        for node, earlier in before.items():
            now = _counted(context.run_dir, node)
            left, passed = now.struck - earlier.struck, now.posted - earlier.posted
            context.ended(left, 0, "work requests struck", ok=not left, detail=f"{node.name}: {passed} were posted")

    def _since(self, node: Node, context: Context) -> Counts:
        now, before = _counted(context.run_dir, node), self._before[node]
        waited_s = now.waited_s - before.waited_s
        return Counts(now.posted - before.posted, now.struck - before.struck, waited_s, now.queries - before.queries)

    def _measure(self, node: Node, context: Context) -> None:
        seen = self._since(node, context)
        detail = f"{node.name}: {seen.posted} posted"
        if self.how != "delay":
            down = f", {seen.queries} queries of a port answered" if self.how == "port_down" else ""
            context.effect(seen.struck, 1, "work requests failed, at least", ok=seen.struck > 0, detail=detail + down)
            return
        mean_ms, asked_ms = 1e3 * seen.waited_s / max(1, seen.struck), self.delay.s * 1e3
        ok = seen.struck > 0 and mean_ms >= asked_ms * (1 - TOLERANCE)
        context.effect(mean_ms, asked_ms, "ms of delay on average", ok=ok, detail=f"{detail}, {seen.struck} delayed")


def _counted(run_dir: pathlib.Path, node: Node) -> Counts:
    folder = answers_of(node.name)
    names = [name for name in untrusted_files.names_in(run_dir, folder) if name.startswith(rdma.COUNTS)]
    lines = (untrusted_files.tail(run_dir, f"{folder}/{name}", rdma.LINE) for name in names)
    return sum(map(rdma.counts, lines), Counts())


def UNDO(run_dir: pathlib.Path, node: RunPath) -> None:
    if (run_dir / rdma.FOLDER).is_dir():
        rdma.order(run_dir, node, "nothing")


FAULT = Rdma
