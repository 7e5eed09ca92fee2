"""Histories whose clocks are so coarse that much happens at the same moment: read and judged as they always were.

Every figure that is made of a log is kept as a fingerprint of its values, so that any change shows, and where.

PYTHONPATH=tests python tests/timeline/test_coarse_clocks.py      writes them anew; know why before you commit it
"""

import dataclasses
import hashlib
import json
import pathlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from judging import expecting, fault_free_of, load
from simulator import Job, Logs, Outage, clocks, remove, simulate, steps

from harness.judge.score import Evidence, judge
from harness.report import run_report
from harness.timeline.timeline import Episode, Epoch, FaultRecord, Process, Progress, Segment, Slot, Steps, Timeline

pytestmark = pytest.mark.slow  # many histories
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "coarse_clocks.json"
STORIES = 40
GRAINS_MS = (1, 16, 48, 100)  # a step takes 48
KINDS = ("rank", "notice", "node", "shrink", "rollback", "crash")


def story(seed: int) -> tuple[Job, list[Outage]]:
    draw = random.Random(seed)
    nodes = draw.randint(2, 4)
    job = Job(
        nodes=nodes, ranks_per_node=draw.randint(1, 2), steps=60, every=draw.choice([4, 7, 10]), agents=seed % 3 > 0,
        noise=draw.choice([0, 0.2]), disk_ms=draw.choice([0, 70]), foreign_clocks=seed % 7 == 3,
    )  # fmt: skip
    outages = [
        Outage(
            after=draw.randint(2, 20),
            kind=draw.choice(KINDS),
            victim=draw.randrange(nodes),
            again=draw.choice([None, None, "startup", "restore"]),
            regrow_after=draw.choice([3, 8]),
            torn=draw.random() < 0.3,
        )
        for _ in range(draw.randint(0, 3))
    ]
    return job, [o if o.kind in ("rank", "node") else dataclasses.replace(o, again=None) for o in outages]


def expectations(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    ms = draw.choice([50, 500, 3000])
    return {
        "recovery_time": {"max": f"{8 * ms}ms", "first_step_max": f"{7 * ms}ms", "phases": {"startup": f"{ms}ms"}},
        "wasted_gpu_hours": {"max_percent": draw.choice([5, 50]), "max_gpu_seconds": draw.choice([1, 100])},
        "loss_continuity": {"mode": draw.choice(["exact", "envelope", "ulp"]), "max_spike": draw.choice([0.1, 2])},
        "metrics": {"step_p50_max": f"{draw.choice([48, 96])}ms", "max_false_alarms": 0, "detection_max": f"{ms}ms"},
    }


def coarsen(logs: Logs, grain_ns: int) -> None:
    """Rounds the time of every line down; the order in the files stays."""
    for lines in logs.values():
        for line in lines:
            for key in ("mono_ns", "wall_ns", "begin_ns"):
                if key in line:
                    line[key] -= line[key] % grain_ns


def alarm(logs: Logs, seed: int) -> None:
    """What trainers say besides."""
    draw = random.Random(seed)
    for lines in logs.trainers():
        at = draw.choice(lines[1:])
        kind = draw.choice(["anomaly", "notice", "checkpoint.failed", "exiting"])
        said = {"kind": "straggler", "source": "peer", "step": 1, "code": draw.choice([0, 1, 75])}
        if draw.random() < 0.3:
            lines.append(dict(lines[-1]) | {"event": kind} | said)
            lines[-1].pop("edge", None)
        if draw.random() < 0.2:
            lines.insert(lines.index(at) + 1, {"event": "anomaly", "kind": "hang"} | clocks(at))


def meddle(logs: Logs, seed: int) -> None:
    """What a harness's log may tell besides, or leave out; and lines that only the slow reader understands."""
    draw = random.Random(f"harness {seed}")
    harness = logs.harness
    ids = [line["fault"] for line in harness if line.get("event") == "fault.injected"] or ["ghost"]
    plan = next(line["plan"] for line in harness if line.get("event") == "plan")
    for _ in range(draw.randint(0, 4)):
        at = draw.choice(harness[2:])
        told: dict[str, Any] = draw.choice([
            {"event": "fault.recovered", "step": 3}, {"event": "fault.healed"}, {"event": "fault.armed"},
            {"event": "fault.failed", "reason": "no such node"}, {"event": "fault.taking"}, {"event": "fault.injecting"},
            {"event": "fault.effect", "measured": 1, "expected": 2, "unit": "deaths", "ok": draw.random() < 0.5},
            {"event": "node.released", "node": "node0", "incarnation": 1, "reason": draw.choice(["lost", "completed"])},
            {"event": "process.exit", "node": "node1", "incarnation": 1, "code": draw.choice([0, 1, 75, -9])},
        ])  # fmt: skip
        if told["event"].startswith("fault."):
            told["fault"] = draw.choice([*ids, "ghost"])
        harness.insert(harness.index(at) + 1, told | clocks(at))
    if draw.random() < 0.2:
        end = harness[-1]
        end.update(outcome="aborted", reason="no step for 9 s")
        harness.insert(-1, {"event": "abort", "reason": "no step for 9 s"} | clocks(end))
    elif draw.random() < 0.15:
        remove(harness, lambda line: line.get("event") == "run.finished")
    if draw.random() < 0.2:
        plan["workload"].pop("steps", None)
    if draw.random() < 0.3:
        some = draw.choice(steps(draw.choice(logs.trainers())))
        some.update(draw.choice([{"dropped": 2}, {"loss": "nan"}, {"lr": None}, {"digest": None, "first": None}]))


FIGURES = {
    Steps: "process rank step begin end loss grad_norm lr digest first count data_ns checkpoint_ns sync_ns survives"
    " epoch complete",
    Progress: "step begin end epoch world_size",
    Process: "rank local_rank node incarnation pid world_size launched started rendezvous restored restored_step source"
    " fallback last_seen exited exit_code exit_reason first_step torn",
    Slot: "node incarnation local_rank allocated released kept",
    FaultRecord: "id kind kills targets injected effects recovered healed error stops spoils strikes",
    Segment: "phase begin end epoch",
    Episode: "t_stop t_first t_regained furthest_step faults segments",
    Epoch: "world size processes first last begin kept",
    Timeline: "begin end outcome steps processes slots faults segments episodes checkpoints notices anomalies exits torn"
    " dropped epochs progress aborted uncertainty_ns evidence planned_steps reached_step finished",
}


def values(whole: Any) -> list[Any]:
    """The fields whose values count, in a fixed order. What a field is called, and what it stands beside, does not."""
    return [getattr(whole, name) for name in FIGURES[type(whole)].split()]


def parts(run: Timeline, report: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from zip(FIGURES[Timeline].split(), values(run), strict=True)
    yield "expectations", [[line["name"], line["observed"], line["verdict"]] for line in report["expectations"]]
    yield "faults of the report", [[f["id"], f["t_injected"], f["healed"]] for f in report["faults"]]
    for section, found in {**report["scores"], "metrics": report["metrics"]}.items():
        yield from ((f"{section}: {key}", figures(value)) for key, value in found.items())


def figures(value: Any) -> Any:
    """Values without the names under which they stand, in their order."""
    if isinstance(value, dict):
        return [figures(item) for item in value.values()]
    return [figures(item) for item in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return values(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def fingerprint(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, default=_plain, sort_keys=True).encode()).hexdigest()[:6]


def record(seed: int) -> dict[str, Any]:
    job, outages = story(seed)
    logs = expecting(simulate(job, outages, seed).logs(), expectations(seed))
    alarm(logs, seed)
    meddle(logs, seed)
    coarsen(logs, GRAINS_MS[seed % len(GRAINS_MS)] * 10**6)
    run = load(simulate(job, outages, seed), logs)
    plain = dataclasses.replace(job, foreign_clocks=False)
    calibration = [fault_free_of(plain, 7)] if seed % 2 else []
    card = judge(Evidence(run, fault_free_of(plain) if seed % 5 else None, calibration), "coarse")
    report = run_report.from_scorecard(card).to_json()
    kept = {key: value for key, value in report.items() if key in ("verdict", "reasons")}
    return kept | {"parts": {name: fingerprint(value) for name, value in parts(run, report)}}


@pytest.mark.parametrize("seed", range(STORIES))
def test_it_is_read_and_judged_as_before(seed: int) -> None:
    found = record(seed)
    assert not [reason for reason in found["reasons"] if "crashed" in reason]
    expected = json.loads(GOLDEN.read_text())[seed]
    found["parts"] = {name: found["parts"].get(name, "gone") for name in expected["parts"]}  # figures may be added
    assert found == expected


if __name__ == "__main__":
    GOLDEN.write_text("[\n" + ",\n".join(json.dumps(record(seed)) for seed in range(STORIES)) + "\n]\n")
