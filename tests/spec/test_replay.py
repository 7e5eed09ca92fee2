"""Traces as they were published, and a trace on a job: order, batches, the rule of scale, and who is struck."""

import itertools
import json
import math
import pathlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ScenarioError, UsageError
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan
from harness.spec.replay import Replay
from harness.spec.scenario import parse_scenario
from harness.spec.traces import find_trace, load_trace, parse_trace
from harness.units import Duration

HEAD = "version: 1\nname: replayed\ntitle: A trace\nworkload: {nodes: NODES, ranks_per_node: 2, steps: 500}\n"
BARE, ONE = "{trace: t.csv}", "time\n1\n"
BEGUN = '{"node_id": "a", "event_time": %d, "event_type": "fault_start"}'
FAULT = "faults:\n  - {id: evict, fault: preemption, notice: 3s, target: {node: any}, when: WHEN}\n"


def replay(counts: list[int], gap_s: int = 60, speed: float = 1.0, merge: str = "1s") -> Replay:
    text = f'{{"metadata": {{"gap_seconds": {gap_s}}}, "data": {counts}}}'
    return Replay(parse_trace(text, "t.json"), speed, None, Duration(merge))


def plan_of(tmp_path: pathlib.Path, trace: str, when: str, nodes: int = 2, seed: int = 1, fault: str = FAULT) -> Plan:
    (tmp_path / "t.csv").write_text(trace)
    text = (HEAD + fault).replace("NODES", str(nodes)).replace("WHEN", when)
    return make_plan(parse_scenario(text, str(tmp_path / "s.yaml")), seed, "local", "run-1")


COUNTS = st.lists(st.integers(0, 40), min_size=2, max_size=60).map(lambda counts: [*counts, 40, 0])


@given(COUNTS, st.integers(1, 60), st.integers(0, 2**63), st.sampled_from(["0s", "1s", "100s"]), st.floats(0.5, 500))
def test_every_replay_is_in_order_and_strikes_nodes_of_the_job(
    counts: list[int], nodes: int, seed: int, merge: str, speed: float
) -> None:
    made = replay(counts, speed=speed, merge=merge)
    strikes = list(made.strikes(nodes, seed))
    gaps = [after.at_ns - before.at_ns for before, after in itertools.pairwise(strikes)]
    assert all(gap >= max(1, Duration(merge).ns) for gap in gaps)
    assert all(list(each.nodes) == sorted(set(each.nodes)) and each.nodes for each in strikes)
    assert {node for each in strikes for node in each.nodes} <= set(range(nodes))
    assert strikes == list(made.strikes(nodes, seed)), "the same seed strikes the same nodes"


@given(COUNTS, st.integers(1, 60))
def test_one_moment_is_one_fault_with_the_same_share_of_the_nodes(counts: list[int], nodes: int) -> None:
    drops = [before - after for before, after in itertools.pairwise(counts) if after < before]
    struck = [len(each.nodes) for each in replay(counts).strikes(nodes, 1)]
    assert struck == [math.ceil(k * nodes / 40) if nodes < 40 else k for k in drops]


def test_what_compression_merges_is_one_fault_and_is_told() -> None:
    counts = [9, 8, 6, 6, 6, 5, 4]  # losses of 1, 2, 1 and 1 at 60, 120, 300 and 360 s
    fast = replay(counts, speed=60, merge="2s")
    assert [(each.at_ns / 1e9, len(each.nodes)) for each in fast.strikes(9, 1)] == [(1, 3), (5, 2)]
    assert "60 times as fast: 5 nodes went at 4 moments, replayed as 2 faults" in fast.words(9)
    assert "2 moments came within 2s after another one: merged with it" in fast.words(9)
    assert "k stand for ⌈k · 3/9⌉ here" in fast.words(3)
    slow = replay(counts, merge="2s")
    assert "replayed as 4 faults" in slow.words(9) and "merged" not in slow.words(9)


def test_a_named_node_is_one_node_of_the_job_which_the_seed_chooses(tmp_path: pathlib.Path) -> None:
    trace = "time,node\n0,a\n0,b\n60,b\n120,c\n180,a\n"
    chosen = set()
    for seed in range(20):
        struck = [fault.nodes() for fault in plan_of(tmp_path, trace, "{trace: t.csv}", nodes=4, seed=seed).faults]
        assert len(struck) == 4 and struck[0] == struck[1] | struck[3] and not struck[2] & struck[0]
        chosen.add(tuple(map(tuple, struck)))
    assert len(chosen) > 5


def test_the_plan_holds_ordinary_faults_and_says_what_they_were_made_of(tmp_path: pathlib.Path) -> None:
    trace = "0,add,a\n0,add,b\n0,add,c\n0,add,d\n60000,remove,a\n60000,remove,b\n600000,remove,c\n900000,remove,d\n"
    plan = plan_of(tmp_path, trace, "{trace: t.csv, speed: 60x, window: [30s, 14m]}")
    assert [(fault.id, fault.when.after_ns, len(fault.nodes())) for fault in plan.faults] == [
        ("evict.1", 500_000_000, 1),
        ("evict.2", 9_500_000_000, 1),
    ]
    said = plan.scenario.traces["evict"]
    assert "t.csv (Bamboo, SHA-256 " in said and "from 30s to 14m: 3 nodes went at 2 moments" in said
    assert Plan.from_json(plan.to_json()) == plan


def test_one_fault_may_take_one_kind_of_event_or_the_first_rank_of_each_node(tmp_path: pathlib.Path) -> None:
    trace = "time,node,event\n0,a,hung\n1,b,evicted\n9,a,evicted\n"
    plan = plan_of(tmp_path, trace, "{trace: t.csv, only: evicted}")
    assert [fault.when.after_ns for fault in plan.faults] == [10**9, 9 * 10**9]
    fault = "faults: [{id: kill, fault: rank_kill, target: {rank: any}, when: WHEN}]\n"
    plan = plan_of(tmp_path, "time,node\n5,a\n5,b\n", "{trace: t.csv}", nodes=2, fault=fault)
    assert [target.rank for target in plan.faults[0].targets] == [0, 2]


@pytest.mark.parametrize(
    ("trace", "when", "told"),
    [
        (ONE, "{trace: u.csv}", "faults.0.when.trace: unknown trace 'u.csv'"),
        ("time\n2\n1\n", BARE, "t.csv:3: its time is before that of line 2"),
        (ONE, "{trace: t.csv, only: hung}", "t.csv has no event 'hung'; choose one of: failed"),
        (ONE, "{trace: t.csv, window: [1h, 2h]}", "t.csv: 0 moments in the window; 1 to 1,000 are replayed"),
        (ONE, "{trace: t.csv, window: [2h, 1h]}", "window: 2h to 1h is empty; write [from, to]"),
        (ONE, "{trace: t.csv, window: 1h}", "faults.0.when.window: '1h' is not allowed: it should be a list"),
        (ONE, "{trace: t.csv, speed: fast}", "'fast' is not a speed: write a number above 0 and x, like 60x"),
        (ONE, "{trace: t.csv, step: 5}", "step + trace is not a trigger"),
        (ONE, "{step: 5, speed: 60x}", "speed: belongs to trace:"),
        (ONE, "{step: 5, only: hung}", "only: belongs to trace:"),
        ("time\n" + "".join(f"{each}\n" for each in range(1001)), BARE, "1,001 moments in the window"),
        (ONE, f"{BARE}, target: {{node: 1}}", "target: the trace says how many, and the seed which ones: write any"),
        (
            "time,node\n1,a\n1,b\n",
            f"{BARE}}}\nlimits: {{nodes_at_once: 1",
            "acts on 2 nodes; limits: nodes_at_once is 1",
        ),
    ],
)
def test_what_cannot_be_replayed_is_told(tmp_path: pathlib.Path, trace: str, when: str, told: str) -> None:
    fault = FAULT.replace("target: {node: any}, ", "") if "target" in when else FAULT
    with pytest.raises(ScenarioError, match=re.escape(told)):
        plan_of(tmp_path, trace, when, fault=fault)


TRACES = pathlib.Path(__file__).resolve().parents[2] / "scenarios" / "traces"


def test_bamboo_s_trace_has_the_figures_that_are_known_of_it() -> None:
    trace = load_trace(TRACES / "bamboo-g4dn.csv")
    assert (trace.format, len(trace.happenings), trace.nodes) == ("Bamboo", 74, 24)
    assert len({each.at_s for each in trace.happenings}) == 48 and {each.event for each in trace.happenings} == {
        "evicted"
    }
    assert trace.node_days == pytest.approx(74 / 0.545 / 24, rel=0.01), "0.545 reclaims per node-hour"
    assert trace.happenings[0].at_s == 1440 - 480, "time begins with the first row"


def test_what_is_shipped_is_read_and_has_its_notice() -> None:
    for name in ("spot-afternoon", "two-weeks-of-failures"):
        trace = load_trace(TRACES / f"{name}.csv")
        assert (trace.format, trace.nodes, trace.node_days, trace.happenings[0].at_s) == ("CSV", 5, None, 0)
    notice = (TRACES / "NOTICE.md").read_text()
    assert "MIT License" in notice and "Copyright (c) 2022 UCLASystem" in notice
    assert all(f"`{path.name}`" in notice for path in TRACES.glob("*.csv"))


def test_skypilot_counts_nodes_and_times_have_a_zone_or_not() -> None:
    trace = parse_trace('{"metadata": {"gap_seconds": 60}, "data": [2, 3, 0, 1, 1]}', "t.json")
    assert [(each.at_s, each.node, each.event) for each in trace.happenings] == [(120.0, "", "evicted")] * 3
    assert trace.nodes == 3 and trace.node_days == pytest.approx(60 * (2 + 3 + 0 + 1) / 86_400)
    trace = parse_trace("time,node,event\n2026-03-02T04:12:09,a,x\n2026-03-02T04:12:19Z,b,x\n", "t.csv")
    assert [(each.at_s, each.node) for each in trace.happenings] == [(0.0, "a"), (10.0, "b")]


def test_infinitehbd_tells_when_a_node_went_however_many_faults_it_has() -> None:
    def row(day: float, node: str, kind: str) -> dict[str, object]:
        fault = {"Level": "Hardware Failure", "Class": "GPU", "Desc": "lost"}
        return {"node_id": node, "event_time": day, "event_type": f"fault_{kind}", "fault_type": fault}

    days = zip((1, 2, 3, 4, 5, 6), "aaabaa", ("start", "start", "end", "start", "end", "start"), strict=True)
    trace = parse_trace(json.dumps([row(*each) for each in days], indent=1), "t.json")
    assert [(each.at_s / 86_400, each.node, each.event) for each in trace.happenings] == [
        (at, node, "failed") for at, node in ((0, "a"), (3, "b"), (5, "a"))
    ]
    assert (trace.format, trace.nodes, trace.node_days) == ("InfiniteHBD", 2, None)


def test_columns_may_be_left_out_and_remarks_are_passed_over() -> None:
    trace = parse_trace("# mine\ntime\n3\n\n# more\n5\n5\n", "t.csv")
    assert [(each.at_s, each.node, each.event, each.line) for each in trace.happenings] == [
        (0, "", "failed", 3),
        (2, "", "failed", 6),
        (2, "", "failed", 7),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "t.csv:1: the first line must be time,node,event, or that of a trace of Bamboo, SkyPilot, InfiniteHBD"),
        ("a,b,c\n", "t.csv:1: the first line must be"),
        ("time,event\n", "t.csv:1: the first line must be time,node,event; node and event may be left out"),
        ("time,node,event\n", "no node goes in it"),
        ("time,node,event\nx,a,failed\n", "t.csv:2: time: 'x' is neither seconds nor a moment"),
        ("time,node,event\n# remark\n1,a\n", "t.csv:3: 2 columns"),
        ("time,node,event\n-1,a,failed\n", "t.csv:2: time: '-1' is not allowed: 0 to 1e+11 seconds"),
        ("time,node,event\nnan,a,failed\n", "t.csv:2: time: 'nan' is not allowed"),
        ("time,node,event\n1,,failed\n", "t.csv:2: node: '' is not allowed"),
        ("time,node,event\n1,a,failed\n2026-03-02T04:12:09Z,a,failed\n", "some times are seconds"),
        ("time\n5\n9\n7\n", "t.csv:4: its time is before that of line 3; rows must be in the order of time"),
        ("0,add,a\n9,add,b\n7,remove,a\n", "t.csv:3: its time is before that of line 2"),
        ("0,add,a\n9,remove,b\n", "t.csv:2: b is removed, but was not there"),
        ("0,add,a\n9,add,a\n", "t.csv:2: a is added, but was there"),
        ("0,add,a\n9,drop,a\n", "t.csv:2: '9,drop,a' is not allowed: write MS,add,NODE or MS,remove,NODE"),
        ("0,add,a\n1e9,remove,a\n", "t.csv:2: '1e9,remove,a' is not allowed"),
        ('{"metadata": {"gap_seconds": 0}, "data": [1, 0]}', "gap_seconds: 0 is not allowed: it should be greater"),
        ('{"metadata": {"gap_seconds": 1}, "data": [1, -1]}', "t.csv:1:46: data.1: -1 is not allowed"),
        ('{"metadata": {"gap_seconds": 1}, "data": [100000, 0, 100000, 0]}', "more than the 100,000 nodes"),
        ('{"data": [1, 0]}', "metadata: is missing"),
        ('[{"node_id": "a", "event_time": 1, "event_type": "begin"}]', "'fault_start' or 'fault_end'"),
        ("[\n1]", "t.csv:2:1: 0: 1 is not allowed"),
        ("[1", "not valid YAML"),
        (f"[{BEGUN % 2},\n{BEGUN % 1}]", "t.csv:2: its time is before that of line 1"),
    ],
)
def test_a_wrong_trace_is_refused_with_its_line(text: str, told: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(told)):
        parse_trace(text, "t.csv")


@given(st.sampled_from(["time,node,event\n", "time\n", "0,add,a\n", "{", "["]), st.text(max_size=300))
def test_any_text_is_a_trace_or_a_clear_error(begin: str, text: str) -> None:
    try:
        trace = parse_trace(begin + text, "t.csv")
    except ScenarioError as error:
        assert all(problem.startswith("t.csv") for problem in error.problems)
    else:
        assert trace.happenings


def test_a_trace_is_found_beside_its_file_or_in_the_folder_of_traces_there(tmp_path: pathlib.Path) -> None:
    (tmp_path / "traces").mkdir()
    for path in (tmp_path / "traces" / "a.csv", tmp_path / "b.csv", tmp_path / "traces" / "b.csv"):
        path.write_text("time\n1\n")
    assert find_trace("a.csv", tmp_path) == tmp_path / "traces" / "a.csv"
    assert find_trace("b.csv", tmp_path) == tmp_path / "b.csv"
    with pytest.raises(
        UsageError, match=r"unknown trace 'aa.csv': it is neither in .* nor in .*; did you mean a.csv\?"
    ):
        find_trace("aa.csv", tmp_path)
