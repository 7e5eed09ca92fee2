"""Measuring a path: what a busy machine may do to it."""

from __future__ import annotations

import itertools
import time

import pytest

from harness.node import kernel
from harness.node.net import net_probe


def test_a_machine_that_hardly_lets_it_run_makes_the_windows_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    real, late = time.monotonic, itertools.count(0.0, 0.4)
    monkeypatch.setattr(kernel, "enter_network", lambda pid: None)
    monkeypatch.setattr(net_probe.time, "monotonic", lambda: real() + next(late))
    here = net_probe.End(0, "127.0.0.1")
    assert net_probe.transfer(here, here, 0.3, None)["bits_per_s"] > 0
