"""The command `chaos matrix`, which restarts a job on damaged saves (`checkpoint`) or from chosen saves (`resume`)."""

from __future__ import annotations

import pathlib
from collections import Counter
from typing import Annotated, Literal

import typer
from rich.table import Table

from harness.backends.contract import Backend, load_backend
from harness.cli.output import note, out, print_json, print_table, safe, say
from harness.cli.scenarios import plan_of
from harness.cli.shared_options import (
    REPORTS,
    SCENARIOS,
    BackendOption,
    JsonOption,
    ReportsOption,
    ScenariosOption,
    SeedOption,
)
from harness.errors import INTERRUPTED, UsageError
from harness.judge.verdict import EXIT_CODES, Verdict
from harness.matrix import resume_command
from harness.matrix.checkpoint_matrix import DamageRow, Matrix, run_matrix
from harness.matrix.restart_log import Came
from harness.plan.capabilities import check_capabilities
from harness.plan.run_plan import Plan
from harness.report import markdown, write_files
from harness.report.strict_json import json_text
from harness.run.stop import stop
from harness.units import counted

HEAD = ("damage", "to", "file", "result", "detail")
_RED = (Came.SILENT, Came.WRONG, Came.SCRATCH)
_BAD = {
    **dict.fromkeys(_RED, "bold red"),
    Came.CRASHED: "yellow",
    Came.STALLED: "bold yellow",
    Came.UNKNOWN: "bold yellow",
}


def matrix(
    what: Annotated[
        Literal["checkpoint", "resume"],
        typer.Argument(help="checkpoint: on damaged saves; resume: from each save that matters."),
    ],
    scenario: Annotated[str, typer.Argument(help="The scenario whose workload is used.")] = "checkpoint-corrupt-latest",
    steps: Annotated[
        int | None, typer.Option(min=1, help="resume: number of steps, in place of the scenario's.")
    ] = None,
    save_every: Annotated[int | None, typer.Option(min=1, help="resume: steps from one save to the next.")] = None,
    budget: Annotated[str, typer.Option(help="resume: begin no further restart after this time.")] = "15m",
    files: Annotated[
        bool, typer.Option("--files", help="resume: fail, too, over a file that only the run without a stop wrote.")
    ] = False,
    ranks_per_node: Annotated[
        int | None, typer.Option(min=1, help="resume: also start from the first save on this number of ranks a node.")
    ] = None,
    also_with: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORDS",
            help="resume: also start from the first save with these words at the end of the trainer's command, such as "
            '"--num-workers 3". May be given several times.',
        ),
    ] = None,
    backend: BackendOption = "local",
    seed: SeedOption = 1,
    json: JsonOption = False,
    reports: ReportsOption = REPORTS,
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """Restart a job on damaged saves, or from each save that matters.

    With checkpoint, the command damages each kind of file of the newest save in every way, and restarts the job on each
    damage. For a save that is one file, the job is restarted about ten times. Exits 1 if a restart loads damaged data,
    or silently starts from scratch although an undamaged save is left. Exits 3 if a restart stalls or cannot be judged.

    With resume, the command restarts the job from selected saves: saves around the end of a pass over the data, a save
    in the middle of a gradient accumulation, the first and the last save, and saves of a resumed job. Each restart must
    do the same steps as the uninterrupted run. Repeat a stopped command to continue it. Exits 1 if a restart differs
    from the uninterrupted run. Exits 3 if a restart from an existing save could not be tried.

    Example: chaos matrix checkpoint my-scenario.yaml
    """
    _, plan = plan_of(scenario, backend, seed, None, scenarios)
    plan = plan.again(plan.run_id.replace(plan.scenario.name, f"matrix-{plan.scenario.name}", 1))
    engine = load_backend(backend)
    check_capabilities(plan.without_faults(plan.run_id), engine.probe())
    if what == "resume":
        changes = steps, save_every, files, ranks_per_node, also_with or []
        raise typer.Exit(resume_command.sweep(plan, engine, reports, budget, *changes, json))
    given: dict[str, object] = {"--steps": steps, "--save-every": save_every, "--files": files}
    given |= {"--ranks-per-node": ranks_per_node, "--also-with": also_with}
    if unfit := next((name for name, value in given.items() if value), None):
        raise UsageError(f"{unfit} is for `chaos matrix resume`")
    raise typer.Exit(_on_damaged_saves(plan, engine, reports, json))


def _on_damaged_saves(plan: Plan, engine: Backend, reports: pathlib.Path, json: bool) -> int:
    found = run_matrix(plan, reports, engine, stop, note)
    write_files({"matrix.json": json_text(_plain(found)), "matrix.md": _page(found)}, reports / found.run_id)
    if json:
        print_json(_plain(found))
    else:
        _print(found, reports / found.run_id)
    return INTERRUPTED if found.interrupted else EXIT_CODES[_verdict(found)]


def _plain(found: Matrix) -> dict[str, object]:
    told: dict[str, object] = {"schema": 2, "run_id": found.run_id, "layout": found.layout, "trainer": found.trainer}
    told |= {"newest_step": found.newest, "complete": not found.interrupted, "verdict": _verdict(found).value}
    cells = [{**vars(row.cell), **vars(row.answer), "seconds": round(row.seconds, 1)} for row in found.rows]
    return told | {"cells": cells}


def _cells(row: DamageRow) -> tuple[str, ...]:
    came, step = row.answer.came.value, row.answer.step
    result = f"{came} to step {step}" if row.answer.came is Came.FELL_BACK else came
    return row.cell.kind, row.cell.part, row.cell.file, result, row.answer.detail


def _page(found: Matrix) -> str:
    facts = "\n".join(f"* {markdown.text(fact)}" for fact in _facts(found))
    return f"# Damaged checkpoints\n\n{facts}\n\n{markdown.table(HEAD, map(_cells, found.rows))}\n"


def _verdict(found: Matrix) -> Verdict:
    came = {row.answer.came for row in found.rows}
    if not came.isdisjoint(_RED):
        return Verdict.FAIL
    unjudged = found.interrupted or not found.rows or came & {Came.STALLED, Came.UNKNOWN} or _not_judged(found)
    return Verdict.INCONCLUSIVE if unjudged else Verdict.PASS


def _not_judged(found: Matrix) -> int:
    return sum(not row.answer.judged for row in found.rows)


def _facts(found: Matrix) -> list[str]:
    same = (
        "bit for bit" if found.deterministic else "not bit for bit: losses are compared within ten times its difference"
    )
    counts = Counter(row.answer.came.value for row in found.rows)
    cut_short = [f"stopped after {len(found.rows)} of {found.planned} damages; the others were not tried"]
    return [
        f"{found.trainer}; layout {found.layout}; newest checkpoint: step {found.newest}",
        f"a restart on an undamaged copy repeats the losses {same}",
        ", ".join(f"{count} {came}" for came, count in counts.most_common()) or "no cell was run",
        *([f"{counted(count, 'restart')} reported no loss to compare"] if (count := _not_judged(found)) else []),
        *(cut_short if found.interrupted else []),
    ]


def _print(found: Matrix, folder: pathlib.Path) -> None:
    table = Table(*HEAD, box=None, header_style="bold")
    for row in found.rows:
        kind, part, file, *told = _cells(row)
        table.add_row(*map(safe, (kind, part, file.rpartition("/")[2], *told)), style=_BAD.get(row.answer.came, ""))
    print_table(table)
    for fact in _facts(found):
        say(fact)
    verdict = _verdict(found).value.upper()
    out.print(f"[bold]{verdict}[/]  report: {safe(folder / 'matrix.md')}", soft_wrap=True)
