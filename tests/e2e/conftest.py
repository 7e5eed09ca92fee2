"""Real runs: real processes, real namespaces, the real trainer. Fault-free runs are shared by the whole session."""

import pathlib

import pytest
from e2e.chaos_cli import LARGER, SHORT


@pytest.fixture(scope="session")
def fault_free_runs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("fault-free runs")


@pytest.fixture
def reports(tmp_path: pathlib.Path, fault_free_runs: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / ".fault-free").symlink_to(fault_free_runs)
    return folder


@pytest.fixture
def short(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "short.yaml"
    path.write_text(SHORT)
    return path


@pytest.fixture
def larger(short: pathlib.Path) -> pathlib.Path:
    short.write_text(LARGER)
    return short
