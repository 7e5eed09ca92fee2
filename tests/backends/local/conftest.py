"""Labs for tests: opened in every mode this machine has, closed whatever happens, and nothing of them left."""

import itertools
import os
import pathlib
from collections.abc import Iterator, Sequence

import machine
import pytest
from backends.local.labs import Opened, OpenLab

from harness.backends.contract import Launch
from harness.backends.local.backend import BACKEND, MODES
from harness.node import leftovers

_numbers = itertools.count(1)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    chosen: str = request.param
    machine.use_mode(monkeypatch, chosen)
    return chosen


@pytest.fixture
def open_lab(mode: str, tmp_path: pathlib.Path) -> Iterator[OpenLab]:
    opened: list[Opened] = []

    def open_one(command: Sequence[str], nodes: int = 1, control: Sequence[str] | None = None, **env: str) -> Opened:
        number = next(_numbers)
        run_id = f"test-{os.getpid()}-{number}"
        workload = Launch(tuple(command), nodes, 1, env, tuple(control) if control else None)
        run_dir = tmp_path / f"run{number}"
        cluster = BACKEND.open(workload, run_dir, run_id)
        opened.append(Opened(cluster, run_dir, run_id))
        cluster.start()
        return opened[-1]

    yield open_one
    for lab in opened:
        lab.cluster.close()
        assert leftovers.leftovers(lab.run_id) == []
