"""What other programs take of the host's CPUs: nothing of it is the job's own."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from harness.node.types import CpuUse
from harness.run import host_load
from harness.run.host_load import HostLoad, Look, others_between

S = 10**9


@given(st.integers(1, 64), st.floats(0, 1), st.floats(0, 1))
def test_what_the_nodes_used_is_theirs(cpus: int, ours: float, others: float) -> None:
    """As long as both together fit on the CPUs."""
    ours *= 1 - others
    used = round(ours * cpus * S)
    now = Look(2 * S, 7 * S + used + round(others * cpus * S), {"a.1": 100 + used})
    assert others_between(Look(S, 7 * S, {"a.1": 100}), now, cpus) == pytest.approx(others, abs=1e-6)


@pytest.mark.parametrize("nodes", [{}, {"a.2": 0}, {"a.1": 4}])
def test_nothing_is_said_of_a_moment_in_which_a_node_or_a_process_went(nodes: dict[str, int]) -> None:
    assert others_between(Look(0, 0, {"a.1": 5}), Look(S, S, nodes), 2) is None


def test_a_busy_program_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_load, "EVERY_S", 0.5)
    node = SimpleNamespace(name="a", incarnation=1, alive=True, cpu_use=lambda: CpuUse(0, 0, 0))
    cluster: Any = SimpleNamespace(on_this_host=True, nodes=[node])
    burning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    load, seen = HostLoad(cluster), list[float]()
    try:
        until(lambda: seen.extend(load.taken()) or len(seen) >= 3, "three looks")
    finally:
        load.close()
        burning.kill()
        burning.wait()
    assert max(seen) >= 0.5 / (os.cpu_count() or 1)
