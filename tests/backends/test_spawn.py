"""Forking a command from a process that handles signals itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from harness.node import spawn


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """The signals that this process was told to handle, as an init does."""
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    yield got
    signal.signal(signal.SIGTERM, before)


def test_a_signal_right_after_the_fork_is_not_lost(handled: list[int]) -> None:
    for _ in range(30):
        pid = spawn.fork(lambda: time.sleep(20))
        os.kill(pid, signal.SIGTERM)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM


def test_the_parent_goes_on_hearing_its_own(handled: list[int]) -> None:
    pid = spawn.fork(lambda: None)
    os.waitpid(pid, 0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert handled == [signal.SIGTERM]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
