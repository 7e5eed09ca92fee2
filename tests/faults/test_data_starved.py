"""Reads of training data that wait: what the file system counted is the effect."""

import pathlib
from typing import Any

import pytest
from faults.fault_context import means
from pydantic import ValidationError

from harness.api.testing import FaultContext
from harness.faults.contract import build_fault


@pytest.mark.parametrize(
    ("waits", "each_ms", "acted"), [(50, 40, True), (1, 48, True), (50, 80, False), (50, 10, False), (0, 0, False)]
)
def test_reads_must_have_waited_as_long_as_was_asked(waits: int, each_ms: int, acted: bool) -> None:
    """A training that read nothing from there was not starved."""
    fault: Any = build_fault("data_starved", {"latency": "40ms"})
    told = FaultContext(pathlib.Path())
    fault.judge({"waits": waits, "delayed_ns": waits * each_ms * 1_000_000}, means(told), "node0")
    assert [(measured, expected, ok) for measured, expected, _, ok in told.effects] == [(each_ms, 40, acted)]


def test_only_reads_of_the_data_wait() -> None:
    fault: Any = build_fault("data_starved", {"latency": "40ms"})
    rule = fault.rule(7)
    assert (rule.operations, rule.delay_s, list(fault.mounts())) == (("read",), 0.04, ["data"])


@pytest.mark.parametrize("latency", ["0ms", "6s"])
def test_it_must_wait_and_end_in_time(latency: str) -> None:
    with pytest.raises(ValidationError, match="above 0 and at most half of the duration"):
        build_fault("data_starved", {"latency": latency})


class Ranks:
    """A node with two ranks; what they waited for data."""

    def __init__(self, *shares: float | None):
        self.shares = shares

    def ranks_on(self, node: Any) -> list[int]:
        return list(range(len(self.shares)))

    def data_wait_share(self, rank: int, since_ns: int) -> float | None:
        return self.shares[rank]


def test_what_it_cost_each_rank_is_said_and_so_is_a_delay_that_the_loader_hid() -> None:
    fault: Any = build_fault("data_starved", {"latency": "40ms"})
    assert fault.cost(None, 0, Ranks(0.875, 0.02, None)) == (
        "; rank 0 waited for data 87.5% of its step time"
        "; rank 1 waited for data 2.0% of its step time: its loader hid the delay"
        "; rank 2 ended no step that tells its wait for data"
    )
