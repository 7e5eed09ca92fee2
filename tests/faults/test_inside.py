"""Faults inside a trainer's process, in whole runs of a light trainer: they strike one rank, once, and are measured."""

import json
import pathlib
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from faults.test_node_faults import make_plan
from small_jobs import named, told
from waiting import until

from harness.backends.local.backend import BACKEND
from harness.errors import FaultError, ScenarioError
from harness.faults import memory_leak
from harness.node.emitter import memory, strikes
from harness.run.job import execute
from harness.spec.scenario import parse_scenario

pytestmark = pytest.mark.usefixtures("plain")


def run(tmp_path: pathlib.Path, fault: str, **parameters: Any) -> list[dict[str, Any]]:
    outcome = execute(make_plan(fault, 80, **parameters), tmp_path / "run", BACKEND)
    assert outcome.outcome == "completed", outcome.reason
    return told(tmp_path / "run")


def output(tmp_path: pathlib.Path) -> str:
    return "".join(path.read_text() for path in (tmp_path / "run" / "logs").glob("*.log"))


def test_an_exception_ends_the_process_and_the_launcher_starts_another(tmp_path: pathlib.Path) -> None:
    events = run(tmp_path, "process_exception", text="index out of range")
    (effect,) = named(events, "fault.effect")
    assert effect["ok"] and effect["measured"] == 1 and effect["detail"] == "1 ended"
    assert len(named(events, "started")) == 2 and named(events, "fault.healed")
    assert [end["ok"] for end in named(events, "fault.ended")] == [True]
    assert "InjectedError: index out of range" in output(tmp_path)


def test_a_held_interpreter_stops_every_thread_and_the_process_lives_on(tmp_path: pathlib.Path) -> None:
    events = run(tmp_path, "gil_hold", duration="1s")
    (effect,) = named(events, "fault.effect")
    assert effect["ok"] and effect["measured"] >= 0.9 and effect["expected"] == 1.0
    (over,) = [event for event in named(events, "failpoint") if event["name"] == "interpreter_let_go"]
    assert over["stood_still_s"] >= 0.9
    assert [end["ok"] for end in named(events, "fault.ended")] == [True]
    assert len(named(events, "started")) == 1


def test_code_that_guards_its_telemetry_does_not_swallow_the_exception() -> None:
    program = """
        import time
        guard = '''
        import time
        from harness.node.emitter import strikes
        def told():
            try:
                strikes.strike("raise", "a text", lambda record: 0)
                time.sleep(0.05)
            except BaseException:
                print("swallowed")
        '''
        space = {"__name__": "harness.node.observer.watch"}
        exec(guard, space)
        space["told"]()
        for _ in range(6000):
            time.sleep(0.01)
        print("lived")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == "" and "InjectedError: a text" in done.stderr


OWN = """
def inject(context):
    context.log(f"after step {context.step}")
    return context.rank
"""


@pytest.mark.parametrize(
    ("source", "ok", "detail", "lives"),
    [
        (OWN, True, "it returned", 1),
        ("def inject(context):\n    raise KeyError('mine')\n", False, "raised an error, see its output", 1),
        ("import os\n\ndef inject(context):\n    os._exit(7)\n", True, "the process ended in it", 2),
    ],
)
def test_own_code_runs_in_the_rank_after_its_step(
    source: str, ok: bool, detail: str, lives: int, tmp_path: pathlib.Path
) -> None:
    """It may end the process; if it raises it has not acted, and harms nobody."""
    events = run(tmp_path, "own_code", source=source)
    (effect,) = named(events, "fault.effect")
    assert (effect["ok"], effect["detail"]) == (ok, f"rank 0: {detail}")
    assert len(named(events, "started")) == lives
    if source == OWN:
        said = {event["name"]: str(event.get("text")) for event in named(events, "failpoint")}
        assert said["own_code_returned"] == "0" and said["own_code_says"].startswith("after step 3")
    assert ok or "KeyError: 'mine'" in output(tmp_path)


@pytest.mark.parametrize(
    "written, message",
    [
        ({"file": "mine.py"}, None),
        ({"file": "gone.py"}, "no file .*gone.py; paths start at the folder of the scenario"),
        ({"file": "bad.py"}, "not valid Python"),
        ({"file": "other.py"}, "it needs def inject"),
        ({"file": "large.py"}, "more than 65536 characters"),
        ({"source": "def inject(): ..."}, "it needs def inject"),
        ({}, "write file: with a Python file"),
    ],
)
def test_a_plan_holds_the_code_of_the_file_and_what_is_none_is_refused_before_the_run(
    written: dict[str, str], message: str | None, tmp_path: pathlib.Path
) -> None:
    texts = {"mine": OWN, "bad": "def inject(", "other": "def injekt(context): ...", "large": "#" * 70_000}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    fault = {"id": "f", "fault": "own_code", "when": {"step": 5}, "target": {"rank": 0}, **written}
    scenario = json.dumps({"version": 1, "name": "x", "title": "X", "faults": [fault]}), str(tmp_path / "x.yaml")
    if message is None:
        assert parse_scenario(*scenario).faults[0].action.model_dump()["source"] == OWN
        return
    with pytest.raises(ScenarioError, match=message):
        parse_scenario(*scenario)


def test_a_launcher_dies_alone_and_its_worker_lives_on_until_the_node_is_taken(tmp_path: pathlib.Path) -> None:
    events = run(tmp_path, "agent_loss", orphans_for="200ms", replacement={"after": "100ms"})
    killed, taken = named(events, "fault.effect")
    assert (
        killed["ok"] and killed["unit"] == "launchers gone" and killed["detail"] == "node0: 1 of its 1 workers live on"
    )
    assert taken["ok"] and taken["measured"] == 0
    assert len(named(events, "started")) == 2


def test_a_leak_takes_real_memory_and_gives_it_back() -> None:
    over, before = threading.Event(), memory.resident_bytes()
    told: list[dict[str, Any]] = []
    strikes.strike(
        "leak", f"{400 * 2**20} {64 * 2**20}", lambda record: len(told.append(record) or told), over=over.is_set
    )
    assert [each["name"] for each in told] == [strikes.LEAKING]
    until(lambda: memory.resident_bytes() - before >= 60 * 2**20, "the leak")
    time.sleep(0.2)
    assert memory.resident_bytes() - before < 80 * 2**20, "no more than it was told"
    over.set()
    until(lambda: memory.resident_bytes() - before < 20 * 2**20, "the memory to be given back")


def test_a_leak_counts_by_the_most_that_its_process_took_before_it_left() -> None:
    uses = [10, 40, 35]
    node: Any = SimpleNamespace(pids=lambda: [7] if uses else [])
    node.memory_use = lambda: SimpleNamespace(used_bytes=100 + uses.pop(0))
    context: Any = SimpleNamespace(wait=lambda _, until: any(until() for _ in range(9)))
    assert memory_leak.MemoryLeak()._grown(node, 7, 100, 48, context) == (40, True)


def test_a_leak_leaves_enough_to_others() -> None:
    with pytest.raises(FaultError, match=r"make `room` smaller, so that 1024 MiB are left"):
        memory_leak._spare_this_machine(2**50)
    memory_leak._spare_this_machine(0)


def test_after_a_cuda_error_each_call_of_the_training_thread_fails_with_its_words() -> None:
    program = """
        import threading, torch
        from harness.node.emitter import strikes
        told, other = [], []
        weight = torch.ones(3, requires_grad=True)
        strikes.strike("break_device", "ecc", told.append)
        assert not told, "nothing has been called yet"
        for call in (lambda: weight * 2, lambda: torch.zeros(2), lambda: weight.add(1)):
            try:
                call()
            except RuntimeError as error:
                assert str(error).startswith("CUDA error: uncorrectable ECC error encountered\\n"), error
                assert type(error).__name__ in ("AcceleratorError", "RuntimeError")
            else:
                raise AssertionError("it works")
        thread = threading.Thread(target=lambda: other.append(float(torch.ones(2).sum())))
        thread.start(); thread.join()
        assert other == [2.0], "another thread of a CPU goes on"
        (failpoint,) = told
        assert failpoint["name"] == "device_call_failed" and not failpoint["real"]
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=300)
