"""Network faults on a real lab: they act, what was asked is what is measured, and nothing of them stays."""

import contextlib
import itertools
import math
import os
import pathlib
import random
import signal
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import machine
import pytest
import waiting
from faults.fault_context import means
from pydantic import ValidationError

from harness.api.testing import FaultContext
from harness.backends.contract import Launch, Node, Traffic
from harness.backends.local.backend import LocalCluster
from harness.errors import FaultError, UsageError
from harness.faults.contract import Target, build_fault
from harness.faults.nic_latency import NicLatency
from harness.node import leftovers
from harness.node.net import lossy_link
from harness.node.types import Arrivals, Impairment

IDLE = ("sleep", "300")


WAIT_S = 30.0  # for the last packets; there is no wait where all have come
_numbers = itertools.count()


class Watch(FaultContext):
    """A context that runs a fault against a cluster and keeps what it reports."""

    effects: list[Any]

    def __init__(self, cluster: LocalCluster, during: Callable[[], object] = lambda: None):
        super().__init__(pathlib.Path("/nowhere"))
        self.cluster, self._during, self.acting = cluster, during, 0
        self.seen: list[Any] = []  # while the fault acts

    def wait(
        self, seconds: float, until: Callable[[], bool] | None = None, meanwhile: Callable[[], None] | None = None
    ) -> bool:
        if until is not None:
            return waiting.until(until, "the fault to act")
        self.seen.append(self._during())  # the fault stays: this is the moment to look
        if meanwhile is not None:
            meanwhile()
        return False

    def injected(self) -> None:
        self.acting += 1

    def worker_pids(self, node: Node) -> list[int]:
        return []

    def traffic(self, *told: object) -> None:
        """Of an idle node."""

    def effect(self, measured: float, expected: float, unit: str, ok: bool, detail: str = "") -> None:
        self.effects.append({"measured": measured, "expected": expected, "unit": unit, "ok": ok, "detail": detail})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three idle nodes for all tests: whatever a test does, it must leave no trace of it. The conformance suite tries the
    verbs in each mode."""
    mode = machine.need_mode("root" if os.geteuid() == 0 else "user")
    run_id = f"network-{os.getpid()}-{next(_numbers)}"
    with LocalCluster(Launch(IDLE, 3, 1, control=IDLE), tmp_path_factory.mktemp("lab"), run_id, mode) as lab:
        lab.start()
        yield lab
    assert leftovers.leftovers(run_id) == []


@pytest.fixture
def healed() -> Iterator[contextlib.ExitStack]:
    """Heals what a test pushes on it, also when the test fails: the next one uses the same lab."""
    with contextlib.ExitStack() as stack:
        yield stack


def state(cluster: LocalCluster) -> dict[str, str]:
    """Everything of the lab's network that a disturbance could leave changed, as the kernel's own tools show it."""
    machine.need("nsenter", "ip", "tc", "nft")

    def control() -> list[int]:
        """A process that executes another program just now shows no environment."""
        return [item.process.pid for item in leftovers.leftovers(cluster._run_id) if item.node == "control.1"]

    labd = waiting.until(control, "the lab's own process")[0]
    enter = ["nsenter", "-t", str(labd), "-U", "--preserve-credentials", "-n"]
    enter = enter if cluster._mode == "user" else ["nsenter", "-t", str(labd), "-n"]
    shown = {}
    for command in ("ip addr", "ip route", "tc qdisc", "nft list ruleset"):
        done = subprocess.run([*enter, *command.split()], capture_output=True, text=True, check=True)
        shown[command] = done.stdout
    return shown


def assert_like(cluster: LocalCluster, before: Mapping[str, str]) -> None:
    """The kernel shows a link as up only some moments after it is."""
    waiting.until(lambda: state(cluster) == before, lambda: f"{before} instead of {state(cluster)}")


def run(cluster: LocalCluster, name: str, parameters: Mapping[str, Any], during: Callable[[], object]) -> Watch:
    """Runs the fault on node 0 until all it reports is near what was asked: other work makes paths slower."""

    def near() -> Watch | None:
        watch = run_once(cluster, name, parameters, during)
        found = [each["measured"] == pytest.approx(each["expected"], rel=0.1) and each["ok"] for each in watch.effects]
        return watch if all(found) else None

    return waiting.until(near, f"{name} as strong as asked")


def run_once(cluster: LocalCluster, name: str, parameters: Mapping[str, Any], during: Callable[[], object]) -> Watch:
    """From inject to heal, with a look at the lab's network before and after."""
    before, marks = state(cluster), list[bool]()
    watch = Watch(cluster, lambda: marks.append(state(cluster) != before) or during())
    fault = build_fault(name, parameters)
    try:
        fault.inject([Target(0)], means(watch))
    finally:
        fault.heal([Target(0)], means(watch))
        fault.heal([Target(0)], means(watch))  # idempotent
    assert marks and marks[0], "it left no mark on the network while it acted"
    assert_like(cluster, before)
    assert watch.acting >= 1 and watch.effects
    return watch


def least(node: Node, other: Node | None, back: bool = False) -> float:
    """The least delay of 30 packets: other work may hold up some of them, and sends none ahead."""
    return min(node.send_packets(other, 30, 0.002, back, wait_s=WAIT_S).delays_s, default=math.inf)


def reach(node: Node, other: Node | None, back: bool = False) -> bool:
    return node.send_packets(other, 5, 0.001, back, wait_s=1.0).received == 5


def fast(node: Node, other: Node, back: bool = False) -> float:
    return waiting.until(lambda: node.fill_path(other, 0.3, back=back) > 80e6, "the speed of another path")


def kept(node: Node, other: Node | None, back: bool = False) -> int:
    return node.send_packets(other, 200, 0.0002, back, wait_s=WAIT_S).received


DAMAGE = {"loss_percent": 10, "damage_percent": 10, "direction": "egress", "peers": [1, 2]}
CONTROL = {"cut_off_from": "control"}
FLAP = {"cycles": 2, "down": "1ms", "up": "1ms"}
# Fault, parameters, what is expected of each effect, what node 0 and two others look at while it acts, what they see.
ACTS: list[Any] = [
    *(
        ("nic_bandwidth", {"rate": "40mbit", "direction": direction, "peers": [1]}, [40], look, [(True, True)])
        for direction, look in (
            ("egress", lambda a, b, c: (fast(a, b, back=True), fast(a, c))),
            ("ingress", lambda a, b, c: (fast(a, b), fast(a, c, back=True))),
        )
    ),
    ("nic_bandwidth", {"rate": "40mbit"}, [40, 40], lambda a, b, c: None, [None]),
    (  # The control host is among all traffic.
        *("nic_latency", {"delay": "30ms", "direction": "egress"}, [30]),
        lambda a, b, c: [each >= 0.03 for each in (least(a, b, back=True), least(b, c), least(a, None))],
        [[False, False, True]],
    ),  # Only what node 0 sends to nodes is lost.
    ("nic_loss", DAMAGE, [10, 9], lambda a, b, c: (kept(a, None), kept(a, c, back=True)), [(200, 200)]),
    ("partition", {}, [0, 0], lambda a, b, c: (reach(a, None), reach(b, c), reach(a, c)), [(True, True, False)]),
    *(
        ("partition", CONTROL | {"direction": direction}, [0],
        lambda a, b, c: (reach(a, None), reach(a, None, back=True), reach(a, b)), [(out, not out, True)])
        for direction, out in (("egress", False), ("ingress", True))
    ),
    (
        *("nic_flap", FLAP, [0] * 4),
        lambda a, b, c: (reach(a, b), reach(b, a), reach(b, c)),
        [(False, False, True), (True, True, True), (False, False, True)],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "parameters", "expected", "look", "seen"), ACTS)
def test_it_acts_as_asked_on_that_alone_and_nothing_of_it_stays(
    cluster: LocalCluster, name: str, parameters: dict[str, Any], expected: list[float],
    look: Callable[[Node, Node, Node], object], seen: list[object],
) -> None:  # fmt: skip
    watch = run(cluster, name, parameters, lambda: look(*cluster.nodes))
    assert len(watch.effects) == len(expected)
    if name in ("nic_bandwidth", "nic_latency", "nic_loss"):
        assert [effect["expected"] for effect in watch.effects] == pytest.approx(expected)
    else:
        assert all(effect["ok"] for effect in watch.effects)
    assert watch.seen[: len(seen)] == seen and watch.acting == (2 if name == "nic_flap" else 1)


def test_a_percentage_of_the_speed(cluster: LocalCluster) -> None:
    watch = run(cluster, "nic_bandwidth", {"percent": 5, "direction": "egress"}, lambda: None)
    before = float(watch.effects[0]["detail"].split(": ")[1].split()[0])
    assert watch.effects[0]["expected"] == pytest.approx(before * 0.05, rel=0.02)


def test_jitter_keeps_the_order_and_reordering_does_not(cluster: LocalCluster) -> None:
    node, other, _ = cluster.nodes

    def look() -> Arrivals:
        return node.send_packets(other, 100, 0.001, wait_s=WAIT_S)

    def overtaking() -> bool:
        """Where other work keeps packets apart, none can overtake another."""
        found = look()
        return found.late > 20 and min(found.delays_s) < 0.02

    def spread() -> bool:
        """Where other work lets packets out together, all may wait for the slowest of them."""
        found = look()
        assert found.late == 0
        return max(found.delays_s) - min(found.delays_s) > 0.005

    jitter = lambda: waiting.until(spread, "packets that are not as late as each other")  # noqa: E731
    run(cluster, "nic_latency", {"delay": "30ms", "jitter": "10ms", "direction": "egress"}, jitter)
    again = lambda: waiting.until(overtaking, "packets that overtake others")  # noqa: E731
    run(cluster, "nic_latency", {"delay": "20ms", "reorder_percent": 30, "direction": "egress"}, again)


def test_damaged_data_arrives_whole_in_the_end(cluster: LocalCluster, healed: contextlib.ExitStack) -> None:
    """The checksums of TCP see the damage: a stream is slower, and goes on."""
    node, other, _ = cluster.nodes
    damage = node.impair(Impairment(damage_percent=2, seed=3), Traffic("egress"))
    healed.callback(damage.heal)
    node.fill_path(other, 0.5)
    assert damage.counts()["damaged"] > 0


@pytest.mark.parametrize(("burst", "share"), [(1.0, 0.1), (8.0, 0.1), (3.0, 0.4)])
def test_losses_come_in_the_share_and_the_runs_asked_for(burst: float, share: float) -> None:
    fate = lossy_link.Fate(Impairment(loss_percent=100 * share, burst=burst, seed=11))
    drawn = [fate.lost() for _ in range(200_000)]
    runs = [len(list(group)) for lost, group in itertools.groupby(drawn) if lost]
    assert sum(drawn) / len(drawn) == pytest.approx(share, rel=0.05)
    assert sum(runs) / len(runs) == pytest.approx(burst if burst > 1 else 1 / (1 - share), rel=0.05)
    again = lossy_link.Fate(Impairment(loss_percent=100 * share, burst=burst, seed=11))
    assert [again.lost() for _ in range(1000)] == drawn[:1000], "the seed decides"


@pytest.mark.parametrize("gap_s", [1e-5, 1e-3, 0.01, 1.0])
def test_jitter_leaves_the_mean_delay_as_asked_however_dense_the_packets(gap_s: float) -> None:
    fate = lossy_link.Fate(Impairment(delay_s=0.01, jitter_s=0.004, seed=3))
    dice, now, released, delays = random.Random(1), 1000.0, 0.0, []
    for _ in range(50_000):
        now += dice.expovariate(1 / gap_s)
        before, released = released, fate.release(now)
        assert released >= before, "packets keep their order"
        delays.append(released - now)
    assert statistics.mean(delays) == pytest.approx(0.01, rel=0.05)
    assert 0.006 <= min(delays) < 0.0065
    assert 0.0135 < max(delays) <= 0.014 + 1e-9


def test_the_nodes_of_a_group_reach_each_other(cluster: LocalCluster) -> None:
    first, second, third = cluster.nodes
    watch = Watch(cluster, lambda: [reach(first, second), reach(first, third), reach(third, second)])
    fault = build_fault("partition", {"cut_off_from": "all"})
    try:
        fault.inject([Target(0), Target(1)], means(watch))
    finally:
        fault.heal([Target(0), Target(1)], means(watch))
    assert watch.seen[0] == [True, False, False]
    assert len(watch.effects) == 8 and all(effect["ok"] for effect in watch.effects)
    assert reach(first, third)


def test_disturbances_add_up_and_heal_in_any_order(cluster: LocalCluster, healed: contextlib.ExitStack) -> None:
    before = state(cluster)
    node, other, _ = cluster.nodes
    rate = node.limit_rate(50_000_000, Traffic("egress"))
    slower = node.limit_rate(20_000_000, Traffic("egress", (other,)))
    late = node.impair(Impairment(delay_s=0.04), Traffic("both"))
    later = node.impair(Impairment(delay_s=0.04), Traffic("egress"))
    for disturbance in (slower, later, rate, late):
        healed.callback(disturbance.heal)
    assert 0.08 < least(node, other) < 0.12
    rate.heal()

    def rate_to_other() -> float:
        """Round trips take 120 ms: a transfer needs some to find its speed."""
        found = node.fill_path(other, 4, through=slower)
        return found if found > 10e6 else 0

    assert waiting.until(rate_to_other, "a transfer at its speed") < 22e6
    late.heal()
    assert 0.04 < least(node, other) < 0.08
    slower.heal()
    later.heal()
    later.heal()
    assert_like(cluster, before)


def test_a_delay_line_that_dies_is_no_black_hole(cluster: LocalCluster, healed: contextlib.ExitStack) -> None:
    before = state(cluster)
    node, other, _ = cluster.nodes
    late = node.impair(Impairment(delay_s=0.02), Traffic("egress"))
    healed.callback(late.heal)
    ours = [item.process for item in leftovers.leftovers(cluster._run_id)]
    (line,) = [each for each in ours if pathlib.Path(f"/proc/{each.pid}/comm").read_text().startswith("net-line")]
    os.kill(line.pid, signal.SIGKILL)
    waiting.until(lambda: least(node, other) < 0.02, "packets without delay")
    with pytest.raises(Exception, match="ended"):
        late.counts()
    late.heal()
    assert_like(cluster, before)


def test_a_node_that_dies_while_disturbed(cluster: LocalCluster) -> None:
    """What was done to it can still be healed, and its replacement has a sound network."""
    before = {key: text for key, text in state(cluster).items() if key in ("tc qdisc", "nft list ruleset")}
    node, other, third = cluster.nodes
    disturbances = [third.limit_rate(10**7, Traffic()), third.impair(Impairment(delay_s=0.1), Traffic())]
    disturbances += [third.cut(Traffic("ingress")), third.unplug()]
    third.kill()
    fresh = cluster.replace(third)
    for disturbance in disturbances:
        disturbance.heal()
    assert reach(fresh, node) and reach(other, fresh)
    after = {key: text.replace("v4", "v3") for key, text in state(cluster).items() if key in before}
    assert after == before
    assert "10.77.0.3" not in state(cluster)["ip route"]


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("nic_bandwidth", {}, "either rate: or percent:"),
        ("nic_bandwidth", {"rate": "1mbit", "percent": 50}, "either rate: or percent:"),
        ("nic_bandwidth", {"rate": "1kbit"}, "at least 64kbit"),
        ("nic_latency", {"delay": "0s"}, "longer than 0"),
        ("nic_latency", {"delay": "1ms", "jitter": "2ms"}, "at most the delay"),
        ("nic_loss", {}, "must be above 0"),
        ("nic_loss", {"loss_percent": 80, "burst": 2}, "cannot come in bursts"),
        ("nic_flap", {"cycles": 0}, "greater than or equal to 1"),
        ("partition", {"cut_off_from": "storage"}, "cut_off_from"),
        ("rendezvous_loss", {"restart_after": "soon"}, "restart_after"),
        ("nic_latency", {"peers": [5]}, "peers"),
        ("nic_latency", {"peers": [0]}, "peers"),
    ],
)
def test_bad_parameters_and_peers_that_are_not_there_are_refused(
    name: str, parameters: Mapping[str, Any], message: str
) -> None:
    three: Any = SimpleNamespace(nodes=[SimpleNamespace(index=index, name=f"node{index}") for index in range(3)])
    with pytest.raises((ValidationError, UsageError), match=message):
        build_fault(name, parameters).inject([Target(0)], means(Watch(three)))


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        ([10.2], (10.2, True, "")),
        ([11.2, 10.2], (10.2, True, "; looked again, as it was 11.20 ms")),
        ([13.2, 13.4, 10.2, 9.9], (10.2, True, "; looked again, as it was 13.20, 13.40 ms")),
        ([13.2, 13.4, 12.4, 9.9], (12.4, True, "; looked again, as it was 13.20, 13.40 ms")),
        ([13.2, 13.4, 13.6, 10.2], (13.6, False, "; looked again, as it was 13.20, 13.40 ms")),
        ([0.1], None),
    ],
)
def test_a_busy_moment_is_no_longer_delay_and_a_line_that_holds_nothing_none(
    looks: list[float], told: tuple[float, bool, str] | None
) -> None:
    found: list[tuple[float, bool, str]] = []

    def effect(measured: float, expected: float, unit: str, ok: bool, detail: str) -> None:
        assert (expected, unit) == (10.0, "ms added one way")
        found.append((round(measured, 6), ok, detail.removeprefix("node0, sent: 0.10 ms before; 0 of 80 overtaken")))

    arrivals = (Arrivals(80, 80, 0, 0, (0.0001 + delay / 1e3,) * 80) for delay in looks)
    context: Any = SimpleNamespace(effect=effect)
    with contextlib.nullcontext() if told else pytest.raises(FaultError, match="node0, sent: no packet was delayed"):
        NicLatency(delay="10ms")._measure("node0, sent", 0.1, lambda: next(arrivals), context)
    assert found == ([told] if told else [])
