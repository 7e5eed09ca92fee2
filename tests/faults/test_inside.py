"""Faults inside a trainer's process, in whole runs of a light trainer: they strike one rank, once, and are measured."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from faults.test_node_faults import make_plan

from harness.backends.local.backend import BACKEND
from harness.log.events import read_log
from harness.run.job import execute


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_LOCAL_MODE", "plain")


def run(tmp_path: pathlib.Path, fault: str, **parameters: Any) -> list[dict[str, Any]]:
    outcome = execute(make_plan(fault, 80, **parameters), tmp_path / "run", BACKEND)
    assert outcome.outcome == "completed", outcome.reason
    return [event for log in read_log(tmp_path / "run" / "events") for event in log.events]


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == name]


def test_an_exception_ends_the_process_and_the_launcher_starts_another(tmp_path: pathlib.Path) -> None:
    events = run(tmp_path, "process_exception", text="index out of range")
    (effect,) = named(events, "fault.effect")
    assert effect["ok"] and effect["measured"] == 1 and effect["detail"] == "1 ended"
    assert len(named(events, "started")) == 2 and named(events, "fault.healed")
    logs = "".join(path.read_text() for path in (tmp_path / "run" / "logs").glob("*.log"))
    assert "InjectedError: index out of range" in logs


def test_a_held_interpreter_stops_every_thread_and_the_process_lives_on(tmp_path: pathlib.Path) -> None:
    events = run(tmp_path, "gil_hold", duration="1s")
    (effect,) = named(events, "fault.effect")
    assert effect["ok"] and effect["measured"] >= 0.9 and effect["expected"] == 1.0
    (over,) = [event for event in named(events, "failpoint") if event["name"] == "interpreter_let_go"]
    assert over["stood_still_s"] >= 0.9
    assert len(named(events, "started")) == 1


def test_code_that_guards_its_telemetry_does_not_swallow_the_exception() -> None:
    program = """
        import time
        guard = '''
        import time
        from harness.emitter import strikes
        def told():
            try:
                strikes.strike("raise", "a text", lambda record: 0)
                time.sleep(0.05)
            except BaseException:
                print("swallowed")
        '''
        space = {"__name__": "harness.observer.watch"}
        exec(guard, space)
        space["told"]()
        for _ in range(200):
            time.sleep(0.01)
        print("lived")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == "" and "InjectedError: a text" in done.stderr
