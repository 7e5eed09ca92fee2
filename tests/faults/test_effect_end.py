"""Once a fault was healed, what it did is measured again: over or not."""

import pathlib
from types import SimpleNamespace
from typing import Any, cast

import pytest
from run.test_injection import injection_of, living_on

from harness.api.testing import FakeNode, FaultContext
from harness.faults.contract import Cancelled, Context, Target, build_fault
from harness.faults.straggler import Brake, Hold, Way
from harness.node.types import Arrivals, CpuUse, MemoryUse, ProcessState, StorageAnswers, StorageRule
from harness.run.injection import Injection
from harness.run.live_progress import LiveProgress

MIB = 2**20


class Net(FakeNode):
    """A node whose paths have this rate and delay, and lose every so many packets."""

    def __init__(self, index: int):
        super().__init__(index)
        self.rate_bits, self.delay_s, self.through, self.stopped = 1e9, 0.001, 1.0, 0
        self.throttled_ns = self.now_ns = self.kills = 0
        self.used_bytes, self.limit_bytes, self.answers = 100 * MIB, 10**15, StorageAnswers(3, 0, 0.0)

    def fill_path(self, partner: Any, seconds: float, back: bool = False, through: Any = None) -> float:
        return self.rate_bits

    def send_packets(self, partner: Any, count: int, interval_s: float, back: bool = False, wait_s: float = 0) -> Any:
        arrived = int(count * self.through)
        return Arrivals(count, arrived, 0, 0, (self.delay_s,) * arrived)

    def processes(self) -> list[ProcessState]:
        return [ProcessState(10, "T" if number < self.stopped else "S", 0) for number in range(2)]

    def memory_use(self) -> MemoryUse:
        return MemoryUse(self.used_bytes, self.kills)

    def fill_memory(self, size_bytes: int, spare: bool) -> int:
        got = min(size_bytes, self.limit_bytes - self.used_bytes)
        self.kills += got < size_bytes
        return got

    def try_storage(self, mount: str, rule: StorageRule) -> StorageAnswers:
        return self.answers

    def cpu_use(self) -> CpuUse:
        self.now_ns += 10**9
        return CpuUse(0, self.throttled_ns * self.now_ns // 10**9, self.now_ns)


class Seeing(FaultContext):
    """The context of a fault that has been healed."""

    def __init__(self, *nodes: Net, times_ns: tuple[int, ...] = ()):
        super().__init__(pathlib.Path("/nowhere"))
        self.cluster, self.times_ns = SimpleNamespace(nodes=nodes, control_running=False), times_ns

    def ranks_on(self, node: Net) -> list[int]:
        return [node.index]

    def step_times_ns(self, rank: int, since_ns: int = 0) -> list[int]:
        return list(self.times_ns)


def seen(fault: Any, context: Seeing) -> list[tuple[float, bool]]:
    """What was measured, and whether that is the end."""
    fault.see_end([Target(0)], cast(Context, context))
    return [(measured, ok) for measured, _, _, ok in context.ends]


# Kind, parameters, bytes a node was limited to, how it is now; what is measured, and whether it is over: out and back, or once.
CUT, MEMORY = ("partition", "nic_flap"), ("oom", "memory_pressure")
STORAGE: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in ("storage_error", "storage_full", "storage_hang")),
    ("storage_slow", {"latency": "20ms"}),
]
ANSWERS = ((StorageAnswers(3, 0, 0.0), 0), (StorageAnswers(3, 2, 0.0), 2), (StorageAnswers(3, 0, 0.02), 1))
RATE, RATES = {"rate": "400mbit"}, ((1e9, True), (505e6, True), (405e6, False), (0.0, False))
ENDS: list[Any] = [
    *(("nic_bandwidth", RATE, 0, {"rate_bits": bits}, [(bits / 1e6, over)] * 2) for bits, over in RATES),
    *(
        ("nic_latency", {"delay": "20ms"}, 0, {"delay_s": late}, [(None, late < 0.02)] * 2)
        for late in (0.001, 0.008, 0.021)
    ),
    *(("nic_loss", {"loss_percent": 10}, 0, {"through": got}, [(None, got > 0.9)] * 2) for got in (1.0, 0.99, 0.9)),
    *((kind, {}, 0, {"through": got}, [(10 * got, got > 0)]) for kind in CUT for got in (1.0, 0.5, 0.0)),
    *(("hang", {"how": "freeze_node"}, 0, {"stopped": count}, [(count, not count)]) for count in (0, 1)),
    *(
        (kind, {}, 120 * MIB, {"limit_bytes": at * MIB}, [(None, at > 151)])
        for kind in MEMORY
        for at in (10**9, 120, 151)
    ),
    ("oom", {}, 100 * MIB + 2**30, {}, []),  # so much is not taken only to look
    *((kind, given, 0, {"answers": found}, [(left, not left)]) for kind, given in STORAGE for found, left in ANSWERS),
]


@pytest.mark.parametrize(("kind", "parameters", "limited", "now", "told"), ENDS)
def test_what_a_fault_did_is_over_or_not(
    kind: str, parameters: dict[str, Any], limited: int, now: dict[str, Any], told: list[tuple[Any, bool]]
) -> None:
    fault: Any = build_fault(kind, parameters)
    node = Net(0)
    vars(node).update(now)
    if kind == "nic_bandwidth":
        fault._limited.append((node, None, 400_000_000))
    elif kind == "nic_latency":
        fault._usual_ms |= {(node, False): 1.0, (node, True): 1.0}
    elif limited:
        fault._limits[node] = limited
    found = seen(fault, Seeing(node, Net(1)))
    assert [ok for _, ok in found] == [over for _, over in told]
    assert all(wanted in (None, measured) for (measured, _), (wanted, _) in zip(found, told, strict=True))
    assert kind not in MEMORY or node.kills == (bool(told) and not told[0][1])


@pytest.mark.parametrize(
    ("step_ms", "throttled", "told"),
    [(10, 0.0, True), (14, 0.5, True), (20, 0.5, False), (20, 0.0, True), (None, 0.5, None)],
    ids=["as before", "nearly", "still slow", "a busy host", "no steps"],
)
def test_a_node_that_is_still_slow_is_told(step_ms: int | None, throttled: float, told: bool | None) -> None:
    fault: Any = build_fault("straggler", {"factor": 2.0})
    node: Any = Net(0)
    node.throttled_ns = int(throttled * 10**9)
    fault._hold_seen = Hold(2.0, 10e6, [Brake(node, "quota", "cpu")])
    context = Seeing(node, times_ns=(step_ms * 10**6,) * 6 if step_ms else ())
    assert [ok for _, ok in seen(fault, context)] == ([] if told is None else [told])


@pytest.mark.parametrize(
    ("throttled", "way", "ok"), [(0.5, "quota", True), (0.0, "quota", False), (0.0, "noisy_neighbour", True)]
)
def test_a_node_that_the_host_alone_slowed_was_not_slowed_by_the_fault(throttled: float, way: Way, ok: bool) -> None:
    """A neighbour that uses the CPU denies nobody anything that the kernel would count."""
    node: Any = Net(0)
    hold = Hold(2.0, 10e6, [Brake(node, way, "cpu")])
    hold.settled_ns, hold._used = 1, [node.cpu_use()]
    node.throttled_ns = int(throttled * 10**9)
    context: Any = Seeing(node)
    hold.report([20 * 10**6] * 30, context)
    assert [(measured, found) for measured, _, _, found in context.effects] == [(2.0, ok)]


def events(log: list[dict[str, Any]]) -> list[str]:
    return [entry["event"].removeprefix("fault.") for entry in log]


def hung(monkeypatch: pytest.MonkeyPatch, progress: LiveProgress) -> tuple[Injection, list[dict[str, Any]]]:
    monkeypatch.setattr("harness.faults.hang.WATCHED_S", 0.0)
    monkeypatch.setattr("harness.faults.hang.STOPS_WITHIN_S", 0.0)
    injection, _, log = injection_of("hang", progress, how="freeze_node", duration="0s")
    return injection, log


def test_the_end_is_measured_before_it_is_told_to_be_healed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeNode, "thaw", lambda node: None)
    injection, log = hung(monkeypatch, living_on(0))
    injection.run()
    assert events(log) == ["injecting", "injected", "effect", "ended", "healed"]
    assert log[-2]["ok"] is False, "it never thaws"


@pytest.mark.parametrize("why", ["the job is over", "it cannot be measured", "it never acted"])
def test_what_cannot_be_measured_is_not_told_and_is_healed(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    injection, log = hung(monkeypatch, living_on(0))

    def fails(*_: object) -> None:
        raise Cancelled if why == "it never acted" else OSError("gone")

    if why == "the job is over":
        monkeypatch.setattr(type(injection.fault), "see_end", lambda *_: injection.ended(0, 0, "", ok=False))
        injection.cancel()
    else:
        monkeypatch.setattr(type(injection.fault), "inject" if why == "it never acted" else "see_end", fails)
    injection.run()
    assert "ended" not in events(log) and events(log)[-1] == "healed"


@pytest.mark.parametrize(("pids", "times_ns", "told"), [({7}, (), []), ({7}, (5,), [True]), (set(), (), [True])])
@pytest.mark.parametrize("kind", ["gil_hold", "data_loader_stall", "process_exception", "own_code"])
def test_a_rank_that_was_struck_does_steps_again_or_is_gone(
    kind: str, pids: set[int], times_ns: tuple[int, ...], told: list[bool]
) -> None:
    """A rank that is there and does no step may only be slow: nothing is told, and its end is not judged."""
    fault: Any = build_fault(kind, {"source": "def inject(context): ..."} if kind == "own_code" else {})
    node: Any = SimpleNamespace(pids=lambda: pids)
    fault._victims[0] = (node, 7)
    assert [ok for _, ok in seen(fault, Seeing(times_ns=times_ns))] == told


@pytest.mark.parametrize(
    ("restart_after", "running", "told"), [("2s", True, [True]), ("2s", False, [False]), ("never", False, [])]
)
def test_a_rendezvous_store_that_stays_away_is_told(restart_after: str, running: bool, told: list[bool]) -> None:
    context = Seeing()
    context.cluster.control_running = running
    fault = build_fault("rendezvous_loss", {"restart_after": restart_after})
    assert [ok for _, ok in seen(fault, context)] == told
