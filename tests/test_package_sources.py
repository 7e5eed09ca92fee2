"""What a minimal system is told about where packages are: all that pip is told on this host about it, nothing else."""

from __future__ import annotations

import importlib.util
import os
import pathlib
from types import ModuleType

import pytest
from called_programs import ROOT


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> ModuleType:
    """The script, on a host where pip has one file of settings and no variable."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    spec = importlib.util.spec_from_file_location("package_sources", ROOT / "engines" / "package_sources.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_environment_wins_over_files(
    sources: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nretries = 7\nproxy = http://one\ntarget = /elsewhere\n")
    monkeypatch.setenv("PIP_PROXY", "http://two")
    told = sources.pip_settings()
    assert (told["retries"], told["proxy"]) == ("7", "http://two")
    assert "target" not in told, "where packages go is not where they come from"


def test_local_folders_are_found(sources: ModuleType, tmp_path: pathlib.Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "an index" / "simple").mkdir(parents=True)
    index = (tmp_path / "an index" / "simple").as_uri()
    told = {
        "index-url": "https://example.org/simple",
        "extra-index-url": f"{index} {index}/ file:///not/there",
        "find-links": f"{tmp_path}/wheels relative /not/there https://example.org/wheels",
    }
    assert sources.folders(told) == {str(tmp_path / "wheels"), str(tmp_path / "an index")}
