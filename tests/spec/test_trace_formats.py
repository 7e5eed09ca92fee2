"""Traces as they were published: what each format tells, and that a wrong file is refused with its line."""

import json
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ScenarioError, UsageError
from harness.spec.traces import find_trace, load_trace, parse_trace

TRACES = pathlib.Path(__file__).resolve().parents[2] / "scenarios" / "traces"


def refused(text: str) -> str:
    with pytest.raises(ScenarioError) as raised:
        parse_trace(text, "t.csv")
    return str(raised.value)


def test_bamboo_s_trace_has_the_figures_that_are_known_of_it() -> None:
    trace = load_trace(TRACES / "bamboo-g4dn.csv")
    assert (trace.format, len(trace.happenings), trace.nodes) == ("Bamboo", 74, 24)
    assert len({each.at_s for each in trace.happenings}) == 48 and {each.event for each in trace.happenings} == {
        "evicted"
    }
    assert trace.node_days == pytest.approx(74 / 0.545 / 24, rel=0.01), "0.545 reclaims per node-hour"
    assert trace.happenings[0].at_s == 1440 - 480, "time begins with the first row"


@pytest.mark.parametrize(("name", "nodes"), [("spot-afternoon", 5), ("two-weeks-of-failures", 5)])
def test_the_other_shipped_traces_are_read(name: str, nodes: int) -> None:
    trace = load_trace(TRACES / f"{name}.csv")
    assert (trace.format, trace.nodes, trace.node_days, trace.happenings[0].at_s) == ("CSV", nodes, None, 0)


def test_what_is_shipped_has_its_notice() -> None:
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

    days = [
        (1, "a", "start"),
        (2, "a", "start"),
        (3, "a", "end"),
        (4, "b", "start"),
        (5, "a", "end"),
        (6, "a", "start"),
    ]
    trace = parse_trace(json.dumps([row(*each) for each in days], indent=1), "t.json")
    assert [(each.at_s / 86_400, each.node) for each in trace.happenings] == [(0, "a"), (3, "b"), (5, "a")]
    assert (trace.format, trace.nodes, trace.node_days) == ("InfiniteHBD", 2, None)
    assert {each.event for each in trace.happenings} == {"failed"}


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
    ],
)
def test_a_wrong_trace_is_refused_with_its_line(text: str, told: str) -> None:
    assert told in refused(text)


def test_an_unsorted_file_of_infinitehbd_is_refused_with_its_line() -> None:
    rows = [{"node_id": "a", "event_time": day, "event_type": "fault_start"} for day in (2, 1)]
    text = ",\n".join(map(json.dumps, rows))
    assert "t.csv:2: its time is before that of line 1" in refused(f"[{text}]")


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
