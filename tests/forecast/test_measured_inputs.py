"""What runs measured becomes the job that is forecast; what nobody measured is an assumption."""

import json
import pathlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from forecast.stored_runs import store

from harness.errors import UsageError
from harness.forecast.failure_rates import load_gaps, load_rates, shipped
from harness.forecast.job_model import Gaps, Job, Origin
from harness.forecast.measured_inputs import Measured, job_of, pace_of_smaller_world, read_runs
from harness.forecast.trace_failures import table_of, with_trace
from harness.spec.traces import load_trace, parse_trace

SCENARIOS = pathlib.Path(__file__).resolve().parents[2] / "scenarios"
PHASES = {
    "detect": 4.0,
    "teardown": 1.0,
    "reschedule": 90.0,
    "startup": 20.0,
    "recompute": 7.0,
    "interrupted_step": 0.5,
}


def job(found: Measured, table: str = "llama3") -> Job:
    return job_of(2048, 54 * 86_400, load_rates(table)[1], Gaps(), found)


def cause(made: Job, name: str) -> Any:
    return next(each for each in made.causes if each.name == name)


def test_recoveries_are_taken_by_fault_without_waiting_and_lost_work(tmp_path: pathlib.Path) -> None:
    names = [
        store(tmp_path, "loss-1", fault="node_loss", phases=PHASES, stall=2.0),
        store(tmp_path, "loss-2", fault="node_loss", phases=PHASES | {"startup": 40.0}, stall=4.0),
        store(tmp_path, "hang-1", fault="hang", phases=PHASES | {"detect": 300.0}, stall=3.0),
    ]
    made = job(read_runs(names, tmp_path))
    broken = cause(made, "Faulty GPU")
    assert broken.detection.values == (4.0, 4.0) and broken.restart.values == (21.0, 41.0)
    assert broken.restart.origin is Origin.MEASURED and "2 measurements, deviation 14" in broken.restart.source
    assert cause(made, "NCCL watchdog timeout").detection.values == (300.0,)
    bug = cause(made, "Software bug")
    assert bug.restart.values == (21.0, 41.0, 21.0) and bug.restart.origin is Origin.ASSUMED
    assert bug.detection.values == (4.0, 4.0) and bug.detection.origin is Origin.ASSUMED, (
        "a hang goes unseen for longer"
    )
    assert made.settings["checkpoint_stall"].values == (2.0, 4.0, 3.0)


def test_deaths_and_notices_tell_nothing_of_how_long_a_hang_goes_unseen(tmp_path: pathlib.Path) -> None:
    made = job(read_runs([store(tmp_path, "loss", fault="node_loss", phases=PHASES)], tmp_path))
    silent = cause(made, "Silent data corruption").detection
    assert silent.origin is Origin.ASSUMED and silent.values == (600.0,)
    made = job(read_runs([store(tmp_path, "evict", phases=PHASES | {"detect": 0.0})], tmp_path))
    assert cause(made, "Faulty GPU").detection.values == (60.0,)
    assert cause(made, "Host maintenance").detection.values == (0.0,)
    made = job(read_runs([], pathlib.Path("nowhere")))
    found = [*made.settings.values(), *(value for each in made.causes for value in (each.detection, each.restart))]
    assert {value.origin for value in found} == {Origin.ASSUMED}, "without runs all is assumed"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"phases": {"startup": 1e308}}, "1e\\+308 s; 0 to"),
        ({"phases": {"startup": -1.0}}, "took -1 s"),
        ({"stall": -1.0}, "a checkpoint's stall took -1 s"),
        *(
            ({"verdict": each, "reasons": ["why"]}, f"odd is no ground for a forecast, its verdict is {each}: why")
            for each in ("fail", "inconclusive", "invalid")
        ),
    ],
)
def test_a_run_counts_once_must_have_passed_and_tell_possible_times(
    tmp_path: pathlib.Path, changes: dict[str, Any], says: str
) -> None:
    store(tmp_path, "odd", **changes)
    with pytest.raises(UsageError, match=says):
        read_runs(["odd"], tmp_path)
    names = [store(tmp_path, f"loss-{n}", fault="node_loss", phases=PHASES) for n in (1, 2)]
    with pytest.raises(UsageError, match="given twice"):
        read_runs(["loss-1", "loss-1"], tmp_path)
    (tmp_path / "two" / "events").mkdir(parents=True)
    with pytest.raises(UsageError, match="not judged yet"):
        read_runs(["two"], tmp_path)
    for name, script in zip(names, ("mine.py", "yours.py"), strict=True):
        plan = {"workload": {"nodes": 2, "trainer": {"command": ["python", script]}}}
        (tmp_path / name / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(UsageError, match="loss-2 ran another trainer than loss-1"):
        read_runs(names, tmp_path)


def test_the_pace_of_a_smaller_world_counts_samples(tmp_path: pathlib.Path) -> None:
    """Four ranks do 64 samples in 1 s, then two do 32 in 0.8 s: 20 samples a second and rank against 16."""
    S = 10**9
    size = np.array([4] * 5 + [2] * 5)
    end = np.concatenate([np.arange(1, 6) * S, 20 * S + np.arange(1, 6) * 4 * S // 5])
    progress = SimpleNamespace(world_size=size, end=end, epoch=(size == 2).astype(int))
    steps = SimpleNamespace(epoch=progress.epoch, count=np.where(size == 4, 64, 32))
    run: Any = SimpleNamespace(
        progress=progress, steps=steps, epochs=[SimpleNamespace(size=4), SimpleNamespace(size=2)]
    )
    assert pace_of_smaller_world(run) == 1.0, "no faster than its share"
    steps.count = np.where(size == 4, 64, 16)
    assert pace_of_smaller_world(run) == pytest.approx(10 / 16)
    steps.count = np.full(10, -1)
    assert pace_of_smaller_world(run) is None


def test_tables_are_shipped_or_ones_own(tmp_path: pathlib.Path) -> None:
    for name, table in shipped().items():
        assert table.source and sum(map(table.per_node_day, table.causes)) < 0.01, name
    assert sum(each.count or 0 for each in shipped()["llama3"].causes) == 419
    file = tmp_path / "ours.yaml"
    file.write_text("version: 1\ntables: {ours: {source: us, causes: [{name: all, per_1000_node_days: 2}]}}\n")
    name, table = load_rates(str(file))
    assert (name, table.per_node_day(table.causes[0])) == ("ours", 0.002)
    for cause, says in (
        ("{name: y}", "write one of count: and per_1000_node_days:"),
        ("{name: y, count: 1}", "node_days: is missing"),
        ("{name: y, per_1000_node_days: 0}", "greater than 0"),
        ("{name: y, per_1000_node_days: 1, faults: [hangs]}", "did you mean hang"),
    ):
        file.write_text(f"version: 1\ntables: {{a: {{source: x, causes: [{cause}]}}}}")
        with pytest.raises(UsageError, match=says):
            load_rates(str(file))
    file.write_text("[]")
    with pytest.raises(UsageError, match=r"mapping|dictionary"):
        load_rates(str(file))
    assert load_gaps("poisson").shape == 1 and load_gaps("weibull:0.6").shape == 0.6
    with pytest.raises(UsageError, match="weibull:SHAPE"):
        load_gaps("often")


def test_a_trace_says_when_failures_come_and_how_many_nodes_go() -> None:
    moments = (0, 1, 2, 3, 4, 5, 6, 7, 8, 18)
    trace = parse_trace("time\n" + "".join(f"{each}\n" for each in (*moments, 18, 18)), "t.csv")
    assert table_of(trace) is None, "nobody knows how many nodes there were"
    made = with_trace(job(Measured()), trace)
    assert made.gaps.trace == pytest.approx((0.5,) * 8 + (5.0,))
    assert (made.mean("together"), made.mean("together_nodes")) == (0.1, 3)
    assert made.settings["together"].origin is Origin.GIVEN
    with pytest.raises(UsageError, match="nodes go at 1 moment; at least 10 are needed"):
        with_trace(job(Measured()), parse_trace("time\n" + "7\n" * 20, "t.csv"))
    table = table_of(load_trace(SCENARIOS / "traces" / "bamboo-g4dn.csv"))  # it tells who was there
    assert table is not None and table.source == "48 moments in 5.65 node-days"
    (only,) = table.causes
    assert table.per_node_day(only) == pytest.approx(48 / 5.6535, rel=1e-3) and only.node


def test_a_report_with_very_much_in_it_stays_small(tmp_path: pathlib.Path) -> None:
    store(tmp_path, "phases", phases={f"phase-{place}": 0.001 for place in range(20_000)})
    (recovery,) = read_runs(["phases"], tmp_path).recoveries
    assert recovery.phases == {"other": pytest.approx(20)}
    episode = {"seconds": 1.0, "faults": ["evict"], "phases": {"startup": 1.0}}
    store(tmp_path, "episodes", scores={"recovery_time": {"episodes": [episode] * 301}})
    with pytest.raises(UsageError, match="more than 300 recoveries"):
        read_runs(["episodes"], tmp_path)
