"""What a page is shown of a day from its first moment to its verdict."""

from __future__ import annotations

import pathlib
from types import SimpleNamespace
from typing import Any, cast

import light_day
import pytest

from harness.campaign.campaign_observers import Stage
from harness.gameday.day import Ended
from harness.gameday.day_command import Shown
from harness.gameday.day_plan import plan_day
from harness.gameday.day_view import DayView, for_role
from harness.gameday.starts_and_stops import Director
from harness.run.live import LiveProgress
from harness.run.observers import Status

ROOT = pathlib.Path(__file__).resolve().parents[2]
KILL = "{scenario: rank-kill, overrides: {faults: {kill: {when: {step: 5}, target: {rank: 0}}}}}"


def test_after_the_job_comes_the_verdict_with_the_path_of_the_report(tmp_path: pathlib.Path) -> None:
    path = light_day.write(tmp_path, f"  [{KILL}]", 300)
    director = Director(plan_day(path, 1, "local", "light-1", ROOT / "scenarios"))
    job = SimpleNamespace(progress=LiveProgress(), cluster=SimpleNamespace(nodes=[]), firings={})
    views = list[DayView]()
    shown = Shown(lambda view, feed: views.append(view))
    shown.stage_ended(Stage("fault-free run", 1), "cached")
    assert views == [], "nothing is known of the day yet"
    shown.watch(director, cast(Any, job), 0)
    shown.stage_ended(Stage("run with faults", 1), "completed")
    result = SimpleNamespace(verdict=SimpleNamespace(value="fail"), reasons=["rank-kill: too slow"])
    shown.day_judged(Ended(tmp_path, cast(Any, result)))
    assert [(view.job_over, view.verdict) for view in views] == [(False, ""), (True, ""), (True, "fail")]
    assert views[-1].report == str(tmp_path / "report.html")
    assert views[-1].saying == "The day is over: fail. rank-kill: too slow"


def test_before_the_day_the_page_shows_the_plan_and_the_run_without_a_fault(tmp_path: pathlib.Path) -> None:
    path = light_day.write(tmp_path, f"  [{KILL}]", 300)
    director = Director(plan_day(path, 1, "local", "light-1", ROOT / "scenarios"))
    views = list[DayView]()
    shown = Shown(lambda view, feed: views.append(view), "", director)
    shown.status(Status("free-1", 2.0, "training", 40, 300, 1.5, (), ()))
    assert views[0].saying == "First the same job runs without a fault: step 40 of 300. The day begins after it."
    assert (views[0].state, views[0].step, [scene.state for scene in views[0].scenes]) == ("preparing", 40, ["next"])
    hidden = for_role(views[0], "participant", [])
    assert hidden.state == "preparing" and not hidden.scenes and hidden.title == "Game day"
    shown.watch(
        director, cast(Any, SimpleNamespace(progress=LiveProgress(), cluster=SimpleNamespace(nodes=[]), firings={})), 0
    )
    shown.status(Status("day-1", 3.0, "training", 1, 300, 1.5, (), ()))
    assert [view.state for view in views] == ["preparing", "steadying"], "the day shows itself"


def test_the_terminal_tells_once_that_a_pause_waits_for_a_press(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = light_day.write(tmp_path, f"  [{{pause: Is everybody there?}}, {{pause: Still there?}}, {KILL}]", 300)
    director = Director(plan_day(path, 1, "local", "light-1", ROOT / "scenarios"))
    job = SimpleNamespace(progress=LiveProgress(), cluster=SimpleNamespace(nodes=[]), firings={})
    shown = Shown(lambda view, feed: None, "http://127.0.0.1:1/?token=t")
    for director.state, director.scene in (("steadying", 0), ("paused", 0), ("paused", 0), ("paused", 1)):
        shown.watch(director, cast(Any, job), 0)
    waits = "  waiting for a person to press Continue: http://127.0.0.1:1/?token=t"
    told = ["  pause: Is everybody there?", waits, "  pause: Still there?", waits]
    assert capsys.readouterr().out.splitlines() == told
