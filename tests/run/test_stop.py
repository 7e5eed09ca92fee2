"""A stop is a request where somebody attends to it, and an interrupt elsewhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from harness.run import stop as module
from harness.run.stop import StopRequest


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    request = StopRequest()
    request.on_signals()
    yield request
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_only_asks_while_somebody_attends(stop: StopRequest, number: signal.Signals) -> None:
    with stop.attended():
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # as `timeout` does: once to the process, once to its group
    assert stop.asked and stop.reason == "stopped by the user"
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
        signal.sigtimedwait([], 1)


def test_who_asks_once_more_later_interrupts(stop: StopRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INSISTS_AFTER_S", -1.0)
    with stop.attended():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            signal.sigtimedwait([], 1)


def test_attention_can_be_nested(stop: StopRequest) -> None:
    with stop.attended():
        with stop.attended():
            pass
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.asked
