"""Every command that a result prints is run as it was printed, where it was printed: it does the same job again."""

import html
import json
import pathlib
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from simulator import Job, Logs, Outage, simulate
from timeline.test_window import in_sequence
from typer.testing import CliRunner

from harness.backends.contract import backend_names
from harness.campaign.checked_files import ASKED_PLAN, load_scenario
from harness.campaign.wings import sections_of
from harness.cli import default_folders, main
from harness.cli import run as run_command
from harness.evidence.logs import load_evidence
from harness.gameday import day as days
from harness.gameday.day_plan import plan_day
from harness.gate import gate_command
from harness.judge.score import judge
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan
from harness.report import commands, write_files, write_reports
from harness.report.commands import step_here

SHIPPED = pathlib.Path(__file__).resolve().parents[2] / "scenarios"
MINE = {
    "command": ["{python}", "mine.py", "--steps", "{steps}", "--every", "{checkpoint_every}"],
    "env": {"MODE": "small"},
}
OWN: dict[str, Any] = {
    "version": 1,
    "name": "silent-hang",  # as a shipped one is called
    "title": "My own job",
    "workload": {"trainer": MINE, "nodes": 2, "steps": 300, "checkpoint": {"every_steps": 20}},
    "faults": [{"id": "silence", "fault": "hang", "when": {"step": 90}, "target": {"rank": 1}, "duration": "9s"}],
    "profiles": {"long": {"workload": {"steps": 900}}},
}


class Launched(Exception):
    """What would be launched now."""

    def __init__(self, *what: Any):
        super().__init__(*what)
        self.what = what


@pytest.fixture
def reports(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder that commands do not find by themselves. Nothing is launched."""

    def launch(*what: Any) -> Any:
        raise Launched(*what)

    monkeypatch.setattr(run_command, "run_repeatedly", lambda plans, reports, *more: launch([*plans], reports))
    monkeypatch.setattr(run_command, "check_capabilities", lambda *_: None)
    monkeypatch.setattr(gate_command, "run_gate", launch)
    monkeypatch.setattr(commands, "here", commands.Places(str(tmp_path / "re ports")))
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(OWN))
    return tmp_path / "re ports"


def launched(printed: str) -> Any:
    """What comes of a command: its result, or what it would launch."""
    words = shlex.split(printed)[1:]
    result = CliRunner().invoke(main.make_app(), words + ["--help"] * (words[0] in ("heal", "doctor")))
    if isinstance(result.exception, Launched):
        return result.exception.what
    assert result.exception is None or isinstance(result.exception, SystemExit), f"{printed}: {result.exception}"
    assert result.exit_code in (0, 1, 3), f"{printed}: {result.output}"
    return result


def printed_in(folder: pathlib.Path) -> list[str]:
    """By the page, by the report for programs, and by the terminal."""
    page = html.unescape((folder / "report.html").read_text())
    found = re.findall(r"<code>(chaos [^<]+)</code>", page)
    found += [line for block in re.findall(r"<pre>(chaos [^<]+)</pre>", page) for line in block.splitlines()]
    steps = json.loads((folder / "report.json").read_text())["next_steps"]
    shown = CliRunner().invoke(main.make_app(), ["show", str(folder), "--reports", commands.here.reports]).output
    for step in map(step_here, steps):
        assert f"Next: {step}\n" in shown, "in one line, to be copied"
    found += re.findall(r"Next: .*?(chaos [^\n]+)", shown)
    return list(dict.fromkeys(command.strip() for command in found if "…" not in command))


def same_job(plan: Plan) -> dict[str, Any]:
    return plan.to_json() | {"run_id": ""}


def stored(
    reports: pathlib.Path, plan: Plan, before: bool = False, bend: Callable[[Logs], object] = id
) -> pathlib.Path:
    """A run as it lies there, with its reports. `before`: it came no further than its fault-free run."""
    folder, history = reports / plan.run_id, simulate(Job(nodes=2, steps=300, every=20), [Outage(90, "node", 1)], 5)
    logs, told = history.logs(), plan.without_faults(f"{plan.run_id}-fault-free") if before else plan
    logs.told("plan")["plan"] = json.loads(json.dumps(told.to_json()))
    bend(logs)
    history.write(folder, logs)
    write_files(
        {"plan.json": json.dumps(told.to_json())} | ({ASKED_PLAN: json.dumps(plan.to_json())} if before else {}), folder
    )
    write_reports(judge(load_evidence(folder), plan.run_id), folder, sections_of)
    return folder


def interrupted(logs: Logs) -> None:
    logs.harness[-1].update(outcome="interrupted", reason="Ctrl-C")


def shipped(reports: pathlib.Path, name: str = "spot-evict", run_id: str = "spot-evict-7", **more: Any) -> Plan:
    return make_plan(load_scenario(SHIPPED / f"{name}.yaml", more.get("profile")), 7, "local", run_id, **more)


def own(reports: pathlib.Path, profile: str | None = None) -> Plan:
    engine = backend_names()[0]  # none of `chaos run` by default, where there is one
    return make_plan(load_scenario(reports.parent / "mine.yaml", profile), 3, engine, "silent-hang-3", profile)


KINDS: dict[str, tuple[Callable[[pathlib.Path], Plan], dict[str, Any]]] = {
    "a shipped scenario": (shipped, {}),
    "on another profile": (lambda reports: shipped(reports, profile="cluster"), {}),
    "own file": (own, {}),
    "own file, a profile": (lambda reports: own(reports, "long"), {}),
    "interrupted": (own, {"bend": interrupted}),
    "interrupted before its faults": (own, {"bend": interrupted, "before": True}),
    "killed": (own, {"bend": lambda logs: logs.harness.pop()}),
    "one of several": (lambda reports: shipped(reports, run_id="spot-evict-b"), {"beside": "ac"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_run_is_run_again_as_it_was(kind: str, reports: pathlib.Path) -> None:
    planned, how = KINDS[kind]
    for name in how.pop("beside", ""):
        stored(reports, shipped(reports, run_id=f"spot-evict-{name}"))
    plan = planned(reports)
    folder = stored(reports, plan, **how)
    printed = printed_in(folder)
    assert any(command.startswith("chaos run") for command in printed), "else there was nothing to run"
    for command in printed:
        came = launched(command)
        if command.startswith("chaos run"):
            ([again], place) = came
            assert same_job(again) == same_job(plan), command
            assert place == reports.resolve() and again.run_id != folder.name


def a_day(reports: pathlib.Path) -> pathlib.Path:
    """Two rehearsals of the user's own trainer, in one job; the first one was stopped by a person."""
    named = {"version": 1, "name": "silent-hang", "title": "A day"}  # as its first rehearsal
    entries = [{"scenario": "mine.yaml"}, {"scenario": "rank-kill", "name": "second"}]
    written = named | {"workload": OWN["workload"] | {"steps": 4000}, "entries": entries}
    (reports.parent / "day.yaml").write_text(yaml.safe_dump(written))
    run_id = "silent-hang-20260101-000000-0001"
    day = plan_day(reports.parent / "day.yaml", 5, "local", run_id, SHIPPED)
    history, logs = in_sequence(1)
    logs.told("plan")["plan"] = day.job.to_json() | {"faults": logs.plan["faults"]}
    for line in logs.harness:
        if line.get("rehearsal") == "first":
            line["rehearsal"] = "silent-hang"
        if line.get("event") == "plan" and "rehearsal" in line:
            line["plan"] = next(act.plan.to_json() for act in day.acts if act.name == line["rehearsal"])
        if line.get("event") == "rehearsal.finished" and line["rehearsal"] == "silent-hang":
            line.update(outcome="stopped", reason="a person pressed stop")
    folder = history.write(reports / run_id, logs)
    plan = json.dumps(day.job.to_json())
    write_files({days.FILE: json.dumps(day.to_json()), "plan.json": plan}, folder)
    days.judged(folder)
    return folder


@pytest.mark.parametrize("name", ["silent-hang", "second"])
def test_a_rehearsal_of_a_game_day_is_found_and_run_alone_on_the_same_job(name: str, reports: pathlib.Path) -> None:
    day = a_day(reports)
    folder = day / commands.REHEARSALS / name
    act = next(act for act in days.load_day(day).acts if act.name == name)
    assert not json.loads((folder / "report.json").read_text())["run_id"].startswith(day.name)
    ran = 0
    for command in (
        *printed_in(folder),
        f"chaos show {day.name}/rehearsals/{name} --reports {shlex.quote(str(reports))}",
    ):
        came = launched(command)
        if command.startswith("chaos run"):
            ran += 1
            ([plan], _) = came
            assert plan.workload.trainer == act.plan.workload.trainer and plan.workload.steps == 4000
            assert [fault.action for fault in plan.faults] == [fault.action for fault in act.plan.faults]
            assert [fault.targets for fault in plan.faults] == [fault.targets for fault in act.plan.faults]
            assert (plan.seed, plan.expect) == (act.plan.seed, act.plan.expect)
            assert all(fault.when.step and fault.when.more_steps is None for fault in plan.faults)
        else:
            assert name in came.output or command.split()[1] in ("faults", "doctor", "heal")
    assert ran, "a rehearsal says how it is run again"
    before = (folder / "report.json").read_text()
    launched(f"chaos score {shlex.quote(str(folder))} --reports {shlex.quote(str(reports))}")
    assert (folder / "report.json").read_text() == before
    launched(f"chaos score {day.name} --rehearsal {name} --reports {shlex.quote(str(reports))}")
    judged = json.loads((day / f"rehearsal-{name}" / "report.json").read_text())
    assert judged["kept_as"] == f"{day.name}/rehearsals/{name}", "the day's own plan has no faults"


def test_a_command_and_a_page_are_named_where_they_are_found(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again, page = "Again (about 5 s): chaos gate x", "What it takes up: docs/resumes.md"
    for places, step, shown in (
        (commands.Places(), again, again),  # it finds its runs by itself
        (commands.Places("/a b", "/c"), again, f"{again} --reports '/a b' --scenarios /c"),
        (commands.Places("/a b", "/c"), "Undo it: chaos heal", "Undo it: chaos heal"),
        (commands.Places(docs="docs"), page, page),
        (commands.Places(docs="/co/docs"), page, "What it takes up: /co/docs/resumes.md"),
        (commands.Places(docs=""), page, "What it takes up: resumes.md of the documentation"),
        (commands.Places(docs=""), "See docs/a.md#the-part.", "See a.md#the-part of the documentation."),
    ):
        monkeypatch.setattr(commands, "here", places)
        assert step_here(step) == shown
    monkeypatch.chdir(tmp_path)
    assert (pathlib.Path(default_folders.docs()) / "runbooks" / "F7.md").is_file(), "in the checkout"
    monkeypatch.setattr(default_folders, "_ROOT", tmp_path)
    assert default_folders.docs() == "", "an installed copy has none"
