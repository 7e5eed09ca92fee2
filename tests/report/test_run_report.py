"""The report as typed data: written, read back, and drawn again without the event log."""

import io
import json
import math
import pathlib
from dataclasses import replace
from typing import Any, get_args, get_origin

import msgspec
import numpy as np
import pytest
import report_runs
from hypothesis import given, settings
from hypothesis import strategies as st
from report_pages import CARDS
from rich.console import Console

import harness.report
from harness.cli.terminal import print_report
from harness.judge.score import Bound, Expectation, Scorecard
from harness.judge.verdict import Verdict
from harness.report import html_page, junit, markdown, run_report, view
from harness.report.run_report import Report, ReportError
from harness.report.strict_json import json_text, strict
from harness.timeline.timeline import FaultRecord

text = st.text(st.characters(codec="utf-8"), max_size=20)
number = st.floats(-1e30, 1e30)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | number | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {float: number, int: st.integers(-(2**63), 2**63), str: text, Any: anything}


def some(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that a field of the report has."""
    inner = [some(each) for each in get_args(kind) if each is not ...]
    if kind in PLAIN:
        return PLAIN[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return st.builds(kind, **{each.name: some(each.type) for each in msgspec.structs.fields(kind)})
    if get_origin(kind) is tuple:
        return st.lists(inner[0], max_size=2).map(tuple)
    if get_origin(kind) is dict:
        return st.dictionaries(text, inner[1], max_size=3)
    return st.one_of(inner) if inner else st.from_type(kind)


SCORES = {"recovery_time": run_report.RecoveryTime, "wasted_gpu_hours": run_report.WastedGpuHours}
typed = {name: some(kind).map(lambda value: strict(msgspec.to_builtins(value))) for name, kind in SCORES.items()}
scores = st.fixed_dictionaries({}, optional=typed | {"of_another_day": st.dictionaries(text, anything, max_size=3)})
PLAIN |= {dict[str, dict[str, Any]]: scores}
reports = some(Report).map(lambda report: msgspec.structs.replace(report, schema=run_report.SCHEMA))


@settings(deadline=None)
@given(reports)
def test_what_is_written_is_read_back(report: Report) -> None:
    assert Report.from_json(report.to_json()) == report
    assert Report.from_json(json.loads(json_text(report.to_json()))) == report


@settings(max_examples=40, deadline=None)
@given(reports)
def test_every_report_can_be_drawn(report: Report) -> None:
    assert html_page.render(report) and markdown.render(report) and junit.render(report)


@pytest.mark.parametrize("make", CARDS, ids=lambda make: make.__name__)
def test_a_stored_report_is_the_one_that_was_judged(make: Any, tmp_path: pathlib.Path) -> None:
    card: Scorecard = make()
    harness.report.write_reports(card, tmp_path)
    stored = run_report.read(tmp_path / "report.json")
    assert stored == run_report.from_scorecard(card)
    assert markdown.render(stored) == (tmp_path / "report.md").read_text()
    assert junit.render(stored) == (tmp_path / "junit.xml").read_text()
    assert html_page.render(stored, card.evidence) == (tmp_path / "report.html").read_text()


def test_without_the_log_the_page_has_all_but_the_charts() -> None:
    page = html_page.render(run_report.from_scorecard(report_runs.spot_evict()))
    assert "Progress stopped after step 90" in page and "chaos report" in page
    assert 'class="chart wide"' not in page


def test_an_unknown_key_is_ignored_and_a_missing_one_has_a_default() -> None:
    values = run_report.from_scorecard(report_runs.spot_evict()).to_json()
    del values["run"], values["title"]
    assert Report.from_json(values | {"of": "tomorrow"}).title == ""


@pytest.mark.parametrize(
    "spoil, named",
    [
        ({"schema": 99}, "schema 99"),
        ({"verdict": "green"}, "verdict"),
        ({"seed": "seven"}, "seed"),
        ({"expectations": [{"name": "x"}]}, "expectations[0]"),
        ({"scores": {"recovery_time": {"seconds": "soon"}}}, "seconds"),
    ],
)
def test_a_report_of_another_kind_is_refused_by_name(spoil: dict[str, Any], named: str) -> None:
    values = run_report.from_scorecard(report_runs.spot_evict()).to_json()
    with pytest.raises(ReportError, match=named.replace("[", r"\[")):
        Report.from_json(values | spoil)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"schema": NaN}', b"[" * 10**5, b'{"schema": 1}'])
def test_a_file_that_is_no_report_is_one_clear_error(content: bytes, tmp_path: pathlib.Path) -> None:
    (tmp_path / "report.json").write_bytes(content)
    with pytest.raises(ReportError):
        run_report.read(tmp_path / "report.json")


def test_numbers_stand_beside_the_texts() -> None:
    most = Bound("a.max", lambda value: f"{value} s", "s").line(3.0, 1.5)
    least = Bound("b.min", unit="%", least=True).line(90.0, None)
    card = replace(report_runs.spot_evict(), expectations=[most, least])
    first, second = run_report.from_scorecard(card).expectations
    assert (first.bound_value, first.observed_value, first.unit, first.share) == (3.0, 1.5, "s", 0.5)
    assert (second.bound_value, second.observed_value, second.unit, second.share) == (90.0, None, "%", None)


def test_how_much_of_a_bound_was_used_comes_from_the_numbers() -> None:
    card = report_runs.spot_evict()
    figures = {figure.name: figure for figure in view.figures(run_report.from_scorecard(card))}
    assert figures["Recovery time"].share == pytest.approx(3.04 / 60, rel=0.01)
    assert figures["Wasted by faults"].share == pytest.approx(12.6 / 25, rel=0.01)
    alone = replace(card, expectations=[Expectation("recovery_time.max", "3 s", "2 s", Verdict.PASS)])
    assert view.figures(run_report.from_scorecard(alone))[0].bound == "allowed 3 s"


def test_the_report_is_strict_json() -> None:
    values = {"a": np.float64(1.5), "b": (np.int64(2), math.nan), 3: math.inf, "c": None, "d": [True, "x\ud800"]}
    assert strict(values) == {"a": 1.5, "b": [2, None], "3": None, "c": None, "d": [True, "x?"]}
    assert type(strict(np.int64(2))) is int
    json.loads(json_text(strict(values)))


@pytest.mark.parametrize("character", ["\x1b", "\x9b", "\u202e", "\u2066", "\x07"])
def test_nothing_in_any_output_steers_who_reads_it(character: str, tmp_path: pathlib.Path) -> None:
    card, out = report_runs.hostile(), io.StringIO()
    card = replace(card, title=f"a{character}b", reasons=[f"a{character}b"], metrics={f"a{character}": f"b{character}"})
    for file in harness.report.write_reports(card, tmp_path).values():
        assert character not in file.read_text(), file.name
    assert json.loads((tmp_path / "report.json").read_text())["title"] == f"a{character}b", "the record itself is true"
    print_report(run_report.from_scorecard(card), None, Console(file=out, force_terminal=True, color_system=None))
    assert f"a{character}b" not in out.getvalue() and f"{character}[31m" not in out.getvalue()


def test_the_effect_shown_is_the_first_that_was_not_as_meant() -> None:
    card = report_runs.spot_evict()

    def shown(*ok: bool) -> run_report.Fault:
        told = tuple({"measured": n, "expected": 9, "unit": "x", "ok": good} for n, good in enumerate(ok))
        fault = FaultRecord("f", "kind", ({"node": "n"},), card.evidence.run.begin + 2 * 10**9, told, None, None, None)
        return run_report.from_scorecard(report_runs.with_run(card, faults=[fault])).faults[0]

    assert shown(True, False, False).effect.measured == 1
    assert shown(True, True).effect == run_report.Effect(measured=1, expected=9, unit="x")
    assert shown().effect == run_report.Effect()
    line = shown(True)
    assert (line.id, line.kind, line.target) == ("f", "kind", ({"node": "n"},))
    assert line.t_injected == 2.0 and not line.healed
