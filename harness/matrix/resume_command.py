"""Defines the command `chaos matrix resume`, which restarts a job once from each of several saves."""

from __future__ import annotations

import pathlib
import shlex
from dataclasses import replace

from rich.table import Table

from harness.backends.contract import Backend
from harness.cli.output import note, out, print_json, print_table, safe, say
from harness.cli.shared_options import seconds_of
from harness.errors import INTERRUPTED, UsageError
from harness.judge.verdict import EXIT_CODES
from harness.matrix import resume_report
from harness.matrix.resume_matrix import Setting, run_sweep
from harness.matrix.sweep import Sweep
from harness.plan.run_plan import Plan
from harness.run.stop import stop
from harness.units import counted


def sweep(
    plan: Plan,
    engine: Backend,
    reports: pathlib.Path,
    budget: str,
    steps: int | None,
    save_every: int | None,
    files: bool,
    ranks_per_node: int | None,
    also_with: list[str],
    json: bool,
) -> int:
    _check_heard(plan, "--ranks-per-node", "{ranks_per_node}", _with(plan, ranks_per_node=ranks_per_node))
    further = [*dict.fromkeys(_words(plan, each) for each in also_with)]
    setting = Setting(reports, engine, stop, note, seconds_of("--budget", budget), files, ranks_per_node, further)
    found = run_sweep(_changed(plan, steps, save_every), setting)
    resume_report.write(found, reports / found.name)
    if json:
        print_json(resume_report.plain(found))
    else:
        _print(found, reports / found.name)
    return INTERRUPTED if found.interrupted else EXIT_CODES[found.verdict]


def _words(plan: Plan, given: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(given))
    except ValueError as error:
        raise UsageError(f"--also-with {given}: {error}") from error
    if not words or not given.isprintable():
        raise UsageError(f"--also-with {given!r}: write words, such as --num-workers 3")
    workload = plan.workload.trainer.also_with(plan.workload, words)
    for _, why in workload.trainer.problems(workload):
        raise UsageError(f"--also-with {given}: {why}")
    return words


def _changed(plan: Plan, steps: int | None, save_every: int | None) -> Plan:
    rhythm = plan.workload.checkpoint.model_copy(update={"every_steps": save_every, "every": None})
    for name, word, fields in (
        ("--steps", "{steps}", {"steps": steps}),
        ("--save-every", "{checkpoint_every}", {"checkpoint": save_every and rhythm}),
    ):
        changed = _with(plan, **fields)
        _check_heard(plan, name, word, changed)
        plan = changed
    return plan


def _with(plan: Plan, **fields: object) -> Plan:
    given = {name: value for name, value in fields.items() if value is not None}
    return plan.model_copy(update={"workload": plan.workload.model_copy(update=given)})


def _check_heard(plan: Plan, option: str, word: str, changed: Plan) -> None:
    before = replace(plan.launch(), ranks_per_node=changed.workload.ranks_per_node)
    if changed.workload != plan.workload and changed.launch() == before:
        raise UsageError(
            f"{option}: nothing passes it on to this trainer; write {word} into the arguments of the scenario"
        )


def _print(found: Sweep, folder: pathlib.Path) -> None:
    table = Table(*resume_report.HEAD, box=None, header_style="bold")
    for each, cells in zip(found.tried, resume_report.cells(found), strict=True):
        style = "bold red" if not each.right else "yellow" if each.unsure else ""
        table.add_row(*map(safe, cells), style=style)
    for words, why in {**found.lost, **found.not_had}.items():  # each of them was announced
        table.add_row(safe(words), "", "", safe(f"not tried: {why}"), style="dim")
    print_table(table)
    for fact in resume_report.facts(found):
        say(fact)
    for finding in found.findings:
        say(finding, "bold red")
    if not found.findings:
        say(found.why)
    out.print(f"[bold]{found.verdict.value.upper()}[/]  report: {safe(folder / 'report.html')}", soft_wrap=True)
    if found.not_tried:
        had = f" (the job had {found.missed} of them)" if found.missed else ""
        say(f"not tried: {counted(len(found.not_tried), 'moment')}{had}; the report says why")
