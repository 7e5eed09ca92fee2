"""No chart draws more than a picture holds, whatever values a log tells."""

import importlib
import itertools
import json
import math
import pathlib
import pkgutil
import shutil
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from judge.test_forged import unpack

from harness.forecast.choice_chart import bars_chart, choice_chart
from harness.gameday.throughput_chart import throughput_chart
from harness.gate.beside_chart import beside_chart
from harness.gate.trend_chart import Point, Step, trend_chart
from harness.judge.facts.evidence import load_evidence
from harness.judge.score import judge
from harness.report import charts, write_reports
from harness.report.charts import gantt, lanes, svg
from harness.report.charts.loss_curves import Curves, RolledBack, Series, loss_chart, step_time_chart

ELEMENTS_MAX = 400  # of a chart of a few rows
ROOT = pathlib.Path(__file__).resolve().parents[2]
DRAWN_WITHIN_S = 20
TIMES = (-3e8, 0.0, 1e-9, 1.0, 3e8 - 1e-6, 3e8)  # 3e8 s: as far apart as two times of a log can be
VALUES = (math.nan, math.inf, -math.inf, -1.7e308, 0.0, 5e-324, 1e-300, 1.0, 1.7e308)
FORGED = "B-kill-in-the-first-step"


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """A hang guard: it breaks into a loop, which no check of the result could."""

    def too_late(*_: object) -> None:
        raise TimeoutError(f"still drawing after {DRAWN_WITHIN_S} s")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(DRAWN_WITHIN_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def elements(drawn: Any) -> int:
    return str(drawn).count("<")


def a_cast(begin: float, end: float) -> lanes.Cast:
    columns = np.array([begin]), np.array([end])
    life = lanes.WorkerBar("Rank 0", "", "node0", 1, begin, begin, end, end, 1, True)
    first, last = (np.array([min(max(int(t * 1e9), -(2**62)), 2**62)]) for t in (begin, end))
    lane = lanes.Lane(0, [life], True, "", "", *columns, np.array([1]), np.array([1.0]), np.array([True]))
    return lanes.Cast([lane], 2, abs(end - begin), lanes.AllSteps(first, last, np.array([True]), 0))


def a_chronicle(first: float, second: float, lasted: float) -> tuple[gantt.Chronicle, gantt.Recovery]:
    phases = [gantt.Phase("startup", "start-up", first, second), gantt.Phase("running", "running", second, lasted)]
    fault = gantt.Fault("kill", "rank_kill", first, second, "")
    recovery = gantt.Recovery(first, second, first, second, ["kill"], phases)
    marks = [gantt.CheckpointMark(at, 1, "committed") for at in (first, second)]
    return gantt.Chronicle(lasted, phases, [fault], marks, [recovery]), recovery


def timelines() -> Iterator[Any]:
    for first, second, lasted in itertools.product(TIMES, repeat=3):
        yield gantt.timeline_chart(a_chronicle(first, second, lasted)[0], a_cast(first, second))


def recoveries() -> Iterator[Any]:
    for first, second, lasted in itertools.product(TIMES, repeat=3):
        yield gantt.recovery_chart(*a_chronicle(first, second, lasted), a_cast(first, second))


def some_curves() -> Iterator[Curves]:
    step = np.array([1.0, 2.0, 1e9])
    for one, other in itertools.product(VALUES, repeat=2):
        loss, took = np.array([one, other, 1.0]), np.array([0.0, 1e-9, 3e8])
        apart = (step, np.nan_to_num(np.abs(loss), nan=math.inf, posinf=math.inf))
        yield Curves(
            Series(step, loss, took), Series(step, loss[::-1], took), apart, 10**9, [1], [RolledBack(step, loss)]
        )


def trends() -> Iterator[Any]:
    for one, other in itertools.product(VALUES, repeat=2):
        points = [Point(value, "pass", "c", "d", "") for value in (one, other, None)]
        yield trend_chart("Step time", points, [Step(1, "")], str, "")


def besides() -> Iterator[Any]:
    return (beside_chart("Parts", [("a", one, other)], str) for one, other in itertools.product(VALUES, repeat=2))


def throughputs() -> Iterator[Any]:
    for first, second, now in itertools.product(TIMES, repeat=3):
        yield throughput_chart(np.sort(np.array([first, second])), np.array([1.0, 2.0]), now)


def choices() -> Iterator[Any]:
    for one, other in itertools.product(VALUES, repeat=2):
        for logarithmic in (False, True):
            tried = [(one, other), (other, one), (1.0, 2.0), (3.0, 4.0)]
            yield choice_chart("Time", tried, [("now", one), ("best", 3.0)], (str, str), logarithmic) or ""


CHARTS: dict[Callable[..., Any], Callable[[], Iterator[Any]]] = {
    gantt.timeline_chart: timelines,
    gantt.recovery_chart: recoveries,
    loss_chart: lambda: map(loss_chart, some_curves()),
    step_time_chart: lambda: map(step_time_chart, some_curves()),
    trend_chart: trends,
    beside_chart: besides,
    throughput_chart: throughputs,
    choice_chart: choices,
    bars_chart: lambda: (
        bars_chart("Parts", [("a", one), ("b", other)], str) or "" for one, other in itertools.product(VALUES, repeat=2)
    ),
}


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.__name__)
def test_odd_values_are_drawn_with_few_elements(chart: Callable[..., Any]) -> None:
    assert max(map(elements, CHARTS[chart]())) < ELEMENTS_MAX


def test_every_chart_is_drawn_with_odd_values() -> None:
    names = [f"{charts.__name__}.{each.name}" for each in pkgutil.iter_modules(charts.__path__)]
    files = [path.relative_to(ROOT).with_suffix("") for path in ROOT.glob("harness/*/*_chart.py")]
    modules = [importlib.import_module(name) for name in [*names, *(".".join(file.parts) for file in files)]]
    found = {made for module in modules for name, made in vars(module).items() if name.endswith("_chart")}
    assert found == set(CHARTS)


def test_ticks_are_as_many_as_asked_for_and_a_time_axis_is_short_wherever_its_origin_is() -> None:
    for low, high in itertools.product(VALUES, repeat=2):
        assert len(svg.round_ticks(low, high, 5)) <= 2 * 5
    for low, high, origin in itertools.product(TIMES, repeat=3):
        assert elements(svg.time_axis(svg.Scale(low, high, 0.0, 1000.0), 0.0, 1.0, origin)) < ELEMENTS_MAX


@pytest.mark.parametrize("later_ns", [-(10**18), 365 * 86400 * 10**9], ids=["at-zero", "a-year-later"])
def test_a_log_with_one_odd_time_is_judged_and_drawn(later_ns: int, tmp_path: pathlib.Path) -> None:
    """Each event of the harness in turn has a time that is allowed and makes no sense."""
    stored = unpack(tmp_path) / FORGED
    lines = (stored / "events" / "harness.jsonl").read_text().splitlines()
    for place in range(1, len(lines)):
        run_dir = tmp_path / f"odd-{place}"
        shutil.copytree(stored, run_dir)
        event = json.loads(lines[place])
        odd = json.dumps(event | {"mono_ns": max(0, event["mono_ns"] + later_ns)})
        text = "\n".join([*lines[:place], odd, *lines[place + 1 :]])
        (run_dir / "events" / "harness.jsonl").write_text(text + "\n")
        card = judge(load_evidence(run_dir), run_dir.name)
        assert (write_reports(card, run_dir)["report.html"]).stat().st_size < 2**20, lines[place]
