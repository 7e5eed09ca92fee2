"""Plug-ins are found by their file names, and one that is not there is told with those that are."""

import importlib
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import chaos
from judge.test_whole import BOTH, RESTORED, drill_card
from judging import EXPECT, expecting

from harness.backends.contract import Capability, Verb
from harness.campaign.checked_files import score_bounds
from harness.campaign.experiment import run_experiment
from harness.cli.machine import fault_table
from harness.cli.plugins import LOADED, added
from harness.errors import FaultError, UsageError
from harness.faults.contract import fault_names, load_fault
from harness.gameday.day import run_day
from harness.gate.suite_run import run_gate
from harness.judge.guarantee import guarantees, load_guarantee
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.plugins import OPEN, Family, entry_points, installed
from harness.report.next_steps import next_steps
from harness.run import undo
from harness.spec.expected_scores import wrong_expectations

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = {
    **dict.fromkeys(("contract.py", "empty.py", "shared/__init__.py", "engine/__init__.py"), ""),
    "slow.py": "IT = 'slow'",
    "torn.py": "IT = 'torn'",
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
    with pytest.raises(UsageError, match=r"^some_plugins/empty\.py defines no toy: its IT is missing$"):
        family.load("empty")
    family = Family("toy", package, "IT", part="part")
    assert family.names() == ("engine",) and family.load("engine") == "engine", "a folder is one where it has the part"


def test_a_name_that_is_none_is_told_with_those_there_are(package: str) -> None:
    family = Family("toy", package, "IT")
    for name in ("contract", "shared", "slwo", "", "slow.x", "../slow", "os"):
        with pytest.raises(UsageError, match=r"unknown toy .*; (did you mean slow\?|choose one of: empty, slow, torn)"):
            family.load(name)
        with pytest.raises(ValueError, match="unknown toy"):
            family.known(name)
        assert family.known(name, also=(name,)) == name


def test_without_the_folders_of_engines_all_else_works(tmp_path: pathlib.Path) -> None:
    for folder in (ROOT / "harness", ROOT / "harness" / "backends"):
        (here := tmp_path / folder.relative_to(ROOT)).mkdir()
        for each in folder.iterdir():
            if each.name not in ("backends", "docker", "kubernetes", "slurm"):
                (here / each.name).symlink_to(each)
    (tmp_path / "strikes.yaml").write_text("version: 1\nname: a\ntitle: A\nentries: [{strike: pause}]\n")
    for words, code, said in (
        ("plan spot-evict", 0, "Nothing was launched."),
        ("plan spot-evict --backend docker", 2, "unknown backend 'docker'; choose one of: local"),
        ("gameday run strikes.yaml --attach slurm:7", 4, "lacks harness.backends.slurm, which the command needs"),
    ):
        command = [sys.executable, "-m", "harness", *words.split()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == code and said in done.stdout + done.stderr, done.stderr


# Plug-ins of other packages


class Bringing:
    """Packages that are installed for one test."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder

    def __call__(self, package: str, text: str, group: str = "faults", **names: str) -> None:
        self.install(package, text, group, **names)
        forget()

    def install(self, package: str, text: str, group: str, **names: str) -> None:
        """`names`: each plug-in of the group, and its module."""
        (self._folder / f"{package}.py").write_text(text)
        info = self._folder / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        points = "".join(f"{name} = {module}\n" for name, module in names.items())
        (info / "entry_points.txt").write_text(f"[chaos_harness.{group}]\n{points}")
        importlib.invalidate_caches()


def forget() -> None:
    for each in (installed, entry_points, guarantees):
        each.cache_clear()


@pytest.fixture
def bringing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bringing]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Bringing(tmp_path)
    forget()
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
    shown = chaos("faults", "--json")
    (nap,) = (each for each in json.loads(shown.stdout) if each["name"] == "nap")
    assert shown.exit_code == 0 and words in nap["backends"]["local"]["lacking"]


def test_what_each_fault_has_is_no_parameter(bringing: Bringing) -> None:
    text = "from harness.log.consequences import May\n" + NAP.replace("'It naps.'", "may: frozenset[May] = frozenset()")
    with pytest.warns(UserWarning, match="shadows"):
        bringing("brought", text, nap="brought")
        (told,) = added()
    assert told.wrong == "brought: with a type, `may` is a parameter; write `may = …`, as each fault has it"


def test_a_name_that_two_have_names_both_and_one_that_no_file_can_have_is_refused(bringing: Bringing) -> None:
    bringing("brought_first", NAP, **{"my-nap": "brought_first"})
    with pytest.raises(UsageError, match="brought_first of brought_first: 'my-nap' is no name of a fault"):
        fault_names()
    bringing("brought", NAP, hang="brought")
    with pytest.raises(UsageError, match="called fault 'hang': harness/faults/hang and brought of brought"):
        fault_names()
    bringing("brought_too", NAP, hang="brought_too")
    with pytest.raises(UsageError, match="brought of brought and brought_too of brought_too; remove one"):
        fault_names()


GAP = """'''Saves are never far apart.'''
from harness.judge.guarantee import Guarantee, breach

CONTRACT = 1
GUARANTEE = Guarantee(lambda evidence: iter([breach("30 s without a save")]))
"""


WRONG = {  # fields of a guarantee, or texts of its module, and what is said
    "rests_on=('saves',)": "rests_on: unknown 'saves'; choose one of: steps, loss, .*checkpoints, ",
    "rests_on=('loss')": r"rests_on is 'loss'; write a tuple, like \('steps',\)",
    "holds_for=('Run',)": "holds_for: unknown 'Run'; choose one of: run, restore drill, second restart",
    "holds_for=()": r"holds_for is \(\); write a tuple, like \('run',\)",
    "explained_by=('saves_whole',)": r"explained_by: unknown 'saves_whole'; did you mean saves\.whole",
    "switch='divergence'": "switch is 'divergence'; leave it out: `expect: {saves_gap: off}`",
    "nothing=''": "nothing='': both are functions",
    GAP.splitlines()[0]: "guarantee.py: it has no docstring; .* first line",
    "GUARANTEE = G": "GUARANTEE is Breach.*; write GUARANTEE = Guarantee",
    "CONTRACT = 1": "AttributeError: .*TIME'?; choose one of: ABSENCE, DURATION",
}
INSTEAD = {
    "GUARANTEE = G": "GUARANTEE = breach('x') or G",
    "CONTRACT = 1": "from harness.judge.verdict import Kind; Kind.TIME",
}


@pytest.mark.parametrize("what", WRONG)
def test_a_guarantee_that_cannot_be_judged_is_refused_before_a_job_starts(bringing: Bringing, what: str) -> None:
    text = GAP.replace(what, INSTEAD.get(what, "")) if what in GAP else GAP.replace(")]))", f")]), {what})")
    bringing("brought_guarantee", text, "guarantees", saves_gap="brought_guarantee")
    (told,) = added()
    for begins in (lambda: load_guarantee("saves_gap"), *BEGIN):
        with pytest.raises(UsageError, match=WRONG[what]) as refused:
            begins()
        assert str(refused.value) == told.wrong and "brought_guarantee" in told.wrong


BEGIN = (
    lambda: run_experiment(*[None] * 3),  # type: ignore[arg-type]
    lambda: run_day(*[None] * 4),  # type: ignore[arg-type]
    lambda: run_gate(*[None] * 2),  # type: ignore[arg-type]
)


@pytest.mark.parametrize("name", ["quick", "last_checkpoint"])
def test_a_guarantee_has_a_family_and_a_key_of_its_own(bringing: Bringing, name: str) -> None:
    bringing("brought", GAP, "guarantees", **{name: "brought"})
    with pytest.raises(UsageError, match=f"'{name}' is no name of a guarantee; write FAMILY_NAME"):
        load_guarantee(name)


def test_a_guarantee_of_another_package_breaks_and_is_switched_off_by_its_name(bringing: Bringing) -> None:
    """`restart` is a family of ours, too, and means nothing of ours here. A drill is switched off with its run."""
    for name in ("saves_gap", "restart_gap"):
        bringing(f"brought_{name}", GAP, "guarantees", **{name: f"brought_{name}"})

    def gaps(**expect: Any) -> tuple[Scorecard, dict[str, str]]:
        card = drill_card(BOTH, lambda logs: expecting(logs, EXPECT | expect), **RESTORED)
        return card, {each.name: each.why or each.state for each in card.guarantees if each.name.endswith(".gap")}

    card, told = gaps()
    assert told == dict.fromkeys(("restart.gap", "saves.gap"), "30 s without a save")
    steps = next_steps(card)
    assert "What this run did not keep: chaos guarantees restart.gap" in steps and len(steps) == 3, steps
    card, told = gaps(saves_gap="off", restart_gap="off")
    assert card.verdict is Verdict.PASS, card.reasons
    assert told == dict.fromkeys(("restart.gap", "saves.gap"), "the scenario switches it off")
    assert [*wrong_expectations({"saves_gap": "off", "restart_gap": {}}, score_bounds())] == []
    wrong = {"saves_gap": {"max": "30s"}, "saves_gpa": "off"}
    assert [*wrong_expectations(wrong, score_bounds())] == [
        (("expect", "saves_gap", "max"), "unknown key; none is defined here"),
        (("expect", "saves_gpa"), "unknown score 'saves_gpa'; did you mean saves_gap?"),
    ]


def test_what_is_installed_while_a_command_is_at_work_is_not_its_own(bringing: Bringing) -> None:
    forget()
    before = installed()
    bringing.install("late", "", "guarantees", saves_gap="late")
    assert installed() is before and "saves.gap" not in guarantees()
    assert {group.rpartition(".")[2] for group in OPEN} == set(LOADED), "chaos plugins knows each open family"
