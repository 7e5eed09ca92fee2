"""The terminal as an observer: it shows what happens, and what a trainer says steers nothing."""

import io

import pytest
from rich.console import Console

from harness.campaign.campaign_observers import Stage
from harness.cli.display import Display
from harness.run.observers import FaultStatus, Status


def status(phase: str = "training", *faults: FaultStatus) -> Status:
    return Status("r", 1.5, phase, 7, 60, 2.5, ["short"], faults)


def test_a_pipe_gets_a_line_for_each_change_of_a_fault() -> None:
    first, second = FaultStatus("kill", "injected"), FaultStatus("kill", "healed")
    out = io.StringIO()
    with Display(Console(file=out, width=100)) as display:
        display.stage(Stage("fault-free run", 2))
        display.stage_ended(Stage("fault-free run", 2), "cached")
        display.stage(Stage("fault-free run", 2, again=True))
        display.stage(Stage("run with faults", 2))
        other = FaultStatus("evict", "injected")
        for each in (status(), status("x", first), status("x", first), status("x", second), status("x", second, other)):
            display.status(each)
    assert out.getvalue().splitlines() == [
        "fault-free run, 2 nodes",
        "  cached",
        "fault-free run, 2 nodes once more: the first one had another pace",
        "run with faults, 2 nodes",
        "     1.5 s  step 7: kill is injected",
        "     1.5 s  step 7: kill is over",
        "     1.5 s  step 7: evict is injected",
    ]


@pytest.mark.parametrize("phase", ["[/red]", "[bold", "a\x1b[2Jb", "[link=x]"])
def test_a_phase_with_markup_or_escapes_is_shown_as_it_is(phase: str) -> None:
    out = io.StringIO()
    with Display(Console(file=out, force_terminal=True, width=100, _environ={"TERM": "xterm"})) as display:
        display.stage(Stage("run with faults", 2))
        display._shown_at = 0.0
        display.status(status(phase))
        display.stage_ended(Stage("run with faults", 2), "completed")
    assert "\x1b[2J" not in out.getvalue() and "step 7 of 60" in out.getvalue()


def test_a_pipe_learns_now_and_then_how_far_the_job_is_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    out, now = io.StringIO(), 0.0
    monkeypatch.setattr("harness.cli.display.time.monotonic", lambda: now)
    with Display(Console(file=out, width=100)) as display:
        display.stage(Stage("fault-free run", 2))
        for now, step in ((5.0, 0), (10.0, 10), (20.0, 20), (35.0, 30), (40.0, 40), (70.0, 70), (102.0, 102)):
            display.status(Status("r", now, "training", step, 100, None, [], []))
        now = 140.0
        display.status(Status("r", now, "rendezvous", 0, 100, None, [], []))
        display.starts_again("restore drill", 12.4)
    assert out.getvalue().splitlines() == [
        "fault-free run, 2 nodes",
        "    35.0 s  step 30 of 100, about 88 s left",
        "    70.0 s  step 70 of 100, about 30 s left",
        "   102.0 s  step 102, beyond the 100 planned",
        "   140.0 s  restarting after step 102, beyond the 100 planned · workers are meeting",
        "  restore drill, about 12 s",
    ]
