"""Defines the common parts of all preflight checks, such as the checks of links and clocks. Each check is a file in
this folder, and judges measurements, but makes no measurements itself.

A check uses one of three runs: `nodes` (a program measures the nodes), `canary` (the trainer runs without a fault) or
`drill` (the trainer loses a rank)."""

from __future__ import annotations

import abc
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import msgspec

from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict, merge
from harness.plan.run_plan import Plan
from harness.plugins import Family
from harness.units import counted

Run = Literal["nodes", "canary", "drill"]
NAMES_MAX = 8
OTHERS_MIN = 2  # fewer are no measure of what is usual
Words = Annotated[str, msgspec.Meta(max_length=4096)]
Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
T = TypeVar("T")
V = TypeVar("V")
K = TypeVar("K")


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """A flaw of the cluster that a check found, and where the flaw is. If `certain` is False, the flaw makes the
    preflight inconclusive instead of failed."""

    words: str
    cause: str = ""  # the usual cause
    nodes: list[str] = []
    ranks: list[int] = []
    link: list[str] = []  # its two ends, from and to
    figure: float | None = None
    usual: float | None = None  # the value that it is compared with
    unit: str = ""
    certain: bool = True


def doubt(words: str, cause: str = "", nodes: Sequence[str] = ()) -> Finding:
    return Finding(words, cause, [*nodes], certain=False)


class Judged(msgspec.Struct, omit_defaults=True):
    """The result of one check of the cluster. `not_judged` is the reason why the check was impossible, or is empty."""

    words: str = ""  # the result in one line, also without findings
    findings: list[Finding] = []
    figures: dict[str, float] = {}  # by name: later preflights are compared with these
    shown: dict[str, float] = {}  # by name: not compared, as they are small or vary
    facts: dict[str, str] = {}  # by name: later preflights must have the same
    not_judged: str = ""

    @property
    def verdict(self) -> Verdict | None:
        if self.not_judged and not self.findings:
            return None
        found = [Verdict.FAIL if each.certain else Verdict.INCONCLUSIVE for each in self.findings]
        return merge([Verdict.PASS, *found])


class Told(NamedTuple):
    """One measurement by the program that runs on the nodes. `rank` is `None` for a measurement of the node itself."""

    node: str
    rank: int | None
    probe: str
    values: Mapping[str, Any]


@dataclass
class Seen:
    plan: Plan  # the scenario's plan
    told: Sequence[Told] = ()
    nodes: Sequence[str] = ()  # the planned nodes, in order
    environment: Mapping[str, Any] = field(default_factory=dict)  # as told by the run
    ended: str = ""  # why the program on the nodes did not finish; empty: it did
    canary: Scorecard | None = None
    canary_ended: str = ""  # the same for the canary
    drill: Scorecard | None = None
    drill_ended: str = ""
    damaged: list[str] = field(default_factory=list)  # what nodes told and cannot be read
    one_host: bool = False  # all nodes are on the harness's own, and share its CPUs

    def of(self, probe: str, kind: type[T]) -> list[tuple[Told, T]]:
        """Returns the valid measurements of one kind. Each invalid measurement adds an error to `damaged`, because
        nodes are not trusted."""
        found = []
        for each in self.told:
            if each.probe == probe:
                try:
                    found.append((each, msgspec.convert(each.values, kind)))
                except msgspec.ValidationError as error:
                    self.damaged.append(f"{each.node} told something of {probe} that cannot be read: {error}")
        return found

    def by_node(self, probe: str, kind: type[T]) -> dict[str, T]:
        return {each.node: values for each, values in self.of(probe, kind)}

    def by_rank(self, probe: str, kind: type[T]) -> dict[int, T]:
        return {each.rank: values for each, values in self.of(probe, kind) if each.rank is not None}

    @property
    def saves(self) -> str:
        """Returns the last part of the checkpoint folder's path, such as `/checkpoints`."""
        return f"/{self.plan.workload.checkpoint.folder}"

    def node_of(self, rank: int) -> str:
        place = self.plan.workload.node_of(rank)
        return self.nodes[place] if 0 <= place < len(self.nodes) else f"rank {rank}"

    def silent_ranks(self, what: str, told: Iterable[int]) -> list[Finding]:
        return self.silent(what, map(self.node_of, told), self.plan.workload.ranks_per_node)

    def silent(self, what: str, told: Iterable[str], ranks: int = 1) -> list[Finding]:
        """Returns a finding on nodes with fewer than `ranks` measurements, or no finding if there are no such nodes."""
        heard = Counter([*told])
        missing = [node for node in self.nodes if heard[node] < ranks]
        if not missing:
            return []
        why = "; ".join(f"{node}: {words}" for node, words in self.failures()) or self.ended
        words = f"{named(missing)} told {'nothing' if ranks == 1 else 'not all'} of {what}"
        return [doubt(f"{words} ({why})" if why else words, nodes=missing)]

    def failures(self) -> Iterator[tuple[str, str]]:
        for each in self.told:
            if each.probe == "failed":
                stage, error = (str(each.values.get(name, ""))[:300] for name in ("stage", "error"))
                yield each.node, f"{stage}: {error}"


class Check(abc.ABC):
    title: ClassVar[str]
    order: ClassVar[int] = 99  # in reports
    needs: ClassVar[Run] = "nodes"
    probe: ClassVar[str] = ""  # the part of the node program that it needs; empty: the look at the node
    least: ClassVar[float | None] = None  # its figures must reach this multiple of the baseline's
    most: ClassVar[float | None] = None  # its figures must not exceed this multiple
    cause: ClassVar[str] = ""  # the usual cause of its findings

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    @abc.abstractmethod
    def judge(self, seen: Seen) -> Judged: ...


_FAMILY = Family("check", "harness.preflight.checks", "CHECK")
check_names = _FAMILY.names
load_check: Callable[[str], Check] = _FAMILY.load


def in_order(wanted: Collection[str] = ()) -> list[str]:
    names = [name for name in check_names() if name in wanted or not wanted]
    return sorted(names, key=lambda name: load_check(name).order)


def named(names: Sequence[str]) -> str:
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def listed(values: Mapping[str, object]) -> str:
    return "; ".join(f"{who}: {value or 'none'}" for who, value in list(values.items())[:NAMES_MAX])


def odd_ones(values: Mapping[str, V]) -> tuple[V | None, dict[str, V]]:
    """Returns the value that most nodes (or ranks) have, and the other nodes' values by name. If no value has a
    majority, returns `None` and all values."""
    groups: dict[V, list[str]] = {}
    for who, value in values.items():
        groups.setdefault(value, []).append(who)
    if len(groups) < 2:
        return next(iter(groups), None), {}
    most = max(groups, key=lambda value: len(groups[value]))
    if 2 * len(groups[most]) <= len(values):
        return None, dict(values)
    return most, {who: value for who, value in values.items() if value != most}


FAR_BELOW = 0.1  # of the others: so much slower is nothing because a host is busy


def accused(words: str, cause: str, share: float, others: int, seen: Seen, **more: Any) -> Finding:
    """Makes a finding on a slow part of the cluster, whose speed is `share` times the other parts' speed. With a
    `share` of 0.1 or more, the finding is uncertain if only one other part was measured, or if all nodes share one
    host's CPUs."""
    why = "all nodes share the CPUs of one host, and what else it does slows some of them" if seen.one_host else ""
    why = why or ("there is one other to compare with" if others < OTHERS_MIN else "")
    if not why or share < FAR_BELOW:
        return Finding(words, cause, **more)
    return Finding(words, f"{why}: run it again on a quiet host; or {cause}", certain=False, **more)


def measured_again(times: int) -> str:
    return f"; what seemed slow was measured {counted(times, 'more time')}" if times else ""


def below_the_others(values: Mapping[K, float], share: float) -> dict[K, float]:
    """Returns each part whose speed is below `share` times the other parts' median speed, with this median."""
    found = {}
    for who, value in values.items():
        others = [each for other, each in values.items() if other != who]
        if others and value < share * (usual := statistics.median(others)):
            found[who] = usual
    return found


class Reduced(msgspec.Struct):
    """The measurements of all-reduces in a group of ranks: message sizes in bytes, and times in seconds."""

    which: Literal["all", "within", "between"]
    ranks: Annotated[int, msgspec.Meta(ge=2, le=2**20)]
    times: Annotated[
        list[tuple[Annotated[int, msgspec.Meta(gt=0, le=2**40)], Annotated[float, msgspec.Meta(gt=0)]]],
        msgspec.Meta(min_length=1, max_length=100),
    ]

    def bus_bandwidths(self) -> list[tuple[int, float]]:
        """Returns pairs of a message size in bytes and the bus bandwidth in bytes per second. The bus bandwidth is that
        of nccl-tests: 2(N−1)/N × bytes / time for N ranks."""
        share = 2 * (self.ranks - 1) / self.ranks
        return [(size, share * size / seconds) for size, seconds in self.times]

    @property
    def bus_bandwidth(self) -> float:
        """Returns the bus bandwidth in bytes per second at the largest message size, where the latency matters
        least."""
        return max(self.bus_bandwidths())[1]


def rate(bytes_per_s: float) -> str:
    return scaled(8 * bytes_per_s, "bit/s")


def scaled(value: float, unit: str) -> str:
    """Formats a value with a unit prefix such as G, as in `50.6 GFLOP/s`."""
    prefixes = [*" kMGT"]
    while value >= 1000 and len(prefixes) > 1:
        value, prefixes = value / 1000, prefixes[1:]
    return f"{value:.3g} {prefixes[0].strip()}{unit}"
