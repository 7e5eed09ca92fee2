"""Faults on a node in whole runs of a light trainer: each acts, is measured, is healed, and leaves nothing."""

import itertools
import pathlib
import signal
import subprocess
import sys
import textwrap
from typing import Any

import machine
import pytest
import small_jobs
from pydantic import ValidationError
from waiting import until

from harness.backends.local.backend import BACKEND
from harness.node import cgroups, gpu_health, leftovers, skew
from harness.plan.run_plan import Plan
from harness.run.job import execute

ROOT = pathlib.Path(__file__).resolve().parents[2]


def make_plan(fault: str, steps: int, at_step: int | None = 30, **parameters: Any) -> Plan:
    when = {"after_ns": 0} if at_step is None else {"step": at_step}
    struck = small_jobs.fault("f", fault, when, **parameters)
    return small_jobs.job("light", small_jobs.light(steps), struck, steps=steps)


def run(plan: Plan, folder: pathlib.Path) -> dict[str, list[dict[str, Any]]]:
    """The harness's events of the run by name; the job must have completed and nothing may be left."""
    outcome = execute(plan, folder / "run", BACKEND)
    found: dict[str, list[dict[str, Any]]] = {}
    for event in small_jobs.told(folder / "run"):
        found.setdefault(event["event"], []).append(event)
    assert outcome.outcome == "completed", outcome
    assert leftovers.leftovers(plan.run_id) == []
    assert cgroups.leftovers(plan.run_id) == []
    assert len(found["fault.injected"]) == len(found["fault.healed"]) == 1
    assert "fault.failed" not in found
    return found


CASES = [
    ("root", "hang", {"how": "freeze_rank", "duration": "300ms"}),
    ("plain", "hang", {"how": "freeze_node", "duration": "300ms"}),
    ("user", "hang", {"how": "stuck_in_collective", "duration": "300ms"}),
    ("plain", "hang", {"how": "stuck_in_save", "duration": "300ms"}),
    ("user", "hang", {"how": "freeze_launcher", "duration": "300ms"}),
    ("plain", "data_loader_stall", {"duration": "300ms"}),
    ("root", "oom", {"how": "kernel"}),
    ("plain", "oom", {}),
    ("root", "memory_pressure", {"how": "kernel", "duration": "100ms"}),
    ("user", "clock_skew", {"duration": "100ms"}),
    ("user", "clock_skew", {"duration": "100ms", "direction": "backward", "offset": "24h"}),
    ("user", "gpu_health", {"kind": "ecc", "duration": "100ms"}),
    ("plain", "gpu_health", {"kind": "lost", "duration": "100ms"}),
    ("root", "gpu_health", {"kind": "hang", "duration": "100ms"}),
    ("user", "gpu_health", {"kind": "thermal", "xid": 119, "duration": "100ms"}),
]


TOLD_ENDS = ("oom", "memory_pressure", "gpu_health")


@pytest.mark.parametrize(("mode", "fault", "parameters"), CASES, ids=lambda value: str(value))
def test_it_acts_is_measured_and_healed(
    mode: str, fault: str, parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    machine.use_mode(monkeypatch, mode)
    if reason := {"clock_skew": skew.why_not, "gpu_health": gpu_health.why_not}.get(fault, lambda: None)():
        pytest.skip(reason)
    steps = 400 if fault == "gpu_health" else 60
    events = run(make_plan(fault, steps, **parameters), tmp_path)
    assert [effect["ok"] for effect in events["fault.effect"]] == [True], events["fault.effect"]
    assert fault not in TOLD_ENDS or [end["ok"] for end in events["fault.ended"]] == [True], events["fault.ended"]
    kills = fault == "oom"
    assert len(events["started"]) == 1 + kills
    assert len(events["step"]) >= steps


def test_starts_fail_as_often_as_asked(plain: None, tmp_path: pathlib.Path) -> None:
    events = run(make_plan("start_failure", 40, at_step=None, times=2), tmp_path)
    assert [(e["measured"], e["ok"]) for e in events["fault.effect"]] == [(1, True), (2, True)]
    assert len(events["started"]) == 3


def test_a_rank_comes_late_to_the_first_rendezvous(plain: None, tmp_path: pathlib.Path) -> None:
    """It acts from when the rank sleeps, not from when that was asked for."""
    events = run(make_plan("hang", 20, at_step=None, how="late", duration="300ms"), tmp_path)
    (effect,), (reached,) = events["fault.effect"], events["failpoint"]
    assert effect["ok"] and effect["unit"] == "steps in 0.5 s inside rendezvous"
    assert reached["mono_ns"] <= events["fault.injected"][0]["mono_ns"]
    assert len(events["started"]) == 1 and len(events["step"]) == 20


@pytest.mark.parametrize("fails", ["crash", "loss"])
def test_a_lemon_strikes_each_new_life_of_its_node_as_often_as_asked(
    fails: str, plain: None, tmp_path: pathlib.Path
) -> None:
    plan = make_plan("lemon_node", 60, fails=fails, back_after="100ms", lives=3, unused_for="1s")
    outcome = execute(plan, tmp_path / "run", BACKEND)
    events = small_jobs.told(tmp_path / "run")
    assert outcome.outcome == "completed", outcome
    effects = [(each["measured"], each["ok"], each["detail"]) for each in small_jobs.named(events, "fault.effect")]
    assert effects == [(int(fails == "crash"), True, f"life {number} of node0") for number in (1, 2, 3)]
    struck = [each["targets"][0]["incarnation"] for each in small_jobs.named(events, "fault.injected")]
    assert struck == ([1, 1, 1] if fails == "crash" else [1, 2, 3])
    told = [each["event"] for each in events if each["event"] in ("fault.injected", "fault.healed", "fault.postponed")]
    assert told == ["fault.injected", *["fault.healed", "fault.postponed", "fault.injected"] * 2, "fault.healed"]
    assert len(small_jobs.named(events, "started")) == 4
    assert all(each["sticks"] for each in small_jobs.named(events, "fault.injected"))


def test_a_slow_lemon_is_slow_in_each_life_until_the_job_bears_it(plain: None, tmp_path: pathlib.Path) -> None:
    """This job lets no node go, so that the node is as fast as before after a while."""
    plan = make_plan("lemon_node", 100, fails="slow", factor=2, bears="500ms", lives=2, unused_for="1s")
    outcome = execute(plan, tmp_path / "run", BACKEND)
    events = small_jobs.told(tmp_path / "run")
    assert outcome.outcome == "completed", outcome
    (effect,) = small_jobs.named(events, "fault.effect")
    assert effect["unit"] == "of the time without a CPU" and effect["ok"] and effect["expected"] == 0.5
    assert len(small_jobs.named(events, "started")) == 1 and small_jobs.named(events, "fault.healed")


def test_an_update_starts_every_node_with_the_changed_command(plain: None, tmp_path: pathlib.Path) -> None:
    word = next(word for word in small_jobs.light(100) if word.endswith(".py"))
    (tmp_path / "next.py").write_text("import os; print('changed to', os.environ['WORD'], flush=True)")
    change: dict[str, Any] = {
        "env": {"WORD": "b"},
        "replace": {word: str(tmp_path / "next.py")},
        "replacement": {"after": "100ms"},
    }
    execute(make_plan("hot_update", 100, **change), tmp_path / "run", BACKEND)
    events = small_jobs.told(tmp_path / "run")
    assert (tmp_path / "run" / "logs" / "node0.2.log").read_text() == "changed to b\n"
    taken, started = small_jobs.named(events, "fault.effect")
    assert taken["ok"] and started["unit"] == "nodes started with the change" and started["expected"] == 1
    (injected,) = small_jobs.named(events, "fault.injected")
    assert injected["changes"] and "shows" not in injected


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"replace": {"old.py": "new.py"}}, "has no word 'old.py' that 'new.py' could take the place of"),
        ({}, "write args:, env: or replace:"),
    ],
)
def test_an_update_that_changes_nothing_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        make_plan("hot_update", 40, **change)


def test_a_worker_that_trains_on_wherever_it_is_told_to_be_was_not_misled(plain: None, tmp_path: pathlib.Path) -> None:
    events = run(make_plan("start_failure", 40, at_step=None, times=1, kind="wrong_world"), tmp_path)
    told, unmoved = events["fault.effect"]
    assert told["ok"] and told["detail"] == "rank 0 was told a wrong WORLD_SIZE"
    assert not unmoved["ok"] and unmoved["detail"] == "rank 0 was told a wrong WORLD_SIZE, and trains all the same"


@pytest.mark.parametrize(("mode", "how"), [("root", "quota"), ("plain", "auto"), ("root", "noisy_neighbour")])
def test_a_straggler_is_slower_while_it_lasts(
    mode: str, how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """What the machine does beside may spoil the accuracy, which the effect then says, or hide that it is slower."""
    machine.use_mode(monkeypatch, mode)
    tries = itertools.count()

    def slower() -> dict[str, Any] | None:
        plan = make_plan("straggler", 600, how=how, factor=2.5, duration="4s")
        (effect,) = run(plan, tmp_path / str(next(tries)))["fault.effect"]
        denied = effect["detail"].rpartition(", ")[2]
        if how != "noisy_neighbour" and denied.startswith(("0%", "1%")):
            assert not effect["ok"], "the machine slowed it, and not the fault"
            return None
        return effect if effect["measured"] > 1.4 else None

    effect = until(slower, "steps that take longer")
    assert effect["ok"] == (abs(effect["measured"] / 2.5 - 1) <= 0.25)


def test_a_straggler_that_strikes_too_early_says_so(plain: None, tmp_path: pathlib.Path) -> None:
    plan = make_plan("straggler", 20, at_step=3)
    execute(plan, tmp_path / "run", BACKEND)
    (failed,) = small_jobs.told(tmp_path / "run", "fault.failed")
    assert "a slowdown needs 10" in failed["error"]


HARNESS = textwrap.dedent("""
    import pathlib, sys
    sys.path[:0] = [sys.argv[1], sys.argv[1] + "/tests", sys.argv[1] + "/tests/faults"]
    from test_node_faults import BACKEND, execute, make_plan
    plan = make_plan(sys.argv[3], 100000, **eval(sys.argv[4]))
    print(plan.run_id, flush=True)
    execute(plan, pathlib.Path(sys.argv[2]), BACKEND)
""")


@pytest.mark.parametrize(
    ("fault", "parameters"),
    [
        ("straggler", {"how": "quota", "duration": "60s"}),
        ("straggler", {"how": "noisy_neighbour", "duration": "60s"}),
        ("memory_pressure", {"duration": "60s"}),
        ("lemon_node", {"lives": 100}),
        ("lemon_node", {"fails": "slow"}),
    ],
    ids=lambda value: str(value),
)
def test_sigkill_of_the_harness_in_the_middle_leaves_nothing(
    fault: str, parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    machine.use_mode(monkeypatch, "root")
    arguments = [sys.executable, "-c", HARNESS, str(ROOT), str(tmp_path / "run"), fault, repr(parameters)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, start_new_session=True) as victim:
        assert victim.stdout is not None
        run_id = victim.stdout.readline().decode().strip()
        log = tmp_path / "run" / "events" / "harness.jsonl"
        injected = lambda: log.exists() and b'"fault.injected"' in log.read_bytes()  # noqa: E731
        until(lambda: injected() or victim.poll() is not None, "the fault")
        assert victim.poll() is None, "the fault did not act"
        assert cgroups.leftovers(run_id) != []
        victim.send_signal(signal.SIGKILL)
    until(lambda: not leftovers.leftovers(run_id) and not cgroups.leftovers(run_id), "the end of the lab")
