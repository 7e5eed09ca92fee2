"""A node is slower than the others, for example because of heat, and all ranks wait for the slow node."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from pydantic import Field, PrivateAttr

from harness.backends.contract import Node, Verb
from harness.errors import CannotRunError, FaultError, NodeGone, UsageError
from harness.faults.contract import END_SEEN_WITHIN_S, Context, Fault, Targets, name_nodes
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.types import CpuUse
from harness.units import Duration

BASELINE_STEPS = 60  # at most
BASELINE_STEPS_MIN = 10
OUTLIER = 5.0  # a step of the baseline that takes so many times the median is a hiccup
WINDOW_S = 1.0  # of one measurement: ten turns of a duty cycle
WINDOW_STEPS_MIN = 4
END_WINDOW_S = 0.5  # of the measurement once it is over
DENIED_MAX = 0.02  # of the time without a CPU: nothing holds the node back
SILENT_STEPS_MAX = 20  # no step for so many slowed ones: the job is over, or stuck
GAIN, GAIN_HELD = 0.7, 0.3  # of one correction: less than all, as a measurement is noisy
CORRECTION_MAX = 2.0
SETTLED = 0.08  # within this of what was asked the severity is reached
SETTLE_SHARE = 0.5  # of the duration at most; what follows is measured, reached or not
TOLERANCE = 0.25  # of the slowdown: a busy machine must not make a run invalid
EXTRA_MIN, EXTRA_MAX = 0.02, 200.0
BURNERS_MAX = 32.0

Way = Literal["quota", "duty_cycle", "noisy_neighbour"]
WAYS = {
    "auto": "by a CPU quota, or in turns where there is none",
    "quota": "by a CPU quota",
    "duty_cycle": "by stopping everything on it many times a second",
    "noisy_neighbour": "by a noisy neighbour",
}


class Straggler(Fault):
    """Slows one node until steps take `factor` times as long. Feedback from measured step times keeps the slowdown
    constant."""

    factor: float = Field(2.0, gt=1.05, le=20, description="Step time during the fault over step time before.")
    how: Literal["auto", Way] = Field("auto", description="; ".join(f"{way}: {what}" for way, what in WAYS.items()))
    neighbour: Literal["cpu", "memory", "gpu"] = Field("cpu", description="What a noisy neighbour burns.")
    duration: Duration = Field(Duration("20s"), description="How long it lasts.")

    runbook = "F2"
    needs = frozenset({Verb.CPU})
    truth = Truth((Kind.STRAGGLER,), Place.NODE, (Decision.EVICT_NODE, Decision.RESTART_ELSEWHERE, Decision.IGNORE))
    _hold_seen: Hold | None = PrivateAttr(None)

    def needed(self) -> frozenset[Verb]:
        return frozenset({Verb.CPU_QUOTA}) if self.how == "quota" else self.needs

    def describe(self, targets: Targets) -> str:
        way = WAYS[self.how] + (f" ({self.neighbour})" if self.how == "noisy_neighbour" else "")
        return f"{name_nodes(targets)} slowed {way} until steps take {self.factor:g} times as long, for {self.duration}"

    def inject(self, targets: Targets, context: Context) -> None:
        nodes = [context.node(target) for target in targets]
        ranks = context.ranks_on(nodes[0])
        if not ranks:
            raise FaultError(f"no rank has started on {nodes[0].name}, so there is nothing to slow down")
        before_ns = baseline_ns(context.step_times_ns(ranks[0]))
        brakes = [self._brake(node) for node in nodes]
        hold = self._hold_seen = Hold(self.factor, before_ns, brakes)
        context.injected()
        try:
            self._hold(hold, ranks[0], context)
        finally:
            hold.report(context.step_times_ns(ranks[0], hold.settled_ns), context)

    def heal(self, targets: Targets, context: Context) -> None:
        for target in targets:
            node = context.node(target)
            for way in get_args(Way) if self.how == "auto" else (self.how,):
                # `auto` does not tell which way was taken: one that is not there was not.
                with contextlib.suppress(NodeGone, *((CannotRunError, UsageError) if self.how == "auto" else ())):
                    Brake(node, way, self.neighbour).press(None)

    def see_end(self, targets: Targets, context: Context) -> None:
        if self._hold_seen is None:
            return
        hold, since_ns = self._hold_seen, time.monotonic_ns()
        rank = context.ranks_on(hold.brakes[0].node)[0]
        used = [brake.node.cpu_use() for brake in hold.brakes]
        context.wait(END_WINDOW_S)
        context.wait(END_SEEN_WITHIN_S - END_WINDOW_S, _enough(context, rank, since_ns))
        times_ns = context.step_times_ns(rank, since_ns)
        if len(times_ns) < WINDOW_STEPS_MIN:
            return
        ratio = statistics.fmean(times_ns) / hold.before_ns
        denied = max(brake.denied_share(before) for brake, before in zip(hold.brakes, used, strict=True))
        free = denied < DENIED_MAX and all(brake.tells_denial for brake in hold.brakes)
        ok = ratio < (1 + self.factor) / 2 or free
        detail = f"{len(times_ns)} steps; {denied:.0%} of the time without a CPU"
        context.ended(round(ratio, 3), 1.0, "times the step time", ok=ok, detail=detail)

    def _brake(self, node: Node) -> Brake:
        brake = Brake(node, "quota" if self.how == "auto" else self.how, self.neighbour)
        try:
            brake.press(self.factor - 1)
        except (CannotRunError, UsageError):
            if self.how != "auto":
                raise
            brake = Brake(node, "duty_cycle", self.neighbour)
            brake.press(self.factor - 1)
        return brake

    def _hold(self, hold: Hold, rank: int, context: Context) -> None:
        duration_s = self.duration.s
        begin = time.monotonic()
        silent_s = max(WINDOW_S, SILENT_STEPS_MAX * self.factor * hold.before_ns / 1e9)
        while (left_s := begin + duration_s - time.monotonic()) > 0:
            since_ns = time.monotonic_ns()
            context.wait(min(WINDOW_S, left_s))
            enough = _enough(context, rank, since_ns)
            left_s = begin + duration_s - time.monotonic()
            if not enough() and not context.wait(max(0.0, min(silent_s, left_s)), enough):
                continue
            halfway = time.monotonic() - begin > SETTLE_SHARE * duration_s
            hold.correct(context.step_times_ns(rank, since_ns), settle=halfway)


def _enough(context: Context, rank: int, since_ns: int) -> Callable[[], bool]:
    return lambda: len(context.step_times_ns(rank, since_ns)) >= WINDOW_STEPS_MIN


def baseline_ns(times_ns: Sequence[int]) -> float:
    """Returns the mean step time in ns before the fault, without outliers. Raises `FaultError` for too few steps."""
    latest = times_ns[-BASELINE_STEPS:]
    if len(latest) < BASELINE_STEPS_MIN:
        raise FaultError(f"{len(latest)} steps before the fault; a slowdown needs {BASELINE_STEPS_MIN} to compare with")
    usual = statistics.median(latest)
    return statistics.fmean(each for each in latest if each <= OUTLIER * usual)


class Hold:
    """A feedback controller that slows nodes by `extra`, adjusted until steps take `factor` times as long."""

    def __init__(self, factor: float, before_ns: float, brakes: Sequence[Brake]):
        self.factor, self.before_ns, self.brakes = factor, before_ns, brakes
        self.extra = factor - 1
        self.settled_ns = 0
        self._used: list[CpuUse] = []

    def correct(self, times_ns: Sequence[int], settle: bool) -> None:
        """Adjusts the slowing to newly measured step times. Measurements for the report begin once the planned factor
        is reached, or at the latest when `settle` is True."""
        ratio = statistics.fmean(times_ns) / self.before_ns
        reached = abs(ratio / self.factor - 1) <= SETTLED
        if not self.settled_ns and (reached or settle):
            self._used = [brake.node.cpu_use() for brake in self.brakes]
            self.settled_ns = time.monotonic_ns()
        self.extra = corrected(self.extra, self.factor, ratio, GAIN_HELD if self.settled_ns else GAIN)
        for brake in self.brakes:
            brake.press(self.extra)

    def report(self, times_ns: Sequence[int], context: Context) -> None:
        if not self.settled_ns or len(times_ns) < WINDOW_STEPS_MIN:
            detail = f"{len(times_ns)} slowed steps were seen; {WINDOW_STEPS_MIN} are needed"
            context.effect(0.0, self.factor, "times the step time", ok=False, detail=detail)
            return
        ratio, held_back = statistics.fmean(times_ns) / self.before_ns, False
        detail = f"{self.before_ns / 1e6:.1f} ms a step before, {ratio * self.before_ns / 1e6:.1f} ms during"
        for brake, before in zip(self.brakes, self._used, strict=True):
            denied = brake.denied_share(before)
            detail += f"; {brake.node.name}: {brake.way.replace('_', ' ')}, {denied:.0%} of the time without a CPU"
            held_back |= denied >= DENIED_MAX or not brake.tells_denial  # else a busy host slowed it, and not the fault
        ok = held_back and abs(ratio / self.factor - 1) <= TOLERANCE
        context.effect(round(ratio, 3), self.factor, "times the step time", ok=ok, detail=detail)


def corrected(extra: float, factor: float, ratio: float, gain: float) -> float:
    """Returns a better value for the slowing `extra`, with which steps took `ratio` times as long as before the
    fault."""
    wanted = (factor - 1) / max(ratio - 1, (factor - 1) / 10)
    step = min(CORRECTION_MAX, max(1 / CORRECTION_MAX, math.pow(wanted, gain)))
    return min(EXTRA_MAX, max(EXTRA_MIN, extra * step))


class Brake:
    """Slows a node, such as by a CPU quota. An `extra` of 1 means that everything on the node takes twice as long."""

    def __init__(self, node: Node, way: Way, neighbour: str):
        self.node, self.way, self.neighbour = node, way, neighbour
        self.tells_denial = way != "noisy_neighbour"  # `denied_share` is 0 when it does not act
        self._cpus = 0.0  # that the node keeps busy when nothing limits it; 0: not counted yet

    def press(self, extra: float | None) -> None:
        if self.way == "noisy_neighbour":
            self.node.crowd(self.neighbour, None if extra is None else min(extra, BURNERS_MAX))
        elif self.way == "duty_cycle":
            self.node.throttle(None if extra is None else 1 / (1 + extra))
        elif extra is None:
            self.node.limit_cpu(None)
        else:  # at the trigger it may be held, and so idle
            self._cpus = self._cpus or float(max(1, sum(each.state == "R" for each in self.node.processes())))
            self.node.limit_cpu(self._cpus / (1 + extra))

    def denied_share(self, before: CpuUse) -> float:
        now = self.node.cpu_use()
        return (now.throttled_ns - before.throttled_ns) / max(1, now.at_ns - before.at_ns)


FAULT = Straggler
