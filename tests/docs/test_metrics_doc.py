"""The worked example of docs/metrics.md, as a log: what the page says is what the scorers find."""

import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest

from harness.evidence import envelope, losses
from harness.judge.score import Evidence, Scorecard, judge
from harness.judge.thresholds import TERMS_LEAST
from harness.report import figures as figures_of
from harness.timeline import timeline
from harness.timeline.timeline import Floats

S = 10**9
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


class Log:
    def __init__(self, events: pathlib.Path, name: str, at: float, **header: Any):
        self.path = events / f"{name}.jsonl"
        self._line({"schema": 1, "writer": name, "host": "vm", "clock": "boot"} | header, at)

    def __call__(self, at: float, event: str, **fields: Any) -> None:
        self._line({"event": event} | fields, at)

    def _line(self, record: dict[str, Any], at: float) -> None:
        ns = round(at * S)
        with self.path.open("a") as file:
            file.write(json.dumps(record | {"wall_ns": 10**18 + ns, "mono_ns": ns}) + "\n")


def worker(events: pathlib.Path, rank: int, life: int, times: tuple[float, float, float], restored: int) -> Log:
    started, joined, ready = times
    where = {"node": f"node{rank}", "incarnation": 1, "rank": rank, "local_rank": 0, "world_size": 2}
    log = Log(events, f"trainer-node{rank}.1-{rank}-{life}", started, role="trainer", pid=10 * life + rank, **where)
    log(joined, "rendezvous", world_size=2)
    log(ready, "restored", step=restored, source="scratch" if not restored else "checkpoints/step-2", fallback=[])
    return log


def step(log: Log, number: int, begin: float) -> None:
    shares = {"data_ns": S // 10, "checkpoint_ns": 3 * S // 10 if number == 2 and begin < 20 else 0}
    values = {"loss": 5 - number / 10, "grad_norm": 1.0, "lr": 0.001, "digest": f"d{number}"}
    samples = {"first": 16 * (number - 1), "count": 16}
    log(begin + 2, "step", step=number, begin_ns=round(begin * S), **values, **samples, **shares, sync_ns=S // 2)


def example(events: pathlib.Path) -> None:
    events.mkdir()
    harness = Log(events, "harness", 0, role="harness")
    workload = {"nodes": 2, "min_nodes": 2, "ranks_per_node": 1, "steps": 6}
    fault = {"id": "kill", "fault": "rank_kill", "targets": [{"node_index": 1, "rank": 1}]}
    scenario = {"name": "example", "title": "", "price_per_gpu_hour": 2.0}
    expect = {"recovery_time": {"max": "15s"}, "loss_continuity": {"mode": "exact"}}
    harness(0, "plan", plan={"workload": workload, "faults": [fault], "expect": expect, "scenario": scenario})
    agents = [Log(events, f"agent-node{n}", 0, role="agent", node=f"node{n}", incarnation=1) for n in (0, 1)]
    for n in (0, 1):
        harness(0, "node.allocated", node=f"node{n}", incarnation=1, gpus=1)
        agents[n](8, "agent.rendezvous", edge="begin")
    for rank in (0, 1):
        log = worker(events, rank, 1, (10, 12, 14), 0)
        for number in range(1, 5):
            step(log, number, 12 + 2 * number)
        if rank == 0:
            log(18.1, "checkpoint.started", step=2, kind="periodic")
            log(19, "checkpoint.committed", step=2, kind="periodic", path="checkpoints/step-2", duration_ns=9 * S // 10)
            log(25.5, "exiting", code=1, reason="peer lost", step=4)
        again = worker(events, rank, 2, (27.5, 29, 30), 2)
        for number in range(3, 7):
            step(again, number, 24 + 2 * number)
        again(38.5, "exiting", code=0, reason="completed", step=6)
    target = {"node": "node1", "incarnation": 1, "rank": 1}
    harness(23, "fault.injected", fault="kill", kind="rank_kill", targets=[target], kills=True)
    harness(23.01, "fault.effect", fault="kill", measured=1, expected=1, unit="processes", ok=True)
    agents[1](25, "worker.exit", local_rank=0, rank=1, pid=11, code=-9)
    agents[0](26, "worker.exit", local_rank=0, rank=0, pid=10, code=1)
    for agent in agents:
        agent(27, "agent.rendezvous", edge="begin")
    harness(39, "fault.healed", fault="kill")
    harness(40, "node.released", node="node0", incarnation=1, reason="completed")
    harness(40, "node.released", node="node1", incarnation=1, reason="completed")
    harness(40, "run.finished", outcome="completed", reason="")


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Scorecard:
    run_dir = tmp_path_factory.mktemp("example")
    example(run_dir / "events")
    return judge(Evidence(timeline.load(run_dir)), "example")


def table(heading: str) -> dict[str, float]:
    """The rows `| name | number | …` of the table under a heading of the page."""
    section = PAGE.read_text().split(f"### {heading}\n")[1].split("\n#")[0]
    return {name: float(number) for name, number in re.findall(r"^\| `?([\w ]+?)`? \| ([\d.]+) \|", section, re.M)}


def test_recovery_time(card: Scorecard) -> None:
    values = figures_of.scores(card)["recovery_time"]
    page = table("Example: recovery time")
    assert page.pop("total") == values["seconds"] == sum(page.values())
    assert page == pytest.approx(values["phases"])
    assert values["first_step_seconds"] == 10


def test_the_envelope() -> None:
    """The rows of the page, from the very runs that it describes."""
    step = np.arange(1, 51)
    apart = np.where((step > 10) & (step <= 20), 0.010, 0.001)
    alone = 4 - step / 25
    fault_free, other, run = (_curve(alone + by) for by in (0.0, apart, np.where(step > 30, 0.0001, 0.0)))
    band = envelope._drawn(fault_free, [other], "", frozenset(), TERMS_LEAST)
    assert isinstance(band, envelope.Envelope)
    sees = {each.first: each.percent for each in band.sees(losses.compare(run, fault_free))}
    section = PAGE.read_text().split("### Example: the envelope\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| (\d+) to (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|(?: ([\d.]+) %)? \|", section, re.M)
    assert len(rows) == len(band.edges) == 5
    for stretch, (first, last, near, single, lasting, percent) in enumerate(rows):
        assert int(first) == step[band.edges[stretch]] and int(last) == int(first) + 9
        assert float(near) == max(apart[max(0, int(first) - 11) : int(last) + 10])
        assert float(single) == pytest.approx(band.single["loss"][int(first) - 1], abs=1e-6)
        assert float(lasting) == pytest.approx(band.lasting["loss"][stretch], abs=1e-6)
        assert (float(percent) if percent else None) == (round(sees[int(first)], 2) if int(first) in sees else None)


def _curve(loss: Floats) -> losses.Curve:
    none = np.zeros(len(loss), np.int64)
    told = loss.astype(np.float32).astype(np.float64)
    return losses.Curve(np.arange(1, 51), told, told, told * 0, *[none] * 6)


def test_ledger(card: Scorecard) -> None:
    values = figures_of.scores(card)["wasted_gpu_hours"]
    page = table("Example: the ledger")
    assert page.pop("allocated") == values["gpu_seconds_allocated"] == pytest.approx(sum(page.values()))
    assert page == pytest.approx({name: amount for name, amount in values["accounts"].items() if amount})


def test_what_follows_from_the_ledger(card: Scorecard) -> None:
    waste = figures_of.scores(card)["wasted_gpu_hours"]
    known = {**figures_of.metrics(card), **card.scores["loss_continuity"], **waste}
    found = table("Example: figures")
    assert len(found) == 13 and found == pytest.approx({name: known[name] for name in found}, rel=1e-3)


def test_every_value_of_a_report_is_defined(card: Scorecard) -> None:
    text = PAGE.read_text()
    names = {name for values in figures_of.scores(card).values() for name in values} | set(figures_of.metrics(card))
    names |= set(figures_of.scores(card)["wasted_gpu_hours"]["accounts"])
    assert sorted(name for name in names if f"`{name}`" not in text) == []
