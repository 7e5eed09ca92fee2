"""Plug-ins are found by their file names, and one that is not there is told with those that are."""

import importlib
import pathlib
import sys
from collections.abc import Iterator

import pytest

from harness.errors import UsageError
from harness.plugins import Family

FILES = {
    "contract.py": "",
    "slow.py": "IT = 'slow'",
    "torn.py": "IT = 'torn'",
    "empty.py": "",
    "shared/__init__.py": "",
    "engine/__init__.py": "",
    "engine/part.py": "IT = 'engine'",
}


@pytest.fixture
def package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, text in ({"__init__.py": ""} | FILES).items():
        path = tmp_path / "some_plugins" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield "some_plugins"
    for name in [name for name in sys.modules if name.split(".")[0] == "some_plugins"]:
        del sys.modules[name]


def test_a_file_is_a_plug_in_and_is_imported_when_it_is_loaded(package: str) -> None:
    family = Family("toy", package, "IT")
    assert family.names() == ("empty", "slow", "torn")
    assert "some_plugins.slow" not in sys.modules
    assert family.load("slow") == "slow"
    assert "some_plugins.torn" not in sys.modules


def test_a_folder_is_one_where_it_has_the_part(package: str) -> None:
    family = Family("toy", package, "IT", part="part")
    assert family.names() == ("engine",)
    assert family.load("engine") == "engine"


@pytest.mark.parametrize("name", ["contract", "shared", "slwo", "", "slow.x", "../slow", "os"])
def test_a_name_that_is_none_is_told_with_those_there_are(package: str, name: str) -> None:
    family = Family("toy", package, "IT")
    with pytest.raises(UsageError, match=r"unknown toy .*; (did you mean slow\?|choose one of: empty, slow, torn)"):
        family.load(name)
    with pytest.raises(ValueError, match="unknown toy"):
        family.known(name)
    assert family.known(name, also=(name,)) == name


def test_a_file_without_its_attribute_is_named(package: str) -> None:
    with pytest.raises(UsageError, match=r"^some_plugins/empty\.py defines no toy: its IT is missing$"):
        Family("toy", package, "IT").load("empty")
