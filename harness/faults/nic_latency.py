"""Packets of a node take longer to arrive, for example because of a congested switch."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable

from pydantic import Field, PrivateAttr, model_validator

from harness.backends.contract import Node, Verb
from harness.errors import FaultError
from harness.faults.contract import Context, Targets, name_nodes
from harness.faults.shared.network_faults import NicFault, median_ms, near, way
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.types import Arrivals, Impairment
from harness.parameters import Percentage
from harness.units import Duration

PACKETS, PACKETS_AFTER = 80, 20
INTERVAL_S = 0.005
INTERVAL_S_MAX = 0.05
LATE_S = 0.5  # what a packet may take beyond its delay
LOOKS = 3
QUIET = 0.1  # so near to what was asked it comes on a machine that is not busy
SLACK_MS = 1.0  # what a busy machine adds to any packet


class NicLatency(NicFault):
    """Delays packets that a node sends, receives, or both. The delay can vary (jitter), and packets can overtake
    others."""

    delay: Duration = Field(Duration("20ms"), description="Added to each packet, each way.")
    jitter: Duration = Field(Duration("0ms"), description="The delay varies by this much up and down, in order.")
    reorder_percent: Percentage = Field(0, ge=0, lt=100, description="Share of packets that go ahead without delay.")

    runbook = "F3"
    needs = frozenset({Verb.NET_DELAY})
    truth = Truth((Kind.NETWORK,), Place.NODE, (Decision.EVICT_NODE, Decision.IGNORE))
    _usual_ms: dict[tuple[Node, bool], float] = PrivateAttr(default_factory=dict)  # node and direction → before it

    @model_validator(mode="after")
    def _possible(self) -> NicLatency:
        if self.delay.s <= 0:
            raise ValueError(f"delay: {self.delay}: must be longer than 0")
        if self.jitter.s > self.delay.s:
            raise ValueError(f"jitter: {self.jitter}: at most the delay, {self.delay}")
        return self

    def describe(self, targets: Targets) -> str:
        jitter = f" ± {self.jitter}" if self.jitter.s else ""
        reorder = f", {self.reorder_percent:g}% overtake" if self.reorder_percent else ""
        what = f"{self.delay}{jitter} of delay{reorder}, {self.direction}{self.with_whom()}"
        return f"{name_nodes(targets)}: {what}, {self.for_how_long()}"

    def inject(self, targets: Targets, context: Context) -> None:
        for target in targets:
            self._delay(context.node(target), context)
        self.stay(context)

    def see_end(self, targets: Targets, context: Context) -> None:
        for (node, back), usual_ms in self._usual_ms.items():
            partner, half_ms, added = self.partner(node, context), self.delay.s * 1e3 / 2, 0.0
            for _ in range(LOOKS):
                added = median_ms(node.send_packets(partner, PACKETS_AFTER, INTERVAL_S / 2, back)) - usual_ms
                if added < half_ms:
                    break
            detail = f"{node.name}, {way(back)}: {usual_ms:.2f} ms before the fault"
            context.ended(added, 0, "ms added one way", ok=added < half_ms, detail=detail)

    def _delay(self, node: Node, context: Context) -> None:
        partner = self.partner(node, context)
        # Far enough apart for the jitter to have moved on, so that its mean is measured.
        interval_s = min(max(INTERVAL_S, 2 * self.jitter.s), INTERVAL_S_MAX)
        wait_s = self.delay.s + self.jitter.s + LATE_S
        before = {back: node.send_packets(partner, PACKETS, INTERVAL_S / 2, back) for back in self.ways()}
        self._usual_ms |= {(node, back): median_ms(arrivals) for back, arrivals in before.items()}
        asked = Impairment(self.delay.s, self.jitter.s, self.reorder_percent, seed=context.seed % 2**32)
        self.begin(lambda: node.impair(asked, self.traffic(node, context)))
        self.watch(node, self.traffic(node, context), context)
        context.injected()
        for back in self.ways():
            look = functools.partial(node.send_packets, partner, PACKETS, interval_s, back, wait_s)
            self._measure(f"{node.name}, {way(back)}", median_ms(before[back]), look, context)

    def _measure(self, where: str, usual_ms: float, look: Callable[[], Arrivals], context: Context) -> None:
        delay_ms, seen = self.delay.s * 1e3, list[float]()
        average = statistics.mean if self.jitter.s else statistics.median
        overtaken = quiet = False
        while not (overtaken and quiet) and len(seen) < LOOKS:
            during = look()
            added_ms = [delay_s * 1e3 - usual_ms for delay_s in during.delays_s]
            held = [ms for ms in added_ms if ms > delay_ms / 4]  # of the packets that were held at all
            if not held and self.reorder_percent < 99:
                raise FaultError(f"{where}: no packet was delayed")
            seen.append(average(held or [0.0]))
            overtaken = self.reorder_percent == 0 or during.late > 0
            quiet = near(seen[-1], delay_ms, SLACK_MS, QUIET)
        *earlier, added = seen
        detail = f"{where}: {usual_ms:.2f} ms before; {during.late} of {during.received} overtaken"
        looks = f"; looked again, as it was {', '.join(f'{ms:.2f}' for ms in earlier)} ms" if earlier else ""
        ok = overtaken and near(added, delay_ms, SLACK_MS)
        context.effect(added, delay_ms, "ms added one way", ok=ok, detail=detail + looks)


FAULT = NicLatency
