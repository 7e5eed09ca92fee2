"""Defines the job that a forecast simulates, and how a user can change an input of the job."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from harness.errors import UsageError, choice
from harness.theory import closed_forms
from harness.units import parse_duration_ns

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
INTERVAL_MIN_S = 60.0  # of an interval between checkpoints that nobody gave
RATE_MAX = 100_000.0  # failures per 1,000 node-days


class Origin(StrEnum):
    MEASURED = "measured"
    GIVEN = "given"
    ASSUMED = "assumed"


@dataclass(frozen=True)
class Value:
    """An input of a forecast, such as the seconds of a restart, with its source. Several `values` are repeated
    measurements of the same input; each simulated event draws one of them at random."""

    values: tuple[float, ...]
    origin: Origin
    source: str

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)


@dataclass(frozen=True)
class Setting:
    """A named input of a forecast that the user may set, with its default (in seconds if `is_time` is True)."""

    about: str
    default: float
    source: str
    is_time: bool = False
    low: float = 0.0
    high: float = math.inf
    whole: bool = False


_KOKOLIS = "Kokolis et al., HPCA 2025"
_BYTEROBUST = "ByteRobust, SOSP 2025"
SETTINGS: Mapping[str, Setting] = {
    "detection": Setting("from a failure that ends a process until the job stops", 60, f"{_BYTEROBUST}: 60 s", True),
    "silent_detection": Setting(
        "the same of a hang or of wrong numbers", 600, "PyTorch's limit for a collective", True
    ),
    "restart": Setting("from the stop until new steps, nodes being there", 300, f"{_KOKOLIS}: figures fit 5 min", True),
    "checkpoint_stall": Setting(
        "each checkpoint stops training for this", 10, f"{_KOKOLIS}: as 12,000 GPUs need", True
    ),
    "checkpoint_every": Setting("work between two checkpoints", 0, "Daly's best interval, 1 min or more", True, 1e-3),
    "spares": Setting("nodes that stand by", 0, "enough in 99 % of all moments", high=1e7, whole=True),
    "repair": Setting(
        "mean time until a lost node is back; half are back in 15 % of it",
        132.8 * HOUR_S,
        "trace of InfiniteHBD: 584 faults of 400 servers",
        True,
    ),
    "queue": Setting("a lost node is replaced from outside after this", math.inf, "no node comes from outside", True),
    "smallest": Setting("share of the nodes with which the job goes on", 1, "it waits for all", low=0.01, high=1),
    "pace": Setting(
        "pace of a smaller world, per node that is left", 1, "only its nodes are missing", low=0.01, high=1
    ),
    "together": Setting("share of lost nodes that take others along", 0.01, f"{_BYTEROBUST}: catastrophes", high=1),
    "together_nodes": Setting("nodes lost at once then", 32, f"{_BYTEROBUST}: 32", low=1, high=4096, whole=True),
    "lemons": Setting("share of the nodes that fail more often", 0, "none", high=1),
    "lemon_factor": Setting("times as often as the others", 10, "an example", low=1, high=10_000),
    "lemons_found": Setting("share of a lemon's failures after which it is put aside", 0, "none", high=1),
    "spot_reclaims": Setting(
        "spot nodes reclaimed, per node-day",
        0.0017,
        "Spot Advisor's best class: 5 % of nodes in a month; traces of many nodes have up to 12 a node and day",
        high=1000,
    ),
    "spot_return": Setting("until another spot node is there", 300, "nothing is published of many nodes", True),
    "spot_available": Setting(
        "share of the time in which all spot nodes can be had", 0.5, "spot traces of 16 nodes: 43 to 55 %", high=1
    ),
    "spot_spell": Setting("and for how long each time", 2.4 * HOUR_S, "the same traces: 324 h in 134 times", True, 60),
}
OF_CAUSES = ("detection", "silent_detection", "restart")  # each cause has its own
NAMES = (*SETTINGS, "recovery", "failure_rate")


@dataclass(frozen=True)
class Cause:
    """A kind of failure of the simulated job: its rate, and how long its detection and the restart take. `counted` is
    the number of failures from which the rate was estimated, or `None` if the rate counts as exact. `takes_node` is
    True if the node must be replaced. `back_s` is the fixed number of seconds after which the node is back without a
    repair."""

    name: str
    per_node_day: float
    detection: Value
    restart: Value
    counted: int | None = None
    takes_node: bool = True
    silent: bool = False
    back_s: float | None = None


@dataclass(frozen=True)
class Gaps:
    """The distribution of the times between failures. With a Weibull `shape` of 1, failures come at random; with a
    smaller `shape`, failures come in bursts. `trace` holds the times between failures in a recorded trace, scaled to a
    mean of 1. Each simulation of the job uses the times in `trace` in order, from a random start."""

    shape: float = 1.0
    trace: tuple[float, ...] = ()
    words: str = "at random (Poisson)"


@dataclass(frozen=True)
class Job:
    """The job that a forecast simulates. `work_s` is the job's duration in seconds on all nodes, without failures and
    checkpoints."""

    nodes: int
    work_s: float
    causes: tuple[Cause, ...]
    settings: Mapping[str, Value]  # all of `SETTINGS`; those in `OF_CAUSES` hold for causes that have no own
    gaps: Gaps = Gaps()

    def mean(self, name: str) -> float:
        return self.settings[name].mean

    @property
    def per_node_day(self) -> float:
        return math.fsum(cause.per_node_day for cause in self.causes)

    @property
    def mtbf_s(self) -> float:
        rate = self.nodes * self.per_node_day / DAY_S
        return 1 / rate if rate else math.inf

    def average(self, part: str) -> float:
        """Returns the mean seconds of the `detection` or the `restart` over all kinds of failures."""
        parts = ((cause.per_node_day, getattr(cause, part).mean) for cause in self.causes)
        return math.fsum(rate * seconds for rate, seconds in parts) / (self.per_node_day or 1.0)

    @property
    def losses_per_s(self) -> float:
        """Returns how many nodes per second the whole job loses by failures that need a repair."""
        rate = math.fsum(each.per_node_day for each in self.causes if each.takes_node and each.back_s is None)
        return self.nodes * rate / DAY_S * (1 + self.mean("together") * (self.mean("together_nodes") - 1))

    def changed(self, text: str) -> Job:
        """Returns the job with one input changed, for example by `restart=2m` (a value) or `recovery=0.5x` (a factor).
        Raises `UsageError` for an unknown input or a value that is not allowed."""
        name, equals, written = (part.strip() for part in text.partition("="))
        if not equals or name not in NAMES:
            raise UsageError(f"{text[:80]!r} is no change: write NAME=VALUE or NAME=0.5x; {choice(name, NAMES)}")
        by_factor = written.endswith("x")
        factor = number(written[:-1], f"{name}, its factor", 0, 1e6) if by_factor else 1.0
        if name == "recovery":  # the whole of it: written as one time, nothing is left for detection
            other = written if by_factor else "0s"
            job = self.changed(f"detection={other}").changed(f"silent_detection={other}")
            return job.changed(f"restart={written}")
        if name == "failure_rate":
            if not by_factor:
                factor = number(written, "failure_rate, per 1,000 node-days", 0, RATE_MAX) / 1000 / self.per_node_day
            causes = (replace(each, per_node_day=factor * each.per_node_day) for each in self.causes)
            return replace(self, causes=tuple(causes))
        setting = SETTINGS[name]

        def allowed(value: object) -> float:
            return number(value, name, setting.low, setting.high, setting.whole)

        if by_factor:
            whole = round if setting.whole else float
            return self._with(name, lambda old: tuple(allowed(whole(factor * each)) for each in old), text)
        value = allowed(seconds_of(written, name) if setting.is_time else written)
        return self._with(name, lambda old: (value,), text)

    def _with(self, name: str, change: Callable[[tuple[float, ...]], tuple[float, ...]], text: str) -> Job:
        def changed(old: Value) -> Value:
            return Value(change(old.values), Origin.GIVEN, text)

        causes = list(self.causes)
        for place, each in enumerate(causes):
            if name == ("silent_detection" if each.silent else "detection"):
                causes[place] = replace(each, detection=changed(each.detection))
            elif name == "restart":
                causes[place] = replace(each, restart=changed(each.restart))
        return replace(self, causes=tuple(causes), settings={**self.settings, name: changed(self.settings[name])})

    def with_setting(self, name: str, value: float) -> Job:
        return replace(self, settings={**self.settings, name: replace(self.settings[name], values=(value,))})

    def completed(self) -> Job:
        """Returns the job with a checkpoint interval (by Daly's formula) and a number of spare nodes, unless the user
        gave them."""
        found = dict(self.settings)
        stall = self.mean("checkpoint_stall")
        if found["checkpoint_every"].origin is Origin.ASSUMED:
            best = closed_forms.daly_interval_s(stall, self.mtbf_s) if self.per_node_day else self.work_s
            found["checkpoint_every"] = replace(found["checkpoint_every"], values=(max(INTERVAL_MIN_S, best),))
        if found["spares"].origin is Origin.ASSUMED:
            away = self.losses_per_s * min(self.mean("repair"), self.mean("queue"))
            found["spares"] = replace(found["spares"], values=(float(enough(away)),))
        return replace(self, settings=found)


def enough(away: float, share: float = 0.99) -> int:
    """Returns the number of spare nodes that suffice for a `share` of the time, if `away` nodes are missing on average
    (Poisson distribution)."""
    if away > 1000:  # hardly anything but normal
        return math.ceil(away + statistics.NormalDist().inv_cdf(share) * math.sqrt(away))
    parts = max(100, round(100 * away))  # so many places, each of which is rarely away
    return closed_forms.spares_needed(parts, away / parts, share) if away else 0


def default_settings() -> dict[str, Value]:
    return {name: Value((each.default,), Origin.ASSUMED, each.source) for name, each in SETTINGS.items()}


def number(written: object, what: str, low: float, high: float, whole: bool = False) -> float:
    """Parses a finite number from `low` to `high`, which must be an integer if `whole` is True. Raises `UsageError` for
    any other text."""
    try:
        value = float(str(written)[:40])
    except ValueError:
        value = math.nan
    if not low <= value <= high or math.isinf(value) or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        most = "" if math.isinf(high) else f" to {high:,.15g}"
        said = f"{str(written)[:40]!r} is not allowed" if written != "" else "it is missing"
        raise UsageError(f"{what}: {said}; write {kind} from {low:,.15g}{most}")
    return value


def seconds_of(written: str, what: str) -> float:
    try:
        return parse_duration_ns(written) / 1e9
    except ValueError as error:
        raise UsageError(f"{what}: {error}") from None
