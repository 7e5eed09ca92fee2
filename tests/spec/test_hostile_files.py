"""Whatever a scenario file holds: one clear answer with its place, soon, and in little memory."""

import cProfile
import time
import tracemalloc

import pytest
from damaged_inputs.yaml_files import BOMB, run
from hypothesis import given
from hypothesis import strategies as st

from harness.campaign.checked_files import score_bounds
from harness.errors import ScenarioError
from harness.gate.suite_file import parse_suite
from harness.plan.making import make_plan
from harness.spec.document import PROBLEMS_MAX, VALUES_MAX, Document
from harness.spec.scenario import FAULTS_MAX, parse_scenario
from harness.spec.schema import json_schema

HEAD = "version: 1\nname: x\ntitle: X\n"
SPIKE = "{id: a, fault: divergence, when: {step: 3}, target: {rank: all}"
KILL = "- {{id: a{}, fault: rank_kill, when: {{step: 3}}, target: {{rank: 0}}}}\n"


def refusal(text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text, "s.yaml", scores=score_bounds())
    assert all(problem.startswith("s.yaml:") for problem in caught.value.problems)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + BOMB, f"more than the {VALUES_MAX:,} keys and values that are allowed"),
        (HEAD + "expect: &a [*a]", "4:13: not valid YAML: unknown alias 'a'"),
        (HEAD + "expect: " + "[" * 100_000, "nested deeper than the 40 levels that are allowed"),
        (HEAD + "expect: " + "{a: " * 100_000, "nested deeper than the 40 levels that are allowed"),
        ("- " * 100_000, "nested deeper than the 40 levels that are allowed"),
        (HEAD + "repeat: !!timestamp 2020-01-01", "4:9: unknown tag 'tag:yaml.org,2002:timestamp'; choose one of: !!str"),
        (HEAD + "repeat: !!python/object:os.system {}", "unknown tag"),
        (HEAD + "repeat: !!int ''", "4:9: '' is not of the type !!int"),
        (HEAD + "repeat: !!bool maybe", "4:9: 'maybe' is not of the type !!bool"),
        (HEAD + "repeat: " + "9" * 100_000, "4:9: a number of more than the 300 digits that are allowed"),
        (HEAD + "repeat: " + "9" * 200, "4:1: repeat: 9999"),
        (HEAD + "workload: {steps: true}", "workload.steps: True is not allowed: it should be a valid integer"),
        (HEAD + "workload: {checkpoint: {every_steps: '10'}}", "'10' is not allowed: it should be a valid integer"),
        (HEAD + "price_per_gpu_hour: '2'", "'2' is not allowed: it should be a valid number"),
        (HEAD + "expect: {pace: {max_slowdown: true}}", "True is not allowed: it should be a valid number"),
        (
            HEAD + "faults: [{id: a, fault: straggler, when: {step: 9}, target: {rank: 1}, factor: '2'}]",
            "4:72: faults.0.factor: '2' is not allowed: it should be a valid number",
        ),
        (HEAD + "workload: {nodes: 1000000000}", "workload.nodes: 1000000000 is not allowed: it should be less than or equal to 4096"),
        (HEAD + "workload: {ranks_per_node: 1000000000}", "it should be less than or equal to 64"),
        (HEAD + "workload: [1]", "workload: a list is not allowed: it should be a mapping"),
        (HEAD + "price_per_gpu_hour: .nan", "it should be a finite number"),
        (HEAD + "abort: {wall_clock: 99999999h}", "a duration is at most 8760h"),
        ('version: 1\nname: x\ntitle: "\\e[31mred"', r"3:1: title: '\x1b[31mred': only printable characters"),
        ('version: 1\nname: x\ntitle: "a\u202eb"', r"only printable characters"),
        (HEAD + '"\\e[2J": 1', r"4:1: \x1b[2J: unknown key"),
        (HEAD + "title: Y", "4:1: duplicate key 'title'"),
        (HEAD + "1: a\n'1': b", "5:1: duplicate key '1'"),
        (HEAD + "? [a]\n: 1", "a key is a plain word"),
        (HEAD + "---\n" + HEAD, "a file holds one document"),
        ("version: 1\nname: \x01", "2:1: not valid YAML"),
        (HEAD + "workload: {trainer: {command: [x], env: {API_KEY: 12345678}}}", "API_KEY: the value is not allowed"),
        (HEAD + "faults: [{id: a, fault: checkpoint_corruption, when: {step: 3}, target: {node: 0}, directory: ../..}]", "'../..' is not below the run's folder"),
        (HEAD + "tags: [" + "a," * 101 + "]", "tags: the number of items is 101; allowed: at most 100"),
        *((f"version: 1\nname: {name}\ntitle: t\n", "name: ") for name in ("../../etc", "a b", "--privileged", "x;reboot", "$(id)", "a/b", "A")),
        *(
            (HEAD + f"workload: {{checkpoint: {{every: {value}}}}}", f"4:25: workload.checkpoint.every: {shown} is not a duration")
            for value, shown in [
                ("-1s", "'-1s'"), (".nan", "nan"), ("10", "10"), ("true", "True"), ("'1e99m'", "'1e99m'"),
                ("[1s]", "a list"), ("{a: 1s}", "a mapping"), ("'١٠m'", "'١٠m'"), ("'9\\e[31m'", r"'9\\e[31m'"),
            ]
        ),
        (HEAD + "workload: {checkpoint: {every: 0s}}", "4:12: workload.checkpoint: every: 0s must be greater than 0"),
        (HEAD + "workload: {checkpoint: {every: 9s, every_steps: 2}}", "every_steps and every exclude each other"),
        *((HEAD + f"faults: [{SPIKE}, factor: {value}}}]", f"faults.0.factor: {value.strip('.')}") for value in ("-1", ".nan", ".inf", "1")),
        *((HEAD + f"faults: [{SPIKE}, steps: {value}}}]", f"faults.0.steps: {value}") for value in ("0", "-3", "1001", "2.5")),
        (HEAD + f"faults: [{SPIKE}, kind: '<b>'}}]", "4:75: faults.0.kind: '<b>' is not allowed: it should be 'learning_rate'"),
        *((HEAD + f"limits: {{nodes_at_once: {value}}}", "4:10: limits.nodes_at_once: ") for value in ("0", "-1", "1.5", ".nan", "true", "'0%'", "'200%'", "[]", "many", "'2'")),
        (HEAD + "expect: {divergence: {max: 3}}", "4:23: expect.divergence.max: unknown key"),
        (HEAD + "expect: {rank_samples: 3}", "4:10: expect.rank_samples: 3 is not allowed"),
    ],
    ids=lambda value: value[30:60] if len(value) > 60 else value,
)  # fmt: skip
def test_it_is_refused_with_its_place_and_what_is_allowed(text: str, message: str) -> None:
    assert message in refusal(text)


def test_the_limits_stand_in_the_schema() -> None:
    schema = json_schema(score_bounds())
    workload = schema["$defs"]["Workload"]["properties"]
    assert (workload["nodes"]["maximum"], workload["ranks_per_node"]["maximum"]) == (4096, 64)
    assert schema["properties"]["faults"]["maxItems"] == FAULTS_MAX
    assert schema["properties"]["title"]["maxLength"] == 200


def test_dates_and_words_of_older_yaml_stay_text_and_an_alias_is_the_value_again() -> None:
    text = "{a: 2020-01-01, b: on, c: no, d: 1:30, e: 0o17, f: 0x1F, g: 1e3, h: .5, i: ~, j: '1', k: !!str 1, l: &x [1], m: *x}"
    values = ["2020-01-01", "on", "no", "1:30", 15, 31, 1e3, 0.5, None, "1", "1", [1], [1]]
    assert Document(text, "s").data == dict(zip("abcdefghijklm", values, strict=True))


def calls_for(faults: int) -> int:
    text = HEAD + "faults:\n" + "".join(map(KILL.format, range(faults)))
    with cProfile.Profile() as profile:
        assert len(make_plan(parse_scenario(text, "s.yaml"), 1, "local", "run").faults) == faults
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.slow
def test_many_faults_take_linear_work() -> None:
    """Twenty times as many take about twenty times as many calls: a quadratic step would make it four hundred."""
    calls_for(100)
    assert calls_for(FAULTS_MAX // 5) < 22 * calls_for(FAULTS_MAX // 100)


@pytest.mark.slow
def test_thousands_of_mistakes_are_told_in_some_lines() -> None:
    text = HEAD + "faults:\n" + KILL.format("").replace("rank_kill", "rank_kil") * 5_000
    assert len(refusal(text).splitlines()) == PROBLEMS_MAX + 1


def test_an_alias_bomb_takes_little_memory() -> None:
    tracemalloc.start()
    refusal(HEAD + BOMB)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 50 * 2**20


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_scenario, parse_suite):
        try:
            parse(text, "s.yaml")
        except ScenarioError as error:
            assert error.problems


@pytest.mark.slow
def test_mutated_files_end_in_a_value_or_in_one_clear_error() -> None:
    tally = run(600, seed=int(time.time()) // 86_400)  # other files every day; a broken one is named with its seed
    assert tally.broken == []
    assert tally.read > 20 and tally.refused > 100
