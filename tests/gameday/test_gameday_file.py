"""The file of a game day: what is allowed, and that every mistake is told with its place."""

import pytest

from harness.errors import ScenarioError
from harness.gameday.day_file import parse_gameday

HEAD = "version: 1\nname: day\ntitle: A day\n"


def problems(text: str) -> str:
    with pytest.raises(ScenarioError) as raised:
        parse_gameday(HEAD + text, "day.yaml")
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
