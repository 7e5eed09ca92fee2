"""Plug-ins are found by their file names, and one that is not there is told with those that are."""

import importlib
import json
import pathlib
import sys
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from harness.backends.contract import Capability, Verb
from harness.cli.machine import fault_table
from harness.cli.main import make_app
from harness.cli.plugins import LOADED, added
from harness.errors import FaultError, UsageError
from harness.faults.contract import fault_names, load_fault
from harness.plugins import OPEN, Family, entry_points
from harness.run import undo

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


# Plug-ins of other packages


class Bringing:
    """Packages that are installed for one test."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder

    def __call__(self, package: str, text: str, **names: str) -> None:
        """`names`: each plug-in of a fault, and its module."""
        (self._folder / f"{package}.py").write_text(text)
        info = self._folder / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        points = "".join(f"{name} = {module}\n" for name, module in names.items())
        (info / "entry_points.txt").write_text(f"[chaos_harness.faults]\n{points}")
        importlib.invalidate_caches()
        entry_points.cache_clear()


@pytest.fixture
def bringing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bringing]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Bringing(tmp_path)
    entry_points.cache_clear()
    for name in [name for name in sys.modules if name.startswith("brought")]:
        del sys.modules[name]


NAP = "CONTRACT = 1\nfrom harness.faults.rank_kill import RankKill\n\nclass Nap(RankKill):\n    'It naps.'\n\nFAULT = Nap\n"
UNDO = "def UNDO(name: str) -> None:\n    raise ValueError(name)\n"


def test_a_fault_of_another_package_is_one_like_ours(bringing: Bringing) -> None:
    bringing("brought", NAP + UNDO, nap="brought")
    assert "nap" in fault_names() and "brought" not in sys.modules
    assert load_fault("nap").__doc__ == "It naps."
    with pytest.raises(ValueError, match=r"^it$"):
        undo.resolve("faults.nap")("it")
    assert "faults.nap" in undo.actions()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NAP.replace("CONTRACT = 1", ""), r"is for no version \(its CONTRACT is missing\) of the contract"),
        (NAP.replace("CONTRACT = 1", "CONTRACT = 99"), "for version 99 of the contract of plug-ins; this is version 1"),
        ("import nothing_of_that_name", "cannot be loaded: ModuleNotFoundError: .*; mend it or uninstall it"),
        ("raise SystemError('no')", "cannot be loaded: SystemError: no"),
        ("CONTRACT = 1", "defines no fault: its FAULT is missing"),
        ("CONTRACT = 1\nFAULT = len", r"^brought\.py: FAULT must be a class of a Fault$"),
        (NAP.replace("'It naps.'", "def lacks(self): ..."), r"^brought\.py: write @classmethod above `def lacks`"),
        (NAP.replace("'It naps.'", "def notice_s(self): ..."), r"^brought\.py: write @property above `def notice_s`"),
    ],
)
def test_one_that_cannot_be_used_is_named_with_its_package(bringing: Bringing, text: str, words: str) -> None:
    bringing("brought", text, nap="brought")
    with pytest.raises(UsageError, match=words):
        load_fault("nap")
    assert load_fault("hang"), "it hurts no other"
    (told,) = added()
    assert (told.name, told.package, told.version) == ("nap", "brought", "1.0")
    with pytest.raises(UsageError) as refused:
        load_fault("nap")
    assert told.wrong == str(refused.value)
    with pytest.raises(FaultError, match="no undo function" if "CONTRACT = 1" in text else "undo action 'faults.nap'"):
        undo.resolve("faults.nap")


def test_what_each_fault_has_is_no_parameter(bringing: Bringing) -> None:
    text = "from harness.log.consequences import May\n" + NAP.replace("'It naps.'", "may: frozenset[May] = frozenset()")
    with pytest.warns(UserWarning, match="shadows"):
        bringing("brought", text, nap="brought")
        (told,) = added()
    assert told.wrong == "brought: with a type, `may` is a parameter; write `may = …`, as each fault has it"


@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        ("def lacks(self): ...", "brought.py: write @classmethod above"),
        (
            "@classmethod\n    def lacks(cls): return 1 / 0",
            "brought: lacks() raised ZeroDivisionError: division by zero",
        ),
        ("@classmethod\n    def lacks(cls): return 'root'", "brought: lacks() returned 'root'; it must return a list"),
    ],
)
def test_one_that_breaks_hinders_no_other(lacks: str, words: str, bringing: Bringing) -> None:
    bringing("brought", NAP.replace("'It naps.'", f"'It naps.'\n    {lacks}"), nap="brought")
    here = {"local": Capability(True, "", frozenset(Verb))}
    rows = {name: can["local"] for name, _, can in fault_table(here)}
    assert rows["nap"].startswith(words) and rows["rank_kill"] == "yes"
    shown = CliRunner().invoke(make_app(), ["faults", "--json"])
    (nap,) = (each for each in json.loads(shown.stdout) if each["name"] == "nap")
    assert shown.exit_code == 0 and words in nap["backends"]["local"]["lacking"]


def test_a_name_that_two_have_names_both(bringing: Bringing) -> None:
    bringing("brought", NAP, hang="brought")
    with pytest.raises(UsageError, match="called fault 'hang': harness/faults/hang and brought of brought"):
        fault_names()
    bringing("brought_too", NAP, hang="brought_too")
    with pytest.raises(UsageError, match="brought of brought and brought_too of brought_too; remove one"):
        fault_names()


def test_a_name_that_no_file_can_have_is_refused(bringing: Bringing) -> None:
    bringing("brought", NAP, **{"my-nap": "brought"})
    with pytest.raises(UsageError, match="brought of brought: 'my-nap' is no name of a fault"):
        fault_names()


def test_chaos_plugins_knows_each_open_family() -> None:
    assert {group.rpartition(".")[2] for group in OPEN} == set(LOADED)
