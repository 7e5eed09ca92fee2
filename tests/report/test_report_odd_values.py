"""No chart draws more than a picture holds, whatever values a log tells."""

import importlib
import itertools
import json
import math
import pathlib
import pkgutil
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import report_runs
from judge.test_forged import unpack

from harness.evidence.logs import load_evidence
from harness.forecast.choice_chart import bars_chart, choice_chart
from harness.gameday.throughput_chart import throughput_chart
from harness.gate.beside_chart import beside_chart
from harness.gate.trend_chart import Point, Step, trend_chart
from harness.judge.score import judge
from harness.report import charts, lanes, write_reports
from harness.report.charts import svg
from harness.report.charts.loss_curves import Curves, Series, loss_chart, step_time_chart
from harness.report.timeline_chart import recovery_chart, timeline_chart
from harness.timeline.timeline import Segment, Steps

pytestmark = pytest.mark.timeout(120)  # a hang guard: no check of the result breaks into a loop
ELEMENTS_MAX = 400  # of a chart of a few rows
ROOT = pathlib.Path(__file__).resolve().parents[2]
TIMES = (-3e8, 0.0, 1e-9, 1.0, 3e8 - 1e-6, 3e8)  # 3e8 s: as far apart as two times of a log can be
VALUES = (math.nan, math.inf, -math.inf, -1.7e308, 0.0, 5e-324, 1e-300, 1.0, 1.7e308)
FORGED = "B-kill-in-the-first-step"


def elements(drawn: Any) -> int:
    return str(drawn).count("<")


def a_cast(first: float, second: float, lasted: float) -> lanes.Cast:
    """Of a run from 0 on: one process and its one step, a fault, an outage, two phases and two checkpoints."""
    run = report_runs.spot_evict().evidence.run
    begin, end, over = (int(at * 1e9) for at in (first, second, lasted))
    steps = {each.name: getattr(run.steps, each.name)[:1] for each in fields(run.steps)}
    steps |= {"begin": np.array([begin]), "end": np.array([end]), "survives": np.array([True])}
    times: dict[str, Any] = {"started": begin, "rendezvous": begin, "restored": end, "exited": end}
    life = replace(run.processes[0], rank=int(steps["rank"][0]), exit_code=1, **times)
    phases = (Segment("startup", begin, end), Segment("running", end, over))
    outage = replace(run.episodes[0], t_stop=begin, t_first=end, t_regained=begin, segments=phases)
    saves = [{"event": "checkpoint.committed", "at": at, "step": 1} for at in (begin, end)]
    none = {each.name: getattr(run.progress, each.name)[:0] for each in fields(run.progress)}
    odd = replace(run, begin=0, end=over, steps=Steps(**steps), processes=[life], segments=phases, episodes=[outage])
    odd = replace(odd, checkpoints=saves, faults=[replace(run.faults[0], injected=begin, healed=end)])
    odd = replace(odd, progress=replace(run.progress, **none))
    return replace(lanes.choose(odd), total=2, usual_ns=abs(end - begin))


def casts() -> Iterator[lanes.Cast]:
    return (a_cast(*times) for times in itertools.product(TIMES, repeat=3))


def some_curves() -> Iterator[Curves]:
    step = np.array([1.0, 2.0, 1e9])
    for one, other in itertools.product(VALUES, repeat=2):
        loss, took = np.array([one, other, 1.0]), np.array([0.0, 1e-9, 3e8])
        apart = (step, np.nan_to_num(np.abs(loss), nan=math.inf, posinf=math.inf))
        yield Curves(Series(step, loss, took), Series(step, loss[::-1], took), apart, 10**9, [1], [(step, loss)])


def pairs(draw: Callable[[float, float], Any]) -> Iterator[Any]:
    return (draw(one, other) or "" for one, other in itertools.product(VALUES, repeat=2))


def trend(one: float, other: float) -> Any:
    points = [Point(value, "pass", "c", "d", "") for value in (one, other, None)]
    return trend_chart("Step time", points, [Step(1, "")], str, "")


def choices(one: float, other: float) -> str:
    tried, told = [(one, other), (other, one), (1.0, 2.0), (3.0, 4.0)], [("now", one), ("best", 3.0)]
    return max((str(choice_chart("Time", tried, told, (str, str), each)) for each in (False, True)), key=elements)


def throughputs() -> Iterator[Any]:
    for first, second, now in itertools.product(TIMES, repeat=3):
        yield throughput_chart(np.sort(np.array([first, second])), np.array([1.0, 2.0]), now)


CHARTS: dict[Callable[..., Any], Callable[[], Iterator[Any]]] = {
    timeline_chart: lambda: map(timeline_chart, casts()),
    recovery_chart: lambda: (recovery_chart(cast.run.episodes[0], cast) for cast in casts()),
    loss_chart: lambda: map(loss_chart, some_curves()),
    step_time_chart: lambda: map(step_time_chart, some_curves()),
    trend_chart: lambda: pairs(trend),
    beside_chart: lambda: pairs(lambda one, other: beside_chart("Parts", [("a", one, other)], str)),
    throughput_chart: throughputs,
    choice_chart: lambda: pairs(choices),
    bars_chart: lambda: pairs(lambda one, other: bars_chart("Parts", [("a", one), ("b", other)], str)),
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


def test_ticks_are_as_many_as_asked_for_and_a_time_axis_is_short() -> None:
    for low, high in itertools.product(VALUES, repeat=2):
        assert len(svg.round_ticks(low, high, 5)) <= 2 * 5
    for low, high in itertools.product(TIMES, repeat=2):
        assert elements(svg.time_axis(svg.Scale(low, high, 0.0, 1000.0), 0.0, 1.0, 110)) < ELEMENTS_MAX


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
