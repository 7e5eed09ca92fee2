"""The environment in .venv: made by `make`, for one place and by a Python that is supported."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable

import pytest
from packaging.specifiers import SpecifierSet

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()


def make(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


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


def test_a_program_of_the_environment_is_called_by_its_module() -> None:
    """A script in its `bin` starts with the path of the Python that it was installed by."""
    called = re.findall(r"\$\(VENV\)(?:-lock)?/bin/(\w+)", MAKEFILE)
    assert called and set(called) == {"python"}


def test_the_makefile_and_the_package_want_the_same_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (bounds,) = re.findall(r"\((\d), (\d+)\) <= sys.version_info < \((\d), (\d+)\)", MAKEFILE)
    assert SpecifierSet(project["requires-python"]) == SpecifierSet(">={}.{},<{}.{}".format(*bounds))
    (told,) = re.findall(r'"Python ([\d., or]+) is needed', MAKEFILE)
    oldest, newest = int(bounds[1]), int(bounds[3]) - 1
    assert re.findall(r"3\.(\d+)", told) == [str(minor) for minor in range(oldest, newest + 1)]


def test_another_python_is_told_what_is_allowed(checkout: pathlib.Path) -> None:
    done = make(checkout, "setup", "PYTHON=false")
    assert "Python 3.11, 3.12 or 3.13 is needed; 'false' is" in done.stdout
    assert "Error 4" in done.stderr and not (checkout / ".venv").exists()
