"""The parts of node faults that decide: the controller of a slowdown, turns of a duty cycle, crashes and holds."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from event_files import read_log
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from waiting import HANG_S, until

from harness.backends import run_folder
from harness.backends.contract import Verb
from harness.errors import FaultError
from harness.faults.contract import build_fault
from harness.faults.straggler import BASELINE_STEPS_MIN, EXTRA_MAX, EXTRA_MIN, GAIN, baseline_ns, corrected
from harness.log import untrusted_files
from harness.node import compiling, skew, throttle
from harness.plan.run_plan import PlannedFault, When
from harness.run.live_progress import LiveProgress
from harness.run.trigger_holds import TriggerHolds


@given(
    factor=st.floats(1.2, 8),
    own=st.floats(0.3, 3),
    fixed=st.floats(0, 0.3),
    noise=st.lists(st.floats(-0.03, 0.03), min_size=20, max_size=20),
)
def test_the_controller_comes_within_a_tenth_of_what_was_asked(
    factor: float, own: float, fixed: float, noise: list[float]
) -> None:
    """Whatever a brake does to the step time, so long as more of it slows more: twice or a third of what it says,
    beside a part of the step that is slowed from the start."""
    if fixed > (factor - 1) / 2:
        return  # more than half of the slowdown is not the controller's to give

    def ratio(extra: float) -> float:
        return 1 + fixed + own * extra

    extra = factor - 1
    for each in noise:
        extra = corrected(extra, factor, ratio(extra) * (1 + each), GAIN)
    assert abs(ratio(extra) / factor - 1) < 0.1


@given(st.floats(EXTRA_MIN, EXTRA_MAX), st.floats(1.06, 20), st.floats(0, 1000), st.floats(0.1, 1))
def test_a_correction_is_bounded_and_goes_the_right_way(extra: float, factor: float, ratio: float, gain: float) -> None:
    better = corrected(extra, factor, ratio, gain)
    assert EXTRA_MIN <= better <= EXTRA_MAX
    assert better >= extra if ratio < factor else better <= extra


def test_the_baseline_forgets_hiccups_and_needs_steps() -> None:
    usual = [100] * 30
    assert baseline_ns([*usual, 10_000]) == 100
    assert baseline_ns([999] * 500 + [100] * 60) == 100
    with pytest.raises(FaultError, match="9 steps"):
        baseline_ns(usual[: BASELINE_STEPS_MIN - 1])


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_duty_cycle_keeps_its_share_and_ends_running(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now, sent = [100.0], list[int]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    duty = throttle.DutyCycle(sent.append)
    assert duty.tick() is None
    duty.set_share(share)
    while now[0] < 110:
        pause = duty.tick()
        assert pause is not None
        now[0] += pause
    assert duty.stopped_ns / 1e9 == pytest.approx((1 - share) * 10, abs=throttle.PERIOD_S)
    assert sent == [signal.SIGSTOP, signal.SIGCONT] * (len(sent) // 2) + sent[len(sent) // 2 * 2 :]
    duty.set_share(1.0)
    assert sent[-1] == signal.SIGCONT
    assert duty.tick() is None


def planned(fault: str, **parameters: object) -> PlannedFault:
    targets = ({"node_index": 0, "rank": 0},)
    built = build_fault(fault, parameters)
    return PlannedFault(id="f", fault=fault, parameters=built, when=When(after_ns=0), targets=targets)


EMIT = """
import sys; sys.path.insert(0, sys.argv[1])
from harness.node.emitter import Emitter
emit = Emitter.open("trainer", rank=int(sys.argv[2]), local_rank=0, world_size=2)
emit("started")
emit.failpoint("all_reduce")
emit("step", step=1)
"""


def start_worker(
    run_dir: pathlib.Path, holds: TriggerHolds, rank: int, program: str = EMIT, **variables: str
) -> subprocess.Popen[bytes]:
    env = run_folder.environment(str(run_dir), "node0") | holds.environment | {"PATH": os.environ["PATH"]}
    untrusted_files.make_folder(run_dir, run_folder.answers_of("node0"))
    command = [sys.executable, "-S", "-c", program, str(pathlib.Path(throttle.__file__).parents[3]), str(rank)]
    return subprocess.Popen(command, env=env | {"CHAOS_NODE": "node0"} | variables)


def events(run_dir: pathlib.Path) -> list[str]:
    lines = [line for path in (run_dir / "events").glob("*/*.jsonl") for line in path.read_text().splitlines()[1:]]
    return [json.loads(line)["event"] for line in lines]


def test_exactly_the_planned_starts_of_the_rank_crash(tmp_path: pathlib.Path) -> None:
    fault = planned("start_failure", times=2, code=7)
    holds = TriggerHolds(tmp_path, [fault])
    assert start_worker(tmp_path, holds, 0).wait() == 0  # nothing is armed yet
    holds.act(fault)
    for _ in range(2):
        assert start_worker(tmp_path, holds, 1).wait() == 0  # another rank
        with start_worker(tmp_path, holds, 0) as worker:
            until(lambda: holds.caught("f"), "the crash")
            assert worker.poll() is None, "a crash must not come before its reason is in the log"
            caught = holds.caught("f")
            assert caught is not None and (caught.rank, caught.node) == (0, "node0")
            caught.grant()
            assert worker.wait() == 7
    assert start_worker(tmp_path, holds, 0).wait() == 0
    assert events(tmp_path).count("started") == 6
    assert events(tmp_path).count("step") == 4
    (tmp_path / "healed").mkdir()
    healed = TriggerHolds(tmp_path / "healed", [fault])
    healed.act(fault)
    healed.stop_acting("f")
    assert start_worker(tmp_path / "healed", healed, 0).wait() == 0


@pytest.mark.parametrize(
    ("kind", "variable", "told"), [("wrong_rank", "RANK", "1"), ("wrong_world", "WORLD_SIZE", "3")]
)
def test_exactly_the_planned_starts_of_the_rank_are_misled(
    tmp_path: pathlib.Path, kind: str, variable: str, told: str
) -> None:
    """From `started` on the environment lies; the events still say which rank it is that is lied to."""
    fault = planned("start_failure", times=1, kind=kind)
    holds = TriggerHolds(tmp_path, [fault])
    holds.act(fault)
    program = EMIT + f'import os; emit("told", value=os.environ["{variable}"])'
    with start_worker(tmp_path, holds, 0, program, RANK="0", WORLD_SIZE="2") as worker:
        until(lambda: holds.caught("f"), "the crash")
        caught = holds.caught("f")
        assert caught is not None and (caught.rank, caught.node) == (0, "node0")
        caught.grant()
        assert worker.wait() == 0
    assert start_worker(tmp_path, holds, 0, program, RANK="0", WORLD_SIZE="2").wait() == 0  # not planned
    first, second = sorted(read_log(tmp_path / "events"), key=lambda log: log.events[0]["mono_ns"])
    (misled,) = [event for event in first.events if event["event"] == "failpoint"]
    assert (misled["name"], misled["variable"], misled["value"]) == ("misled", variable, told)
    assert [log.header["rank"] for log in (first, second)] == [0, 0]
    assert [log.events[-1]["value"] for log in (first, second)] == [told, {"RANK": "0", "WORLD_SIZE": "2"}[variable]]


def test_a_rank_stays_in_the_collective_until_it_is_let_go(tmp_path: pathlib.Path) -> None:
    fault = planned("hang", how="stuck_in_collective")
    holds = TriggerHolds(tmp_path, [fault])
    holds.act(fault)
    assert start_worker(tmp_path, holds, 1).wait() == 0
    with start_worker(tmp_path, holds, 0) as worker:
        until(lambda: events(tmp_path).count("failpoint") == 2, "the rank in the collective")
        time.sleep(0.1)
        assert worker.poll() is None
        assert events(tmp_path).count("step") == 1
        holds.stop_acting("f")
        assert worker.wait() == 0


def test_progress_knows_step_times_failpoints_and_wall_clocks() -> None:
    progress = LiveProgress()
    header = {"role": "trainer", "rank": 3, "node": "node1", "incarnation": 1, "pid": 9}
    progress.absorb(header, {"event": "started", "mono_ns": 5, "wall_ns": 1005}, 10)
    for step, mono_ns in enumerate((100, 130, 190), 1):
        progress.absorb(
            header, {"event": "step", "step": step, "mono_ns": mono_ns, "wall_ns": mono_ns + 1000}, mono_ns + 2
        )
    assert list(progress.step_times[3]) == [(102, 30), (132, 60)]
    progress.absorb(header, {"event": "failpoint", "name": "x", "mono_ns": 200, "wall_ns": 4200}, 201)
    assert progress.failpoints == {(3, "x"): 201}
    assert progress.wall_offset_ns[3] == 4000
    # A new process is no long step.
    progress.absorb(header, {"event": "started", "mono_ns": 900}, 901)
    progress.absorb(header, {"event": "step", "step": 4, "mono_ns": 950}, 951)
    assert len(progress.step_times[3]) == 2


@pytest.mark.parametrize(
    ("name", "parameters", "verb"),
    [
        ("straggler", {"how": "quota"}, Verb.CPU_QUOTA),
        ("straggler", {"how": "duty_cycle"}, Verb.CPU),
        ("oom", {"how": "kernel"}, Verb.MEMORY_KERNEL),
        ("hang", {"how": "freeze_node"}, Verb.FREEZE),
        ("node_loss", {"silent": True}, Verb.NET_LINK),
        ("clock_skew", {}, Verb.CLOCK),
        *(("straggler", bad, None) for bad in ({"factor": 1.0}, {"factor": 99}, {"how": "magic"}, {"duration": "5"})),
    ],
)
def test_what_parameters_need_or_cannot_be(name: str, parameters: dict[str, object], verb: Verb | None) -> None:
    with contextlib.nullcontext() if verb else pytest.raises(ValidationError):
        assert verb in build_fault(name, parameters).needed()


CLOCK = """
import threading, time
print(time.time() - {now}, time.clock_gettime(time.CLOCK_REALTIME) - {now}, time.monotonic() - {mono})
begin = time.monotonic(); time.sleep(0.05); threading.Event().wait(0.05); lock = threading.Lock(); lock.acquire()
lock.acquire(timeout=0.05); print(time.monotonic() - begin)
"""


@pytest.mark.parametrize("offset_s", [3600, -86400])
def test_a_skewed_process_waits_as_long_as_it_should(tmp_path: pathlib.Path, offset_s: int) -> None:
    if (reason := skew.why_not()) is not None:
        pytest.skip(reason)
    env = skew.prepare(tmp_path) | {"CHAOS_NODE": "node0", "PATH": os.environ["PATH"]}
    skew.set_offset(tmp_path, "node0", offset_s)
    code = CLOCK.format(now=time.time(), mono=time.monotonic())
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True)
    wall_s, other_s, monotonic_s, waited_s = map(float, done.stdout.split())
    assert 0 <= monotonic_s < HANG_S
    assert 0.15 <= waited_s < HANG_S
    assert wall_s == pytest.approx(offset_s + monotonic_s, abs=1)
    assert other_s == pytest.approx(offset_s + monotonic_s, abs=1)
    written = pathlib.Path(tmp_path / "clock" / "node0").stat().st_mtime
    assert abs(time.time() - written) < HANG_S, "the machine's own clock"
    skew.set_offset(tmp_path, "node0", 0)
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True)
    assert 0 <= float(done.stdout.split()[0]) < HANG_S


def test_a_machine_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "COMPILERS", ("no-such-cc",))
    skew.why_not.cache_clear()
    assert "no C compiler (no-such-cc)" in str(skew.why_not())
    skew.why_not.cache_clear()
