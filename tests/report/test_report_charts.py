"""The arithmetic behind the charts."""

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import report_runs
from hypothesis import given
from hypothesis import strategies as st
from judging import bent
from simulator import Job, Logs, change, loss_at

from harness.evidence import losses
from harness.report import drawing, lanes, timeline_chart
from harness.report.charts import loss_curves, svg
from harness.timeline.timeline import FaultRecord
from harness.units import format_duration

finite = st.floats(0, 1e5, allow_nan=False)


@given(st.lists(st.tuples(finite, st.floats(0.001, 100)), min_size=1, max_size=50), st.integers(1, 60))
def test_progress_counts_each_step_once_however_it_is_cut(spans: list[tuple[float, float]], bins: int) -> None:
    begin = np.array([a for a, _ in spans])
    end = begin + np.array([length for _, length in spans])
    edges = np.linspace(begin.min() - 1, end.max() + 1, bins + 1)
    assert lanes.progress(begin, end, edges).sum() == pytest.approx(len(spans), rel=1e-6)


def test_progress_splits_a_step_over_the_bins_it_spans() -> None:
    done = lanes.progress(np.array([0.5]), np.array([2.5]), np.array([0.0, 1.0, 2.0, 3.0]))
    assert done == pytest.approx([0.25, 0.5, 0.25])


@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=3000), st.integers(1, 50))
def test_thinning_keeps_the_ends_and_the_extremes(values: list[float], buckets: int) -> None:
    y = np.array(values)
    x = np.arange(len(y), dtype=np.float64)
    few_x, few_y = svg.thin(x, y, buckets)
    assert len(few_x) <= max(5 * buckets, 4 * buckets)
    assert (few_x[0], few_x[-1]) == (x[0], x[-1])
    assert np.isnan(few_y).any() == np.isnan(y).any()
    if np.isfinite(y).any():
        assert np.nanmin(few_y) == np.nanmin(y)
        assert np.nanmax(few_y) == np.nanmax(y)


@given(st.floats(1e-6, 1e7), st.integers(1, 12))
def test_time_ticks_are_few_and_inside(span_s: float, count: int) -> None:
    ticks = svg.multiples(svg.time_step(span_s, count), 0, span_s)
    assert 1 <= len(ticks) <= count + 1
    assert ticks[0] == 0 and ticks[-1] <= span_s * 1.0001


@pytest.mark.parametrize(
    "seconds, step, words",
    [(0.2, 0.1, "0.2 s"), (15, 5, "15 s"), (120, 60, "2 min"), (5400, 1800, "1 h 30 min"), (0, 60, "0 s")],
)
def test_tick_labels_are_human(seconds: float, step: float, words: str) -> None:
    assert svg.time_label(seconds, step) == words


def test_the_difference_sees_one_rank_and_one_step_and_nans_that_are_not_equal() -> None:
    job = Job(steps=20)
    off = bent(job, lambda logs: change(logs.steps(7, 7, rank=1), loss=lambda line: line["loss"] + 0.5))
    steps, apart = losses.apart(off.steps, bent(job).steps)
    assert steps.tolist() == list(range(1, 21))
    assert apart[6] == pytest.approx(0.5)
    assert np.count_nonzero(apart) == 1
    clean, bad = bent(Job(steps=5)), bent(Job(steps=5), lambda logs: change(logs.steps(3, 3), loss="nan"))
    assert not losses.apart(bad.steps, bad.steps)[1].any()
    assert losses.apart(bad.steps, clean.steps)[1].tolist() == [0, 0, math.inf, 0, 0]


def test_lanes_are_in_rank_order_when_all_fit() -> None:
    cast = lanes.choose(report_runs.double_evict().evidence.run)
    assert [lane.rank for lane in cast.lanes] == [0, 1, 2, 3]
    assert cast.total == 4
    assert cast.usual_ns == pytest.approx(48e6, rel=0.2)
    assert [lane.targeted for lane in cast.lanes] == [True, True, False, False]


def test_markup_in_a_title_or_an_attribute_is_escaped() -> None:
    rect = '<rect x="0" y="0" width="1" height="1" class="x"><title>&lt;b&gt;</title></rect>'
    assert svg.rect(0, 0, 1, 1, "x", "<b>") == rect
    assert svg.tag("a", title='"><b>') == '<a title="&#34;&gt;&lt;b&gt;"></a>'


def test_the_curve_takes_the_lowest_rank_and_the_slowest_time() -> None:
    def higher(logs: Logs) -> None:
        change((*logs.steps(rank=1), *logs.steps(rank=2)), loss=lambda line: line["loss"] + 1)

    run = bent(Job(nodes=3, steps=3), higher)
    curve = drawing.line(losses.surviving(run.steps))
    assert curve.step.tolist() == [1, 2, 3]
    assert curve.loss.tolist() == [loss_at(step) for step in (1, 2, 3)]
    ends = [(run.steps.end - run.steps.begin)[run.steps.step == step].max() / 1e9 for step in (1, 2, 3)]
    assert curve.took_s.tolist() == ends


S = 10**9


@pytest.fixture
def fault() -> FaultRecord:
    """The only fault of a run, whose injection is known."""
    (found,) = report_runs.spot_evict().evidence.run.faults
    assert found.injected is not None
    return found


def drawn(*faults: FaultRecord, narrow: bool = False) -> str:
    run = replace(report_runs.spot_evict().evidence.run, faults=faults)
    return str(timeline_chart.timeline_chart(lanes.choose(run), narrow))


def test_a_fault_is_drawn_from_its_injection_until_it_is_undone(fault: FaultRecord) -> None:
    begin = fault.injected or 0
    slow = replace(fault, recovered=begin + S // 10, healed=begin + 15 * S)
    end = report_runs.spot_evict().evidence.run.end
    for one, until in ((slow, begin + 15 * S), (replace(slow, healed=None), end)):
        assert f"lasted {format_duration(until - begin)}" in drawn(one)
        assert ("was not undone" in drawn(one)) == (one.healed is None)


def test_the_bar_of_a_fault_is_as_long_as_the_fault_was(fault: FaultRecord) -> None:
    """Measured in the picture: from its injection until it was undone, as the log has them, on the axis of the chart."""
    begin, lasted_s = fault.injected or 0, [0.5, 3, 9]
    chart = drawn(*(replace(fault, id=f"f{s}", healed=begin + int(s * S)) for s in lasted_s))
    shown = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"[^>]* class="fault"', chart)
    bars = [tuple(map(float, bar)) for bar in shown]
    zero, five = (float(re.findall(rf'<text x="([\d.]+)"[^>]*>{at} s</text>', chart)[0]) for at in (0, 5))
    a_second, struck_s = (five - zero) / 5, (begin - report_runs.spot_evict().evidence.run.begin) / S
    assert [width / a_second for _, width in bars] == pytest.approx(lasted_s, abs=0.01)
    assert {round((left - zero) / a_second, 2) for left, _ in bars} == {round(struck_s, 2)}


@pytest.mark.parametrize("narrow", [False, True])
def test_labels_of_many_faults_with_long_names_stay_in_the_picture(narrow: bool, fault: FaultRecord) -> None:
    run, many = report_runs.spot_evict().evidence.run, 30
    struck = (run.begin + (run.end - run.begin) * place // many for place in range(many))
    faults = [replace(fault, id=f"{n:02}-{'x' * 57}", injected=at, healed=run.end) for n, at in enumerate(struck)]
    chart = drawn(*faults, narrow=narrow)
    width = float(re.findall(r'viewBox="0 0 ([\d.]+)', chart)[0])
    labels = re.findall(r'<text x="([\d.]+)"[^>]* class="fault-label" text-anchor="(\w+)">([^<]*)<', chart)
    assert len(labels) == many
    for at, anchor, words in labels:
        room = width - float(at) if anchor == "start" else float(at)
        assert len(words) * timeline_chart.BOLD <= room and words.endswith("…")


def test_a_logarithmic_axis_says_so() -> None:
    steps = np.arange(1.0, 9.0)
    for highest, told in ((2.0, False), (1000.0, True)):
        losses = np.linspace(highest, 1.0, 8)
        series = loss_curves.Series(steps, losses, losses)
        drawn = str(loss_curves.loss_chart(loss_curves.Curves(series, None, None, 8)))
        assert (">Loss, log scale<" in drawn) is told and (">Loss<" in drawn) is not told


@pytest.mark.parametrize(("first", "every"), [(1, 1), (5, 5), (201, 1), (205, 5)])
def test_a_chart_begins_with_its_first_step(first: int, every: int) -> None:
    """That of a rehearsal is a later one."""
    steps = np.arange(first, first + 90.0 * every, every)
    curves = loss_curves.Curves(loss_curves.Series(steps, 1 / steps, steps), None, None, int(steps[-1]))
    for drawn in (str(loss_curves.loss_chart(curves)), str(loss_curves.step_time_chart(curves))):
        line = re.findall(r'<(?:path|polyline) (?:d|points)="M?([\d.]+)[^>]*class="run"', drawn)
        assert len(line) == 1 and float(line[0]) < 80, "the axis begins at 64"


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({"workload": {"trainer": "reference"}}, "reference"),
        ({"workload": {"trainer": {"args": ["x"], "torchrun": "../train.py"}}}, "torchrun ../train.py"),
        ({"workload": {"trainer": {"command": ["python", "train.py"]}}}, "python train.py"),
        ({"workload": {"trainer": {"command": ["x" * 99]}}}, "x" * 59 + "…"),
        ({"workload": {"trainer": {"other": 1}}}, ""),
        ({"workload": [1]}, ""),
        ({}, ""),
    ],
)
def test_the_trainer_in_words(plan: dict[str, object], told: str) -> None:
    assert drawing.trainer(plan) == told


def test_the_bar_of_the_job_shows_where_it_stood_still_without_a_restart() -> None:
    run = report_runs.judged(report_runs.JOB, []).evidence.run
    assert "standstill" not in {each.phase for each in timeline_chart.job_phases(run)}
    row, late = len(run.progress) // 2, 8 * 10**9

    def later(times: Any) -> Any:
        return np.where(times >= run.progress.end[row], times + late, times)

    segments = [replace(each, end=int(later(each.end))) for each in run.segments if each.phase == "running"]
    hung = replace(run, segments=segments, end=run.end + late)
    hung = replace(hung, progress=replace(run.progress, end=later(run.progress.end)))
    before, stood, after = timeline_chart.job_phases(hung)
    assert [each.phase for each in (before, stood, after)] == ["running", "standstill", "running"]
    assert before.end == stood.begin and stood.end == after.begin
    assert stood.end - stood.begin == pytest.approx(8 * S, abs=S)
