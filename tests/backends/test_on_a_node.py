"""What is done on a node or asked of it: other clocks, forking from a process that handles signals, measuring a
path, a command of the site's own."""

import itertools
import os
import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.backends import clock_offset
from harness.backends.site_commands import answer_of
from harness.errors import BackendError
from harness.node import kernel, spawn
from harness.node.net import net_probe

delays = st.integers(0, 10**9)


@given(st.integers(-(10**15), 10**15), st.lists(st.tuples(delays, delays), min_size=1, max_size=9))
def test_the_true_offset_is_within_the_uncertainty(offset_ns: int, trips: list[tuple[int, int]]) -> None:
    """Whatever each way takes: a delay that is all on one side misleads by exactly half of it."""
    now = [10**18]
    ways = itertools.chain.from_iterable(trips)

    def ask() -> int:
        now[0] += next(ways)
        theirs = now[0] + offset_ns
        now[0] += next(ways)
        return theirs

    reading = clock_offset.compare("far", ask, len(trips), lambda: now[0])
    assert abs(reading.offset_ns - offset_ns) <= reading.uncertainty_ns
    assert reading.uncertainty_ns <= min(there + back for there, back in trips) // 2 + 2
    assert reading.host == "far"


def test_our_own_clock_is_not_off() -> None:
    reading = clock_offset.compare("here", time.time_ns)
    assert abs(reading.offset_ns) <= reading.uncertainty_ns < 10**8


def test_a_signal_right_after_the_fork_is_not_lost_and_the_parent_goes_on_hearing_its_own() -> None:
    """From a process that handles signals, as an init does."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        for _ in range(30):
            pid = spawn.fork(lambda: time.sleep(20))
            os.kill(pid, signal.SIGTERM)
            _, status = os.waitpid(pid, 0)
            assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
        assert heard == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM] and signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_machine_that_hardly_lets_it_run_makes_the_windows_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    real, late = time.monotonic, itertools.count(0.0, 0.4)
    monkeypatch.setattr(kernel, "enter_network", lambda pid: None)
    monkeypatch.setattr(time, "monotonic", lambda: real() + next(late))
    here = net_probe.End(0, "127.0.0.1")
    assert net_probe.transfer(here, here, 0.3, None)["bits_per_s"] > 0


@pytest.mark.parametrize(
    ("command", "limit_s", "said"),
    [
        (["no-such-program"], 10, "no-such-program: not found, or not executable"),
        (["sh", "-c", "echo first >&2; echo quota exceeded >&2; exit 3"], 10, "quota exceeded"),
        (["sh", "-c", "exit 7"], 10, "exit code 7"),
        (["sleep", "60"], 0.2, r"sleep did not answer within 0\.2 s"),
    ],
)
def test_a_failure_is_said_in_one_line(command: list[str], limit_s: float, said: str) -> None:
    assert answer_of(["echo", "here"], os.environ, 10) == "here\n"
    with pytest.raises(BackendError, match=said) as failed:
        answer_of(command, os.environ, limit_s)
    assert "\n" not in str(failed.value)
