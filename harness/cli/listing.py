"""Defines `chaos list`, `faults`, `guarantees` and `runs`, which list scenarios, faults, guarantees and stored runs."""

from __future__ import annotations

import dataclasses
import datetime
import pathlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer
from rich.table import Table

from harness.cli.output import STYLES, note, out, print_json, print_rows, print_table, safe, say
from harness.cli.shared_options import REPORTS, SCENARIOS, JsonOption, ReportsOption, ScenariosOption
from harness.errors import UsageError, choice
from harness.faults.contract import fault_names, load_fault
from harness.judge.verdict import Verdict
from harness.report.commands import pages_here
from harness.report.words import short_commit
from harness.spec.document import short
from harness.spec.scenario import OTHERS, has_key, load_header

if TYPE_CHECKING:  # what is heavy is imported by the command that needs it
    from harness.campaign.run_store import StoredRun
    from harness.judge.guarantee import Guarantee

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])\Z")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_since(text: str, now_s: float | None = None) -> float:
    """Converts a date such as `2026-11-22`, or an age such as `2h` or `7d`, to seconds since 1970. Raises `UsageError`
    for any other text."""
    if match := _AGO.match(text.strip()):
        return (time.time() if now_s is None else now_s) - float(match[1]) * _UNIT_S[match[2]]
    try:
        return datetime.datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--since {text}: write a time like 2026-11-22, or how long ago, like 2h or 7d") from error


Run = TypeVar("Run", bound="StoredRun")
OfBackend = Annotated[str | None, typer.Option("--backend", help="Only the runs on this backend.")]
OfCommit = Annotated[str | None, typer.Option("--commit", help="Only those of this commit, or of its first digits.")]
OfVerdict = Annotated[Verdict | None, typer.Option("--verdict", help="Only those with this verdict.")]
Since = Annotated[
    float | None,
    typer.Option(parser=parse_since, metavar="<time>", help="Only those since 2026-11-22, or 7d or 2h ago."),
]


def list_(
    of_bounds: Annotated[bool, typer.Option("--bounds", help="Each key of `expect:`, with an example.")] = False,
    json: JsonOption = False,
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """List scenarios, suites and game days, or the keys of `expect:`.

    Example: chaos list --bounds
    """
    if of_bounds and json:
        print_json([each._asdict() for each in bounds()])
    elif of_bounds:
        print_rows(("expect", "example", "default", "what it bounds"), bounds())
        say("recovery_time.max is written as  expect: {recovery_time: {max: 60s}}", "dim")
    else:
        _list_scenarios(scenarios, json)


def _list_scenarios(folder: pathlib.Path, json: bool) -> None:
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; say where the scenarios are with --scenarios")
    specs = [load_header(path) for path in sorted(folder.glob("*.yaml"))]
    if json:
        print_json([{"name": spec.name, "title": spec.title, "tags": list(spec.tags)} for spec in specs])
        return
    print_rows(("scenario", "what happens", "tags"), ((each.name, each.title, ", ".join(each.tags)) for each in specs))
    for kind, (key, command) in OTHERS.items():
        files = sorted((folder / kind).glob("*.yaml"))
        if of_kind := [path for path in files if has_key(path, key)]:
            say(f"{kind}: {', '.join(path.stem for path in of_kind)} ({command} NAME)", "dim")
        if others := [path.stem for path in files if path not in of_kind]:
            say(f"beside the {kind}: {', '.join(others)} (a broken trainer that must fail before each gate)", "dim")


def guarantees(
    name: Annotated[str, typer.Argument(help="Only this one, as `restart.newest`.")] = "", json: JsonOption = False
) -> None:
    """List the guarantees that each run must keep; with a name, its details.

    Example: chaos guarantees restart.newest
    """
    from harness.judge import guarantee

    known = guarantee.guarantees()
    if name and name not in known:
        raise UsageError(f"unknown guarantee {short(name)!r}; {choice(name, known)}")
    chosen = {each: known[each] for each in known if name in ("", each)}
    if json:
        print_json([_told(each, held) for each, held in chosen.items()])
        return
    for each, held in chosen.items():
        out.print(f"[bold]{safe(each)}[/]  {safe(guarantee.FAMILY.sentence(each))}", soft_wrap=True)
        for paragraph in guarantee.FAMILY.details(each) if name else ():
            say(f"  {paragraph}")
        for key, value in _told(each, held).items() if name else ():
            if key not in ("name", "statement") and value:
                say(f"  {key.replace('_', ' ')}: {', '.join(value)}")


def _told(name: str, held: Guarantee) -> dict[str, Any]:
    from harness.judge.guarantee import FAMILY

    lists = {key: list(getattr(held, key)) for key in ("holds_for", "rests_on", "explained_by")}
    return {"name": name, "statement": FAMILY.sentence(name), **lists}


def faults(
    name: Annotated[str, typer.Argument(help="Only this one, with its parameters.")] = "", json: JsonOption = False
) -> None:
    """List the faults, and which backends inject them here; with a name, its parameters.

    Example: chaos faults nic_loss
    """
    from harness.cli import machine

    _, capabilities = machine.examine()
    table = [row for row in machine.fault_table(capabilities) if name in ("", row[0])]
    if not table:
        raise UsageError(f"unknown fault {short(name)!r}; {choice(name, fault_names())}")
    if name:
        load_fault(name)  # one that cannot be used says why
    if json:
        values = []
        for name, about, can in table:
            lacking = {backend: "" if answer == "yes" else answer for backend, answer in can.items()}
            works = {backend: {"works": not why, "lacking": why} for backend, why in lacking.items()}
            values.append({"name": name, "about": about, "parameters": _parameters(name), "backends": works})
        print_json(values)
        return
    if not name:
        rows = []
        for each, about, can in table:
            able = [backend for backend, answer in can.items() if answer == "yes"]
            rows.append((each, f"{about.partition('. ')[0].rstrip('.')}.", ", ".join(able) or "no backend"))
        print_rows(("fault", "what it does", "works here on"), rows)
        for backend, capability in capabilities.items():
            if not capability.available:
                say(f"{backend}: {capability.summary}", "dim")
        say("chaos faults NAME: its parameters, its runbook, and what a backend lacks for it", "dim")
        return
    for name, about, can in table:
        out.print(f"[bold]{safe(name)}[/] — {safe(about)}", soft_wrap=True)
        for parameter in _parameters(name):
            default = "required" if parameter["required"] else f"default {parameter['default']}"
            choices = f"; one of: {', '.join(parameter['choices'])}" if parameter["choices"] else ""
            say(f"    {parameter['name']}: {parameter['about']} ({default}{choices})")
        if runbook := load_fault(name).runbook:
            say(pages_here(f"    runbook: docs/runbooks/{runbook}.md"))
        say("    " + "; ".join(f"{backend}: {answer}" for backend, answer in can.items()))


def _parameters(name: str) -> list[dict[str, Any]]:
    try:
        fault = load_fault(name)
    except UsageError:  # its row says why
        return []
    schema = fault.model_json_schema().get("properties", {})
    return [
        {
            "name": key,
            "about": field.description or "",
            "required": field.is_required(),
            "default": None if field.is_required() or field.default is None else str(field.default),
            "choices": [str(each) for each in schema.get(key, {}).get("enum", ())],
        }
        for key, field in fault.model_fields.items()
    ]


class Bound(NamedTuple):
    """A key that a scenario may set under `expect:`. `default` is empty if the bound is judged only when the scenario
    sets it."""

    key: str
    example: str
    default: str
    about: str


def bounds() -> Iterator[Bound]:
    from harness.campaign.checked_files import score_bounds

    for score, allowed in score_bounds().items():
        schema = allowed.bounds.model_json_schema()
        if allowed.by_default:
            yield Bound(score, "off", "judged", str(schema["description"]).removeprefix("Nothing to set; "))
        for name, field in schema.get("properties", {}).items():
            default = field.get("default")
            shown = "" if default in (None, {}) else _written(default, field)
            yield Bound(f"{score}.{name}", _example(field), shown, field["description"])


def _example(field: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        return _example(field["anyOf"][0])
    if field.get("type") == "object":
        return f"{{{field['propertyNames']['enum'][-1]}: {_example(field['additionalProperties'])}}}"
    usual = {"integer": 2, "number": 10.0, "boolean": True, "string": "out of memory"}
    known = field.get("examples") or field.get("enum", ())[-1:] or [usual[str(field["type"])]]
    return _written(known[0], field)


def _written(value: object, field: Mapping[str, Any]) -> str:
    text = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
    return f"{text}%" if str(field.get("pattern", "")).endswith("%$") else text


def runs(
    scenario: Annotated[str | None, typer.Option(help="Only the runs of this scenario.")] = None,
    backend: OfBackend = None,
    commit: OfCommit = None,
    verdict: OfVerdict = None,
    since: Since = None,
    json: JsonOption = False,
    reports: ReportsOption = REPORTS,
) -> None:
    """List the stored runs and their verdicts, newest first.

    Example: chaos runs --scenario spot-evict --verdict fail --since 7d
    """
    from harness.campaign.run_store import Store, Wanted

    store, wanted = Store(reports), Wanted(scenario, backend, commit, verdict, since)
    found = store.runs(wanted)
    for trouble in store.notes:
        note(f"note: {trouble}")
    if json:
        values = [dataclasses.asdict(run) | {"begun_at": run.begun_at, "commit": run.commit or None} for run in found]
        for each in values:
            del each["begun_s"]
        print_json(values)
        return
    if found:
        print_runs(found)
    else:
        out.print(f"{'no run matches' if wanted != Wanted() else 'no runs yet'} in {safe(reports)}", soft_wrap=True)


def print_runs(runs: Iterable[Run], figures: Mapping[str, Callable[[Run], str]] = {}) -> None:
    table = Table(box=None, header_style="bold")
    table.add_column("run", no_wrap=True)
    for name in ("begun, UTC", "scenario", "backend", "commit", "verdict", *figures):
        table.add_column(name)
    for run in runs:
        told = (run.run_id, run.begun_at[:16].replace("T", " "), run.scenario, run.backend, short_commit(run.commit))
        verdict = f"[{STYLES[run.verdict]}]{run.verdict}[/]" if run.verdict else "not judged"
        table.add_row(*map(safe, told), verdict, *(figure(run) for figure in figures.values()))
    print_table(table)
