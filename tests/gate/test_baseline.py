"""Baselines: kept, found again, refused where they are of something else, and never believed before they are read."""

import json
import pathlib
import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import edit, stored, verdict
from mutants.bent import JOB, KILL
from scorecards import assert_verdict
from simulator import simulate

from harness.errors import UsageError
from harness.gate import baseline, run_figures
from harness.gate.run_figures import Figures, Identity, RunFigures, ScenarioFigures
from harness.judge.verdict import Verdict
from harness.plan.making import make_plan
from harness.report import run_report
from harness.spec.scenario import parse_scenario

HERE = Identity(
    scenario="rank-kill",
    backend="local",
    seed="1",
    nodes=2,
    ranks_per_node=1,
    steps=40,
    version="v1",
    hardware={"cpus": 2},
)


def runs(seconds: Sequence[float | None], /, name: str = "old", **more: Any) -> tuple[RunFigures, ...]:
    known: dict[str, Any] = {"verdict": Verdict.PASS, "wasted_gpu_seconds": 20.0, "allocated_gpu_seconds": 80.0}
    known |= {"checkpoint_stall": 0.0, "commit": "abcd1234"} | more
    return tuple(RunFigures(run_id=f"{name}-{i}", recovery_time=each, **known) for i, each in enumerate(seconds))


def of(identity: Identity, made: tuple[RunFigures, ...]) -> Figures:
    return Figures(source="gate-1", made_at="2026-11-22", scenarios=(ScenarioFigures(identity=identity, runs=made),))


OLD, SLOWER = [7.0, 7.2, 6.9, 7.1, 7.3], [10.6, 10.8, 10.4, 10.7, 10.9]


def held(now: tuple[RunFigures, ...], before: tuple[RunFigures, ...] = runs(OLD)) -> Any:
    return baseline.regressions("week", of(HERE, before), of(HERE, now).scenarios)


def test_the_same_stack_is_green_and_a_slower_one_is_red() -> None:
    same = held(runs([7.1, 7.0, 7.4, 6.8, 7.2], "new"))
    assert_verdict(same, Verdict.PASS)
    assert same.not_compared == ["rank-kill: checkpoint stall (neither side has a value)"]
    assert_verdict(held(runs(SLOWER, "new")), Verdict.FAIL, first="rank-kill: recovery time: 1.50 × the baseline")
    failed = held(runs(OLD, "new", verdict=Verdict.FAIL))
    assert any("success: 5 of 5 runs failed" in reason for reason in failed.reasons)
    other = msgspec.structs.replace(HERE, scenario="spot-evict")
    lacked = baseline.regressions("week", of(HERE, runs(OLD)), of(other, runs(OLD, "new")).scenarios)
    assert lacked.verdict is Verdict.INCONCLUSIVE
    assert lacked.reasons == ["spot-evict: the baseline has no runs of this scenario"]


@pytest.mark.parametrize("before", [(), runs(OLD, verdict=Verdict.INVALID), runs(OLD[:2])])
@pytest.mark.parametrize("recovery", [7.0, None])
def test_a_comparison_with_nothing_is_no_pass(before: tuple[RunFigures, ...], recovery: float | None) -> None:
    silent: dict[str, Any] = {"wasted_gpu_seconds": None, "checkpoint_stall": 0.0}
    few = tuple(msgspec.structs.replace(each, recovery_time=recovery, **silent) for each in before)
    found = held(runs([recovery] * 5, "new", **silent), few)
    assert_verdict(found, Verdict.INCONCLUSIVE, "each side needs 3 judged runs; about")
    assert held(runs([recovery], "new", **silent), runs([recovery] * 5, **silent)).verdict is not Verdict.PASS
    for bad in (Verdict.INVALID, Verdict.INCONCLUSIVE):  # such runs prove nothing
        found = held(runs([7.0, 7.1], "new") + runs([7.0] * 5, "void", verdict=bad))
        assert_verdict(found, Verdict.INCONCLUSIVE, first="5 runs in the baseline and 2 here")
        assert held(runs(OLD, "new"), runs(OLD[:2]) + runs(OLD, "void", verdict=bad)).verdict is Verdict.INCONCLUSIVE


def test_a_busier_machine_is_no_regression_and_no_pass() -> None:
    before = runs(OLD, step_seconds=0.1)
    busy = held(runs(SLOWER, "new", step_seconds=0.15), before)
    assert_verdict(
        busy, Verdict.INCONCLUSIVE, first="the median step also took 1.50 × as long: the machine may be busier"
    )
    assert held(runs(SLOWER, "new", step_seconds=0.1), before).verdict is Verdict.FAIL
    assert held(runs(SLOWER, "new", step_seconds=0.05), before).verdict is Verdict.FAIL, "a faster one excuses nothing"
    assert held(runs(OLD, "new", wasted_gpu_seconds=2000.0)).verdict is Verdict.FAIL, "it hides no waste"
    far = [3 * value for value in OLD]
    assert held(runs(far, "new", step_seconds=0.15), before).verdict is Verdict.FAIL, "that is more than it explains"


@pytest.mark.parametrize(
    ("now", "before", "why"),
    [
        (runs([7.0, 7.1, 7.2, 7.1, None], "new"), runs(OLD), "1 of 5 new runs do not report it"),
        (runs(OLD, "new"), runs(OLD, checkpoint_stall=5.0), "check that it is still reported"),
        (runs(OLD), runs(OLD), "the same runs"),
        (runs(OLD, "new", wasted_gpu_seconds=2e3), runs(OLD, allocated_gpu_seconds=1e15), "at most 3 × can be"),
        (runs(OLD, "new", allocated_gpu_seconds=None), runs(OLD, allocated_gpu_seconds=1e15), ""),
    ],
    ids=["one run lacks the figure", "it vanished", "its own runs", "it claims far more GPU time", "nobody tells it"],
)
def test_what_cannot_be_compared_is_doubt(
    now: tuple[RunFigures, ...], before: tuple[RunFigures, ...], why: str
) -> None:
    assert_verdict(held(now, before), Verdict.INCONCLUSIVE, first=why)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"backend": "docker"}, "backend local, here docker"),
        ({"seed": "7"}, "seed 1, here 7"),
        ({"nodes": 4}, "nodes 2, here 4"),
        ({"ranks_per_node": 8}, "ranks per node 1, here 8"),
        ({"steps": 4}, "steps 40, here 4"),
        ({"profile": "cluster"}, "profile none, here cluster"),
        ({"version": "v2"}, "another version of the scenario"),
        ({"hardware": {"cpus": 64}}, "cpus 2, here 64"),
        ({"hardware": {"cpus": 2, "gpu": "H100"}}, "gpu unknown, here H100"),
    ],
)
def test_a_baseline_of_something_else_is_refused(changed: dict[str, Any], said: str) -> None:
    here = msgspec.structs.replace(HERE, **changed)
    with pytest.raises(UsageError) as refused:
        baseline.check("week", of(HERE, runs(OLD)), [here])
    assert said in str(refused.value) and "chaos baseline set" in str(refused.value)
    baseline.check("week", of(HERE, runs(OLD)), [HERE])


def test_steps_that_only_the_run_tells_are_compared_afterwards() -> None:
    told_later = msgspec.structs.replace(HERE, steps=None)
    baseline.check("week", of(HERE, runs(OLD)), [told_later])
    for steps, expected in ((40, Verdict.PASS), (39, Verdict.INCONCLUSIVE)):
        new = of(msgspec.structs.replace(HERE, steps=steps), runs(OLD, "new"))
        found = baseline.regressions("week", of(HERE, runs(OLD)), new.scenarios)
        assert found.verdict is expected
    assert "another job: steps 40, here 39" in found.reasons[0]


def test_everything_of_the_workload_but_the_trainer_is_compared() -> None:
    text = "version: 1\nname: x\ntitle: X\nworkload: {steps: 40}\n"
    scenario = parse_scenario(text, "x.yaml")
    plan = make_plan(scenario, 1, "local", "x-1").to_json()
    first = run_figures.identity_of(plan, {})
    for name, value in plan["workload"].items():
        changed = plan | {"workload": plan["workload"] | {name: 7 if isinstance(value, int) or value is None else {}}}
        assert (run_figures.identity_of(changed, {}) == first) == (name == "trainer"), name


def test_a_baseline_is_kept_and_found_again(tmp_path: pathlib.Path) -> None:
    kept = of(HERE, runs(OLD))
    path = baseline.keep("last-week", kept, tmp_path)
    assert baseline.known(tmp_path) == ["last-week"]
    assert baseline.find("last-week", tmp_path) == baseline.find(str(path), tmp_path) == kept
    gate = tmp_path / "demo-20261122-1"
    gate.mkdir()
    (gate / baseline.FIGURES).write_text(kept.to_text())
    assert baseline.find("last", tmp_path) == baseline.find("demo-2026", tmp_path) == kept
    with pytest.raises(UsageError, match="did you mean last-week"):
        baseline.find("last-weak", tmp_path)
    for evil in ("../etc/passwd", "a/b", "", "x" * 100):
        with pytest.raises(UsageError):
            baseline.keep(evil, kept, tmp_path)
    with pytest.raises(UsageError, match="needs at least one"):
        baseline.keep("void", of(HERE, runs(OLD, verdict=Verdict.INVALID)), tmp_path)


def spoilt(where: str, value: Any) -> dict[str, Any]:
    """`where`: a key of the file, or of its first identity or run."""
    values: dict[str, Any] = json.loads(of(HERE, runs(OLD)).to_text())
    first = values["scenarios"][0]
    places = {"identity": first["identity"], "run": first["runs"][0]}
    place, _, key = where.rpartition(".")
    places.get(place, values)[key] = value
    return values


@pytest.mark.parametrize(
    "values",
    [
        spoilt("schema", 2),
        spoilt("surprise", 1),
        spoilt("scenarios", {}),
        spoilt("run.recovery_time", -1.0),
        spoilt("run.recovery_time", "7"),
        spoilt("run.recovery_time", 1e300),
        spoilt("run.verdict", "green"),
        spoilt("run.run_id", "x" * 1000),
        spoilt("run.run_id", "old-1"),
        spoilt("identity.nodes", 0),
        spoilt("identity.hardware", {str(i): i for i in range(100)}),
        spoilt("scenarios", spoilt("schema", 1)["scenarios"] * 2),
        [],
        None,
    ],
)
def test_a_file_that_was_tampered_with_is_refused(values: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "b.json").write_text(json.dumps(values))
    with pytest.raises(UsageError, match=r"b\.json"):
        baseline.find(str(tmp_path / "b.json"), tmp_path)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_other_file_is_one_clear_error(tmp_path: pathlib.Path, content: bytes) -> None:
    (tmp_path / "b.json").write_bytes(content)
    with pytest.raises(UsageError):
        run_figures.read(tmp_path / "b.json")


def test_figures_come_from_the_report_and_what_they_are_from_the_plan() -> None:
    card = verdict(simulate(JOB, KILL, seed=5))
    plan = {
        "scenario": {"name": "rank-kill"},
        "backend": "local",
        "seed": 7,
        "workload": {"nodes": 2, "ranks_per_node": 1, "trainer": "reference", "steps": 40},
        "faults": [{"id": "kill"}],
    }
    first = run_figures.identity_of(plan, {"cpus": 2, "kernel": "6.1", "cpu": "EPYC"})
    assert first.hardware == {"cpus": 2, "cpu": "EPYC"}
    changed = plan | {"workload": plan["workload"] | {"trainer": {"command": ["x"]}}, "expect": {"pace": "off"}}  # type: ignore[operator]
    assert run_figures.version_of(changed) == first.version, "the trainer and the bounds may change"
    assert run_figures.version_of(plan | {"faults": []}) != first.version
    with pytest.raises(ValueError):
        run_figures.identity_of({"workload": 3}, {})
    (found,) = run_figures.figures_of_cards([replace(card, run_id=f"r-{i}") for i in range(3)])
    assert [run.run_id for run in found.runs] == ["r-0", "r-1", "r-2"]
    assert found.runs[0].recovery_time and found.runs[0].wasted_gpu_seconds
    told = run_report.from_scorecard(card)
    accounts = told.scores["wasted_gpu_hours"]["accounts"] | {"checkpoint_stall": 0.0}
    waste = told.scores["wasted_gpu_hours"] | {"accounts": accounts}
    unmeasured = msgspec.structs.replace(told, scores=told.scores | {"wasted_gpu_hours": waste})
    assert run_figures.figures_of(unmeasured).checkpoint_stall is None


def store(reports: pathlib.Path, commits: list[str]) -> None:
    for i, commit in enumerate(commits):
        stored(reports / f"run-{i}", commit=commit, begun_at=f"2026-11-22T08:00:0{i}+00:00")


def test_stored_runs_of_a_commit_are_a_baseline(tmp_path: pathlib.Path) -> None:
    store(tmp_path, ["abcd1234"] * 5)
    (tmp_path / "run-3" / "report.json").write_text("{")
    shutil.rmtree(tmp_path / "run-4" / "events")
    found = baseline.find("abcd", tmp_path)
    assert [len(each.runs) for each in found.scenarios] == [4]
    assert found.source == "commit abcd, without run-4: not judged"
    with pytest.raises(UsageError):
        baseline.find("beef", tmp_path)


def test_a_baseline_takes_its_figures_from_the_logs(tmp_path: pathlib.Path) -> None:
    store(tmp_path, ["abcd1234"] * 3)
    (before,) = baseline.find("abcd", tmp_path).scenarios
    for run in ("run-0", "run-1"):
        edit(tmp_path / run / "report.json", lambda report: report["scores"]["recovery_time"].update(seconds=-1.0))
        edit(tmp_path / run / "report.json", lambda report: report.update(verdict="fail"))
    assert baseline.find("abcd", tmp_path).scenarios == (before,)
    gate = tmp_path / "gate-1"
    gate.mkdir()
    figures = Figures(source="gate-1", scenarios=(before,))
    (gate / "figures.json").write_text(figures.to_text())
    assert baseline.find("gate-1", tmp_path) == figures
    edit(gate / "figures.json", lambda values: values["scenarios"][0]["runs"][1].update(recovery_time=0.1))
    found = baseline.find("gate-1", tmp_path)
    assert found.scenarios == (before,) and found.source.endswith("say otherwise: run-1")
    edit(gate / "figures.json", lambda values: values["scenarios"][0]["identity"].update(seed="8"))
    with pytest.raises(UsageError, match="run-2 is another job by its log: seed 7, here 8"):
        baseline.find("gate-1", tmp_path)


def test_a_negative_figure_is_no_evidence() -> None:
    told = run_report.from_scorecard(verdict(simulate(JOB, KILL, seed=5)))
    times = told.scores["recovery_time"] | {"seconds": -5.0}
    with pytest.raises(ValueError, match=r"recovery_time is -5\.0: Expected `float` >= 0"):
        run_figures.figures_of(msgspec.structs.replace(told, scores=told.scores | {"recovery_time": times}))
    assert_verdict(held(runs([-0.05] * 5, "new")), Verdict.INCONCLUSIVE, "-0.05 of a new run is impossible")


def test_a_commit_is_one_commit(tmp_path: pathlib.Path) -> None:
    store(tmp_path, ["abcd1234", "abcd1234", "abcd1234-dirty", "abcd9999", "beef0000-dirty"])
    assert baseline.find("abcd12", tmp_path).commits == ["abcd1234"]
    (dirty,) = baseline.find("abcd1234-dirty", tmp_path).scenarios
    assert [run.run_id for run in dirty.runs] == ["run-2"]
    with pytest.raises(UsageError, match="fits 2 commits; write more letters: abcd1234, abcd9999"):
        baseline.find("abcd", tmp_path)
    for none_such in ("beef", "beef0000", "abcd-dirty"):
        with pytest.raises(UsageError, match="no baseline"):
            baseline.find(none_such, tmp_path)
