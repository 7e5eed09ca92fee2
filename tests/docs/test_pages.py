"""The pages agree with the code, with what was measured, and with each other."""

import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tomllib
import types
from typing import Any

import pytest
import yaml
from command_line import chaos
from jsonschema import Draft202012Validator
from judging import bent
from pages import incidents_page
from pages.__main__ import DOCS, PAGES
from pages.events_page import page
from pydantic import ValidationError, validate_call
from simulator import Job, Outage

from harness.api.testing import FaultContext
from harness.backends import run_folder
from harness.campaign.checked_files import load_scenario
from harness.cli import listing
from harness.evidence.logs import Evidence
from harness.faults.contract import Target, fault_names, load_fault
from harness.gameday.attach import attach_command
from harness.gameday.attach.striking import LOG
from harness.gameday.day_report import PLAN, REPORT
from harness.gate import baseline
from harness.judge.facts.analysis import Analysis
from harness.log import vocabulary
from harness.log.checked_lines import json_schema
from harness.report.commands import REHEARSALS
from harness.report.words import BEYOND
from harness.run.drill import FOLDER

ROOT = DOCS.parent
MADE = {
    *["bounds", "commands", "events", "evidence", "fault-api", "faults", "guarantees", "healthy", "league"],
    *["track-record", "verdict-matrix"],
}
SCENARIOS = {path.stem for path in (ROOT / "scenarios").glob("*.yaml")}
ALL = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "reports" / "README.md", *DOCS.rglob("*.md")]
NUMBER = r"\b(?:\d+|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve) "
FIGURES = {  # each is on one page; the others link to it
    NUMBER + r"(?:of \d+ )?mutants are caught": "verdict-matrix.md",
    NUMBER + r"(?:of \d+ )?healthy runs": "verdict-matrix.md",
    NUMBER + r"(?:of (?:the )?\d+ )?scenarios (?:in|of) `scenarios/`": "trust.md",
    NUMBER + r"(?:training )?stacks": "league.md",
    NUMBER + r"of 20\b": "trust.md",
    NUMBER + r"scenarios with comments": "bring-your-own-trainer.md",
    NUMBER + r"s with the reference trainer, [\d.]+ s with plain": "README.md",
}


WORDS_MAX = 31_060  # of pages written by hand; made ones and runbooks are looked up, not read


def test_what_is_written_by_hand_can_be_read() -> None:
    pages = [page for page in ALL if page.parent.name != "runbooks" and page.stem not in MADE]
    lines = [(page.name, line) for page in pages for line in page.read_text().splitlines()]
    words = sum(len(line.split()) for page, line in lines if page not in PAGES or line[:1] != "|")
    assert words <= WORDS_MAX, f"{words:,} words; shorten what nobody needs before something new comes"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_its_source_says(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "run `make docs`"


@pytest.mark.parametrize("bound", list(listing.bounds()), ids=lambda bound: bound.key)
def test_the_example_of_a_bound_is_allowed_and_told_in_words(bound: listing.Bound) -> None:
    score, _, key = bound.key.partition(".")
    needed = {"max": "60s"} if score == "fail_fast" else {}
    written = needed | {key: yaml.safe_load(bound.example)} if key else bound.example
    spec = load_scenario(ROOT / "scenarios" / "rank-kill.yaml", overrides={"expect": {score: written}})
    assert score in spec.expect
    assert bound.about.endswith(".")


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_is_on_one_page(figure: str) -> None:
    found = {path.name for path in ALL if re.search(figure, path.read_text().replace("\n", " "), re.IGNORECASE)}
    assert found <= {FIGURES[figure]}


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    section = (DOCS / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def test_every_fault_is_in_the_row_of_its_runbook() -> None:
    named = {row[0]: set(re.findall(r"`(\w+)`", row[2])) for row in rows("coverage.md", "Failure modes")}
    assert set().union(*named.values()) == set(fault_names())
    for kind in fault_names():
        assert kind in named[load_fault(kind).runbook], kind
    for book, kinds in named.items():
        told = (DOCS / "runbooks" / f"{book}.md").read_text().split("## Symptom")[0]
        assert kinds == set(re.findall(r"`(\w+)`", told)), book


def test_every_scenario_of_the_gate_and_every_alert_is_on_its_page() -> None:
    named = [row[3].split(", ") for row in rows("coverage.md", "Failure modes")]
    assert {name for names in named for name in names} == SCENARIOS
    held = {name for row in rows("gate.md", "What `pre-launch` holds") for name in re.findall(r"`([\w-]+)`", row[1])}
    suite = yaml.safe_load((ROOT / "scenarios" / "suites" / "pre-launch.yaml").read_text())
    assert held == set(suite["scenarios"])
    rules = yaml.safe_load((ROOT / "examples" / "monitoring" / "alerts.yaml").read_text())["groups"][0]["rules"]
    alerts = [[f"`{rule['alert']}`", rule["labels"]["severity"]] for rule in rules if "alert" in rule]
    assert [row[:2] for row in rows("monitoring.md", "Alert rules")] == alerts


def test_each_incident_names_scenarios_that_are_there_once_and_is_filled_in_whole() -> None:
    found = incidents_page.incidents()
    named = [name for each in found for name in each.scenarios]
    assert set(named) <= SCENARIOS and all(len(set(each.scenarios)) == len(each.scenarios) for each in found)
    assert len({each.incident for each in found}) == len(found) >= 14
    for key in ("scenarios", "verdict", "reproduced"):
        half = {name: each for name, each in found[0].model_dump(mode="json").items() if name != key}
        with pytest.raises(ValidationError, match="belong together"):
            incidents_page.Incident.model_validate(half)


def test_scenarios_that_were_repeated_less_often_are_named() -> None:
    """Who adds a scenario changes the count or the list."""
    text = " ".join((DOCS / "trust.md").read_text().split())
    told = r"(\d+) of the (\d+) scenarios in `scenarios/` .*?\(less often: (.*?)\)"
    ((repeated, shipped, names),) = re.findall(told, text)
    assert BEYOND in text, "what no pass looks at is told in the same words"
    others = re.findall(r"[\w-]{3,}", names)
    assert set(others) <= SCENARIOS
    assert (int(shipped), int(repeated)) == (len(SCENARIOS), len(SCENARIOS) - len(set(others)))


def test_what_is_in_the_folder_of_a_run_is_told() -> None:
    """What a real run leaves there is compared by tests/e2e/test_scenarios.py."""
    text = (ROOT / "reports" / "README.md").read_text()
    names = [run_folder.KEY, run_folder.EVENTS, run_folder.LOGS, run_folder.ANSWERS, *run_folder.FOR_NODES, FOLDER]
    names += [PLAN, REPORT, REHEARSALS, LOG, attach_command.REPORT, baseline.FIGURES]
    assert [name for name in names if f"`{name}" not in text] == []


def test_the_forms_of_one_fault_are_there() -> None:
    section = (DOCS / "architecture.md").read_text().split("\n### The forms of one fault\n")[1].split("\n## ")[0]
    named = re.findall(r"`((?:\w+\.)+[A-Z]\w+)`", section)
    assert len(named) == 10
    for module, _, name in (each.rpartition(".") for each in named):
        assert isinstance(getattr(importlib.import_module(f"harness.{module}"), name), type), name


def test_every_declaration_is_on_the_page_and_in_the_schema() -> None:
    text = page()
    for event in vocabulary.EVENTS:
        assert text.count(f"### `{event.name}`\n") == 1 and event.meaning in text
        names = [field.name for field in (*vocabulary.COMMON, *event.fields)]
        assert len(names) == len(set(names)), "a field is declared twice"
    printed = chaos("schema", "--events")
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == json.loads(json.dumps(json_schema()))
    Draft202012Validator.check_schema(json.loads(printed.stdout))


def test_whatever_is_written_in_this_project_is_declared() -> None:
    declared = {event.name for event in vocabulary.EVENTS}
    for folder in ("harness/run", "harness/faults", "reference_trainer"):
        for path in (ROOT / folder).rglob("*.py"):
            written = re.findall(r'(?:emit|_emit|context\.log|self\.log)\(\s*"([a-z_.]+)"', path.read_text())
            assert set(written) <= declared, path


def test_the_example_of_a_fault_acts_ends_and_is_undone(tmp_path: pathlib.Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (DOCS / "adding-a-fault.md").read_text(), re.DOTALL)
    module = sys.modules["disk_burn"] = types.ModuleType("disk_burn")
    exec(compile(example, "disk_burn", "exec", dont_inherit=True), vars(module))
    fault, context = module.FAULT(size="64KiB", duration="100ms"), FaultContext(tmp_path, waits=True)
    fault.inject([Target(0)], context)
    (path,) = (arguments["path"] for arguments in context.undos)
    assert [effect[3] for effect in context.effects] == [True] and (tmp_path / path).exists()
    fault.see_end([Target(0)], context)
    validate_call(config={"strict": True})(module.UNDO)(run_dir=tmp_path, path=path)
    fault.heal([Target(0)], context)
    fault.see_end([Target(0)], context)
    assert [end[3] for end in context.ends] == [False, True] and context.actions == ["faults.disk_burn"]


def test_no_page_of_a_result_names_a_file_that_an_installed_copy_lacks() -> None:
    templates = [path for kind in ("jinja", "js") for path in (ROOT / "harness").rglob(f"*.{kind}")]
    named = {path.name: found for path in templates if (found := re.findall(r"docs/\S+\.md", path.read_text()))}
    assert len(templates) > 10 and not named
    titles = {text for path in templates for text in re.findall("page “(.+?)” of the documentation", path.read_text())}
    assert titles and titles <= {path.read_text().partition("\n")[0].removeprefix("# ") for path in DOCS.glob("*.md")}


def test_the_page_of_evidence_has_no_words_of_python_itself() -> None:
    text = (DOCS / "evidence.md").read_text()
    python = str, len, isinstance, max, min, sorted, dict, next, iter
    words = [(each.__doc__ or "").splitlines()[0] for each in python]
    assert [each for each in words if each in text] == [] and "``" not in text.replace("```", "")


NEW = "steps_small_loss"
SLOW = """
def test_a_slow_step_contradicts_nothing(tmp_path: pathlib.Path) -> None:
    run = shutil.copytree(RUN, tmp_path / "run")
    before = score(run)
    slow_sync(run, 2_000_000_000)  # less than a standstill
    after = score(run)
    assert (after.verdict, after.report.guarantees) == (before.verdict, before.report.guarantees), after.reasons
"""


CODE, BENT, TOOK_IN = re.findall(r"^```python\n(.*?)^```", (DOCS / "adding-a-guarantee.md").read_text(), re.M | re.S)


def test_the_page_finds_the_restart_that_took_a_replacement_in() -> None:
    names: dict[str, Any] = {}
    exec(f"from __future__ import annotations\n{TOOK_IN}", names)
    run = bent(Job(nodes=2, steps=60, every=10), outages=[Outage(15, "rank"), Outage(17, "node", victim=1)], seed=5)
    evidence = Analysis.of(Evidence(run))
    [came] = [slot for slot in run.slots if slot.incarnation > 1]
    assert len(evidence.restarts) == 3 and names["took_in"](evidence, came) is evidence.restarts[2]
    assert came.allocated < evidence.restarts[2].epoch.begin


def test_the_guarantee_of_the_page_and_its_test_do_what_it_says(tmp_path: pathlib.Path) -> None:
    assert chaos("new", "guarantee", NEW, "--folder", str(tmp_path)).exit_code == 0
    place = tmp_path / "tests" / f"test_{NEW}.py"
    assert (tmp_path / f"chaos_{NEW}" / "guarantee.py").read_text() == CODE
    place.write_text(f"{place.read_text()}\n\n{BENT}\n\n{SLOW}")
    [(group, points)] = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["entry-points"].items()
    info = tmp_path / "team-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: team\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{NEW} = {points[NEW]}\n")
    with tarfile.open(ROOT / "tests" / "rc1" / "rc1.tar.xz") as stored:
        stored.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
        stored.extractall(tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    known = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"}
    run = tmp_path / "tests" / "run"
    assert "copy the folder of a run in which steps.small_loss held to" in place.read_text()
    next((tmp_path / "reports").glob("short-*")).rename(run)
    done = subprocess.run(command, cwd=tmp_path, env=known, capture_output=True, text=True)
    assert "3 passed" in done.stdout, done.stdout + done.stderr
