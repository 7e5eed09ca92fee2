"""Real runs: real processes, real namespaces, the real trainer. Fault-free runs are shared by the whole session."""

import pathlib

import pytest
from e2e.chaos_cli import LARGER, SHORT, Done, chaos, lighter


@pytest.fixture(scope="session")
def fault_free_runs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("fault-free runs")


def _reports(where: pathlib.Path, fault_free_runs: pathlib.Path) -> pathlib.Path:
    folder = where / "reports"
    folder.mkdir()
    (folder / ".fault-free").symlink_to(fault_free_runs)
    return folder


@pytest.fixture
def reports(tmp_path: pathlib.Path, fault_free_runs: pathlib.Path) -> pathlib.Path:
    return _reports(tmp_path, fault_free_runs)


@pytest.fixture(scope="session")
def main_job(tmp_path_factory: pytest.TempPathFactory, fault_free_runs: pathlib.Path) -> Done:
    """Two evictions, a restore drill and a second restart, once for all tests, which leave it as it is."""
    folder = tmp_path_factory.mktemp("main job")
    return chaos(_reports(folder, fault_free_runs), "run", lighter("double-evict", folder))


@pytest.fixture
def short(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "short.yaml"
    path.write_text(SHORT)
    return path


@pytest.fixture
def larger(short: pathlib.Path) -> pathlib.Path:
    short.write_text(LARGER)
    return short
