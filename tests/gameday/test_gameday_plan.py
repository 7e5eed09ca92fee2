"""The file and the plan of a game day: mistakes are told with their place; the same seed gives the same day."""

import pathlib

import pytest

from harness.errors import ScenarioError
from harness.gameday import day_plan
from harness.gameday.day_file import parse_gameday
from harness.gameday.day_plan import DayPlan, plan_day, schedule
from harness.plan.making import make_plan

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "scenarios"
HEAD = "version: 1\nname: day\ntitle: A day\nworkload: {nodes: 2, steps: 500}\n"


def day_of(tmp_path: pathlib.Path, entries: str, seed: int = 1) -> DayPlan:
    path = tmp_path / "day.yaml"
    path.write_text(HEAD + entries)
    return plan_day(path, seed, "local", "day-1", SCENARIOS)


def test_the_shipped_day_is_planned_and_round_trips() -> None:
    day = plan_day(SCENARIOS / "gamedays" / "pre-launch.yaml", 1, "local", "day-1", SCENARIOS)
    assert [scene.kind for scene in day.scenes] == ["scenario", "rest", "scenario", "scenario", "replay"]
    assert DayPlan.model_validate(day.to_json()) == day
    assert all(act.plan.workload == day.job.workload for act in day.acts)


def test_a_step_counts_from_the_begin_of_the_rehearsal(tmp_path: pathlib.Path) -> None:
    day = day_of(tmp_path, "entries: [{scenario: rank-kill}, {scenario: rank-kill}]\n")
    assert [act.name for act in day.acts] == ["rank-kill", "rank-kill-2"]
    whens = [act.plan.faults[0].when for act in day.acts]
    assert [(when.step, when.more_steps, when.after_ns) for when in whens] == [(None, 90, None)] * 2
    assert [act.plan.faults[0].id for act in day.acts] == ["rank-kill", "rank-kill-2-kill"]
    assert [day.alone("rank-kill-2", begun).faults[0].when.step for begun in (181, 0)] == [271, day.steady.steps + 90]
    beyond = "entries: [{scenario: rank-kill, overrides: {faults: {kill: {when: {step: 700}}}}}]\n"
    assert day_of(tmp_path, beyond).acts[0].plan.faults[0].when.more_steps == 700, "no mistake, in a job of 500 steps"


def test_a_share_of_waste_counts_only_where_the_day_names_it(tmp_path: pathlib.Path) -> None:
    named = "overrides: {expect: {wasted_gpu_hours: {max_percent: 90, max_gpu_seconds: 500}}}"
    entries = f"entries: [{{scenario: rank-kill}}, {{scenario: rank-kill, {named}}}]\n"
    day = day_of(tmp_path, entries)
    told = {"max_percent": 90, "max_gpu_seconds": 500}
    assert [act.plan.expect.get("wasted_gpu_hours") for act in day.acts] == [None, told]
    assert all("recovery_time" in act.plan.expect for act in day.acts)
    for fault_free, against in (("true", None), ("false", "itself")):
        day = day_of(tmp_path, f"fault_free: {fault_free}\n{entries}")
        assert day.acts[0].plan.to_json()["expect"]["loss_continuity"].get("against") == against


@pytest.mark.parametrize(
    ("entries", "first", "later"),
    [
        ("[{scenario: rank-kill}, {scenario: nan-batch}]", "nan-batch", []),
        ("[{scenario: rank-kill}, {scenario: nan-batch}, {scenario: hang}]", "nan-batch", ["hang"]),
        ("[{parallel: [{scenario: rank-kill}, {scenario: nan-batch}]}]", "nan-batch", ["rank-kill"]),
        ("[{scenario: rank-kill}, {scenario: hang}]", "", []),
        (
            "[{scenario: rank-kill, overrides: {expect: {loss_continuity: {mode: final}}}}, {scenario: hang}]",
            "rank-kill",
            ["hang"],
        ),
    ],
)
def test_what_comes_after_other_losses_is_named(
    tmp_path: pathlib.Path, entries: str, first: str, later: list[str]
) -> None:
    assert day_of(tmp_path, f"entries: {entries}\n").losses_unproven() == (first, later)


def test_chance_comes_from_the_seed_alone(tmp_path: pathlib.Path) -> None:
    entries = "entries: [{random: {scenarios: [rank-kill, node-loss], rate: 60/h, times: 8}}]\n"
    first, again, other = (day_of(tmp_path, entries, seed) for seed in (1, 1, 2))
    assert first == again
    assert [act.after_ns for act in first.acts] != [act.after_ns for act in other.acts]
    assert sorted(act.after_ns for act in first.acts) == [act.after_ns for act in first.acts]
    assert all(fault.when.more_steps == 0 for act in first.acts for fault in act.plan.faults)
    assert {act.plan.scenario.name for act in first.acts} == {"rank-kill", "node-loss"}


def test_a_trace_is_replayed_faster_on_its_own_nodes(tmp_path: pathlib.Path) -> None:
    (tmp_path / "t.csv").write_text("time,node,event\n0,x,failed\n60,y,killed\n90,x,coffee\n120,x,failed\n")
    day = day_of(tmp_path, "entries: [{replay: {trace: t.csv, speed: 60x}}]\n")
    assert [act.after_ns for act in day.acts] == [0, 1_000_000_000, 2_000_000_000]
    first, second, third = (act.plan.faults[0].targets[0].node_index for act in day.acts)
    assert first == third != second, "a node of the trace is one node of the job"
    assert [act.plan.faults[0].kind for act in day.acts] == ["node_loss", "rank_kill", "node_loss"]


def test_nodes_that_go_at_one_moment_are_one_rehearsal(tmp_path: pathlib.Path) -> None:
    rows = "0,add,a\n0,add,b\n60000,remove,a\n60000,remove,b\n61000,add,c\n120000,remove,c\n"
    (tmp_path / "t.csv").write_text(rows)
    day = day_of(tmp_path, "entries: [{replay: {trace: t.csv, speed: 60x, window: [1m, 1h]}}]\n")
    assert [len(act.plan.faults[0].targets) for act in day.acts] == [2, 1]
    assert [act.after_ns for act in day.acts] == [0, 1_000_000_000]
    told = "t.csv (Bamboo, SHA-256 "
    assert any(told in line and "3 nodes went at 2 moments" in line for line in schedule(day))
    assert DayPlan.model_validate(day.to_json()) == day


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ("entries: [{rest: 5s}]\n", "no entry injects anything"),
        ("entries:\n  - {scenario: rank-kil}\n", "day.yaml:6:5: entries.0: unknown scenario 'rank-kil'"),
        ("entries:\n  - {scenario: absent-node}\n", "it expects that the job fails; a game day's job goes on"),
        ("entries:\n  - {replay: {trace: no.csv}}\n", "day.yaml:6:5: entries.0: unknown trace 'no.csv'"),
        ("entries:\n  - {scenario: rank-kill, overrides: {faults: {x: {}}}}\n", "unknown fault 'x'"),
        ("entries:\n  - {scenario: rank-kill, overrides: {faults: {kill: {target: {rank: 7}}}}}\n", "unknown rank 7"),
    ],
)
def test_what_cannot_be_planned_is_told_with_its_place(tmp_path: pathlib.Path, entries: str, told: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        day_of(tmp_path, entries)
    assert told in str(raised.value)


def test_too_many_rehearsals_are_refused_before_they_are_all_planned(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(day_plan, "ACTS_MAX", 3)
    begun: list[object] = []
    monkeypatch.setattr(day_plan, "make_plan", lambda *given: begun.append(given) or make_plan(*given))
    with pytest.raises(ScenarioError, match=r"day.yaml:6:5: entries.0: more than 3 rehearsals"):
        day_of(tmp_path, "entries:\n  - {random: {scenarios: [rank-kill], rate: 60/h, times: 50}}\n")
    assert len(begun) == 3


def test_the_schedule_has_times(tmp_path: pathlib.Path) -> None:
    text = "entries: [{scenario: rank-kill}, {rest: 30s}, {pause: Is everybody there?}, {scenario: silent-hang}]\n"
    lines = schedule(day_of(tmp_path, text), step_s=0.1)
    assert [line.split()[0] for line in lines if ". " in line[:14]] == ["00:00:02", "00:00:12", "00:00:42", "00:00:42"]
    assert lines[-1].startswith("00:01:07")
    without = schedule(day_of(tmp_path, text))
    assert without[-1].startswith("00:00:45")
    day = day_of(tmp_path, text)
    for when_done, ends in (("stop", "the day ends it"), ("wait", "the job goes on to its end")):
        assert schedule(day.model_copy(update={"when_done": when_done}))[-1].endswith(ends)


TOP = "version: 1\nname: day\ntitle: A day\n"


def problems(text: str) -> str:
    with pytest.raises(ScenarioError) as raised:
        parse_gameday(TOP + text, "day.yaml")
    return "\n".join(raised.value.problems)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("entries: []\n", "day.yaml:4:1: entries: the number of items is 0; allowed: at least 1"),
        ("entries:\n  - {}\n", "day.yaml:5:5: entries.0: nothing given; write exactly one of: scenario"),
        ("entries:\n  - {rest: 5s, pause: now}\n", "entries.0: pause + rest given"),
        (
            "entries:\n  - {scenaro: rank-kill}\n",
            "day.yaml:5:6: entries.0.scenaro: unknown key; did you mean scenario?",
        ),
        ("entries:\n  - {rest: 5}\n", "day.yaml:5:6: entries.0.rest: 5 is not a duration"),
        ("entries:\n  - {replay: {trace: a.csv, speed: 60}}\n", "entries.0.replay.speed: 60 is not a speed"),
        ("entries:\n  - {random: {scenarios: [a], rate: 3, times: 2}}\n", "entries.0.random"),
        (
            "entries:\n  - {scenario: a, overrides: {workload: {nodes: 3}}}\n",
            "day.yaml:5:31: entries.0.overrides.workload: the workload is that of the day",
        ),
        ("entries:\n  - {pause: x, expect: {alerts: []}}\n", "expect: belongs to scenario:"),
        ("entries:\n  - {rest: 1s, runbook: 'javascript:alert(1)'}\n", "is not a web address"),
        ("entries: [{rest: 1s}]\nprobes:\n  - {name: p}\n", "nothing: write exactly one of: command, http, promql"),
        (
            "entries: [{rest: 1s}]\nprobes:\n  - {name: p, command: [a]}\n  - {name: p, command: [b]}\n",
            "day.yaml:7:6: probes.1.name: 'p' is already the name of another probe",
        ),
        (
            "entries: [{rest: 1s}]\nbudget: {wasted_percent: 130%}\n",
            "budget.wasted_percent: '130%' is not a percentage",
        ),
        ("entries: [{rest: 1s}]\nsteady: {steps: 1}\n", "steady.steps: 1 is not allowed"),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, told: str) -> None:
    assert told in problems(text)


def test_all_mistakes_are_told_at_once_and_a_secret_is_one() -> None:
    assert len(problems("entries:\n  - {}\n  - {rest: 5}\nextra: 1\n").splitlines()) == 3
    text = "workload: {trainer: {command: [x], env: {MY_TOKEN: abc}}}\nentries: [{rest: 1s}]\n"
    assert "looks like a secret" in problems(text)
