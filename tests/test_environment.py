"""The environment in .venv, made by `make` for one place and by a Python that is supported; the core install, locked;
and what a minimal system is told about where packages are."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from types import ModuleType

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()


def make(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *arguments]  # which a make below another one prints
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> pathlib.Path:
    """What `make setup` reads, without an environment."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "requirements.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.mark.parametrize("change", [shutil.copytree, shutil.move])
def test_an_environment_is_set_up_again_in_another_place(checkout: pathlib.Path, change: Callable[..., object]) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / ".ready").write_text(f"{checkout}\n")
    assert make(checkout, "--question", "setup").returncode == 0
    other = checkout.parent / "other"
    change(checkout, other)
    assert make(other, "--question", "setup").returncode == 1


def test_the_makefile_and_the_package_want_the_same_python(checkout: pathlib.Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (oldest,) = re.findall(r"sys.version_info >= \(3, (\d+)\)", MAKEFILE)
    assert project["requires-python"] == f">=3.{oldest}" and f'"Python 3.{oldest} or newer is needed' in MAKEFILE
    declared = re.findall(r"Python :: 3\.(\d+)", "\n".join(project["classifiers"]))
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())
    assert workflow["jobs"]["check"]["strategy"]["matrix"]["python"] == [f"3.{minor}" for minor in declared]
    assert declared[0] == oldest
    done = make(checkout, "setup", "PYTHON=false")
    assert "Python 3.11 or newer is needed; 'false' is" in done.stdout
    assert "Error 4" in done.stderr and not (checkout / ".venv").exists()
    # A script in its `bin` starts with the path of the Python that it was installed by.
    called = re.findall(r"\$\(VENV\)(?:-lock)?/bin/(\w+)", MAKEFILE)
    assert called and set(called) == {"python"}


@pytest.mark.parametrize("target", ["chaos", "gate", "gameday"])
def test_make_says_the_exit_code_that_it_turns_into_2(checkout: pathlib.Path, target: str) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / ".ready").write_text(f"{checkout}\n")
    for code, meaning in ((0, "pass"), (1, "fail"), (3, "inconclusive or invalid"), (9, "not expected")):
        done = make(checkout, target, f"CHAOS=sh -c 'echo its words; exit {code}'")
        assert done.stdout.splitlines() == ["its words", f"exit code of chaos: {code} ({meaning})"]
        assert done.returncode == (2 if code else 0)


def test_the_help_of_make_begins_with_what_users_need(checkout: pathlib.Path) -> None:
    shown = [re.findall(r"^  make ([a-z-]+) ", make(checkout, target).stdout, re.M) for target in ("help", "help-all")]
    assert {*shown[0]} == {"chaos", "gate", "gameday", "doctor", "setup", "help-all"}
    assert {*shown[1]} == {*re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.M)} > {*shown[0]}


CORE = [Requirement(text) for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]]
LOCKED = (ROOT / "requirements.txt").read_text()


def test_core_dependencies_have_upper_bounds_and_the_lock_digests_within_them() -> None:
    assert "://" not in LOCKED, "it names no registry"
    locked = re.findall(
        r"^([a-z0-9-]+)==(\S+)(?: ;[^\\]*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", LOCKED, re.M
    )
    versions = {name: version for name, version, _ in locked}
    for requirement in CORE:
        assert any(each.operator in ("<", "<=", "==", "~=") for each in requirement.specifier), str(requirement)
        assert requirement.specifier.contains(versions[requirement.name]), str(requirement)
    entries = [line for line in LOCKED.splitlines() if line and not line.startswith(("#", " "))]
    assert len(entries) == len(locked), "every entry has digests"


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
