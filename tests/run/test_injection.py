"""A fault undoes what it did where it did it, wherever its rank is by then."""

import pathlib
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.api.testing import FakeNode
from harness.errors import FaultError, NodeGone
from harness.faults import oom
from harness.faults.contract import RunPath, Target
from harness.node.types import MemoryUse
from harness.plan.run_plan import Plan, PlannedFault, When
from harness.run.injection import Injection, LiveJob
from harness.run.live_progress import LiveProgress
from harness.run.trigger import Firing


class RoomyNode(FakeNode):
    """Its memory can be filled, too."""

    def memory_use(self) -> MemoryUse:
        return MemoryUse(2**20, self.done.count("fill"))

    def limit_memory(self, limit_bytes: int | None, keeper: str = "auto") -> str:
        self.done.append("limit" if limit_bytes else "lift")
        return "kernel"

    def doom(self, pid: int) -> None: ...

    def fill_memory(self, size_bytes: int, spare: bool) -> int:
        self.done.append("fill")
        return size_bytes


class FakeCluster:
    tells_changes = False

    def __init__(self) -> None:
        self.nodes = [RoomyNode(0), RoomyNode(1)]


def injection_of(
    fault: str, progress: LiveProgress, **parameters: Any
) -> tuple[Injection, FakeCluster, list[dict[str, Any]]]:
    when, targets = When(step=1), (Target(0, 0),)
    planned = PlannedFault(id="a", fault=fault, parameters=parameters, when=when, targets=targets)
    cluster, log = FakeCluster(), list[dict[str, Any]]()

    def emit(event: str, **fields: Any) -> None:
        log.append({"event": event} | fields)

    journal = SimpleNamespace(run_dir=pathlib.Path("/nowhere"))
    holds = SimpleNamespace(release=lambda identity: None, stop_acting=lambda identity: None)
    parts: list[Any] = [cluster, progress, emit, journal, holds]
    return Injection(Firing(planned, 0), cast(Plan, SimpleNamespace(seed=1)), LiveJob(*parts)), cluster, log


TRAINER = {"role": "trainer", "rank": 0, "incarnation": 1, "pid": 10}


def living_on(node: int) -> LiveProgress:
    progress = LiveProgress()
    progress.absorb(TRAINER | {"node": f"node{node}"}, {"event": "started"}, 1)
    return progress


@pytest.mark.parametrize(
    ("fault", "parameters", "done"),
    [
        ("hang", {"how": "freeze_node", "duration": "0s"}, ["freeze", "thaw"]),
        ("hang", {"how": "freeze_rank", "duration": "0s"}, ["signal", "thaw"]),
        ("oom", {}, ["limit", "fill", "lift", "fill"]),
    ],
)
def test_what_was_done_to_a_rank_that_moved_is_reported_and_undone_where_it_is(
    fault: str, parameters: dict[str, Any], done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("hang.WATCHED_S", "hang.STOPS_WITHIN_S", "oom.GONE_WITHIN_S"):
        monkeypatch.setattr(f"harness.faults.{limit}", 0.0)
    injection, cluster, log = injection_of(fault, living_on(1), **parameters)
    injection.run()
    assert cluster.nodes[0].done == [] and cluster.nodes[1].done == done
    (injected,) = [entry for entry in log if entry["event"] == "fault.injected"]
    assert injected["targets"] == [{"node": "node1", "incarnation": 1, "rank": 0}]


def test_a_rank_that_moves_while_the_fault_acts_changes_nothing() -> None:
    progress = living_on(1)
    injection, *_ = injection_of("hang", progress, how="freeze_node", duration="0s")
    (target,) = injection.targets
    assert injection.node(target).name == "node1"
    progress.workers |= living_on(0).workers
    assert injection.node(target).name == "node1", "undone where it was done"


def test_a_rank_that_has_not_started_is_where_it_was_planned_and_one_whose_node_is_gone_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    injection, cluster, _ = injection_of("hang", LiveProgress())
    assert injection.node(injection.targets[0]).name == "node0"
    with monkeypatch.context() as patched:
        patched.setattr("harness.run.injection.RANK_APPEARS_S", 0.0)
        with pytest.raises(
            FaultError, match=r"rank 0 has not started, .*; no rank has told a start: .* only whole nodes"
        ):
            injection.pid_of(0)
        with pytest.raises(FaultError, match=r"rank 1 has not started, so the fault cannot act on it$"):
            injection_of("hang", living_on(1))[0].pid_of(1)
    injection, cluster, _ = injection_of("hang", living_on(1))
    cluster.nodes[1].alive = False
    with pytest.raises(NodeGone, match="node1"):
        injection.pid_of(0)


def failed(injection: Injection, log: list[dict[str, Any]]) -> str:
    injection.run()
    (told,) = [entry for entry in log if entry["event"] == "fault.failed"]
    return str(told["error"])


@pytest.mark.parametrize("method", ["inject", "heal"])
def test_a_mistake_in_the_code_of_a_fault_is_told_with_its_line_and_what_it_says_itself_as_it_is(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.faults.hang.WATCHED_S", 0.0)
    injection, cluster, log = injection_of("hang", living_on(1))
    cluster.nodes[1].alive = False
    assert failed(injection, log) == "NodeGone: rank 0 was on node1, which is gone"
    injection, _, log = injection_of("hang", living_on(1), how="freeze_node", duration="0s")
    monkeypatch.setattr(FakeNode, "freeze" if method == "inject" else "thaw", None)
    assert re.search(r"TypeError: .* \(harness/faults/hang\.py, line \d+\)$", failed(injection, log))


@pytest.mark.parametrize(
    ("action", "arguments", "words"),
    [
        ("faults.data_corruption", {"path": "/etc/passwd", "kept": "a"}, "path: .* is not below the run's folder"),
        ("faults.data_corruption", {"path": pathlib.Path("a"), "kept": "a"}, "path: Input should be a valid string"),
        ("faults.hang", {}, "has no undo function"),
        ("faults.oom", {"path": "a"}, r"a path but not the folder it is in: UNDO\(run_dir: pathlib.Path, …\)"),
    ],
)
def test_what_could_not_be_undone_later_is_refused_at_once(
    action: str, arguments: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put_back(path: RunPath) -> None: ...

    monkeypatch.setattr(oom, "UNDO", put_back, raising=False)
    injection, _, _ = injection_of("hang", LiveProgress(), duration="1s")
    with pytest.raises(FaultError, match=words):
        injection.undo(action, **arguments)


@pytest.mark.parametrize(
    ("waits", "share"), [((50, 50, 50), 0.5), ((0, 0, 0), 0.0), ((90, 0, 0), 0.3), ((None, 50, 50), None), ((), None)]
)
def test_the_share_of_the_step_time_that_a_rank_waited_for_data(waits: Any, share: float | None) -> None:
    """Steps from before are left out; where a step does not tell its wait, the share is not known."""
    progress = living_on(0)
    for number, waited in enumerate((100, 100, *waits)):
        told = {} if waited is None else {"data_ns": waited}
        event = {"event": "step", "step": number, "mono_ns": 100 * number} | told
        progress.absorb(TRAINER | {"node": "node0"}, event, 100 * number)
    injection, _, _ = injection_of("hang", progress, how="freeze_node", duration="0s")
    found = injection.data_wait_share(0, 100)
    assert found is None if share is None else found == pytest.approx(share)
