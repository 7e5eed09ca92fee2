"""Defines the commands `chaos gate` (runs a suite of scenarios) and `chaos baseline` (stores measurements of runs)."""

from __future__ import annotations

import contextlib
import pathlib
import sys
from typing import Annotated, Any, NoReturn

import typer
from rich.table import Table
from typer.core import TyperCommand

from harness.cli.display import Display
from harness.cli.output import STYLES, err, note, out, print_json, print_table, safe, say
from harness.cli.shared_options import (
    REPORTS,
    SCENARIOS,
    BackendOption,
    JsonOption,
    ReportsOption,
    ScenariosOption,
    SeedOption,
    seconds_of,
)
from harness.cli.summary import SummaryOption, append_summary
from harness.errors import UsageError
from harness.gate import baseline as baselines
from harness.gate import stored_gate
from harness.gate.baseline_comparison import FIGURES as COMPARED
from harness.gate.baseline_comparison import RUNS_MIN, RUNS_USUAL, title
from harness.gate.gate_report import (
    COMPARED_HEAD,
    GateResult,
    clauses,
    compared_cells,
    middle,
    next_steps,
    suite_json,
    yes_or_no,
)
from harness.gate.merging import merge_gates
from harness.gate.run_figures import Figures
from harness.gate.selection import parse_shard
from harness.gate.suite_file import find_suite
from harness.gate.suite_run import Gate, Stopped, run_gate
from harness.judge.verdict import EXIT_CODES, Verdict
from harness.report.commands import step_here
from harness.run.stop import stop
from harness.units import counted

INTERRUPTED = (
    "The gate was interrupted and gives no answer. Its runs that ended are kept in {reports}: `chaos history` lists"
    " them. Call it again for an answer; until then `last` means the gate before it."
)
baseline = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Keep, list and show baselines, which gates are compared with."
)

AgainstOption = Annotated[
    str, typer.Option(help="A baseline: its name, a file, a gate's id, or a commit with stored runs.")
]


def gate(
    suite: Annotated[str, typer.Argument(help="A name in scenarios/suites/, or a path to a YAML file.")],
    against: AgainstOption = "",
    repeat: Annotated[int | None, typer.Option(min=1, max=1000, help="Runs of each scenario; 5 show a trend.")] = None,
    tag: Annotated[str, typer.Option(help="Only the scenarios with this tag.")] = "",
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop after the first scenario that fails.")] = False,
    last_failed: Annotated[
        bool, typer.Option("--last-failed", help="Only scenarios that did not pass in the newest gate of this suite.")
    ] = False,
    add: Annotated[
        str, typer.Option(help="Count the runs of this gate as well: 'last', or its id. With --last-failed, no others.")
    ] = "",
    budget: Annotated[
        str, typer.Option(help="Time for the whole gate, like 20m; the least important scenarios are left out.")
    ] = "",
    shard: Annotated[str, typer.Option(help="One of several machines' part, like 2/4; 'merge' joins them.")] = "",
    backend: BackendOption = "local",
    seed: SeedOption = 1,
    summary: SummaryOption = None,
    json: JsonOption = False,
    reports: ReportsOption = REPORTS,
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """Run a suite and give one verdict. A scenario that must fail runs first.

    The exit code is that of the worst verdict. With --against, the gate fails if recovery time, waste, checkpoint stall
    or success rate became worse, and is inconclusive if there is too little evidence.

    A gate that left out a required scenario is inconclusive.

    `chaos gate merge GATE…` joins the shards of a gate; see `chaos gate merge --help`.

    Example: chaos gate pre-launch --repeat 5 --against last-week
    """
    reports = reports.resolve()
    if shard and (last_failed or add):
        raise UsageError("--shard goes neither with --last-failed nor with --add")
    if shard and against:
        raise UsageError("--shard: all comparisons of a gate are judged together; give --against to `chaos gate merge`")
    with Display(err if json else out) as display:
        setting = Gate(
            *(backend, seed, reports, scenarios, display, stop, against, repeat, tag, fail_fast),
            budget_s=seconds_of("--budget", budget) if budget else None,
            shard=parse_shard(shard) if shard else None,
            last_failed=last_failed,
            add=add,
        )
        try:
            answer = run_gate(find_suite(suite, scenarios), setting)
        except (Stopped, KeyboardInterrupt) as stopped:
            note(INTERRUPTED.format(reports=reports))
            raise KeyboardInterrupt from stopped
    _end(answer, json, reports, summary)


def merge(
    shards: Annotated[
        list[str] | None,
        typer.Argument(help="The gates of all shards: folders, their suite.json, or ids.", metavar="GATE…"),
    ] = None,
    against: AgainstOption = "",
    summary: SummaryOption = None,
    json: JsonOption = False,
    reports: ReportsOption = REPORTS,
) -> None:
    """Join the gates of all shards of a suite into one verdict. The exit codes are those of `chaos gate`.

    Example: chaos gate merge part-1 part-2 --against last-week
    """
    reports = reports.resolve()
    given = [path.parent if path.name == "suite.json" else path for path in map(pathlib.Path, shards or [])]
    folders = [each if (each / "suite.json").exists() else reports / each for each in given]
    _end(merge_gates(folders, reports, against), json, reports, summary)


class GateCommand(TyperCommand):
    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if args[:1] != ["merge"]:
            return super().make_context(info_name, args, parent, **extra)
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command("merge")(merge)
        return typer.main.get_command(app).make_context(f"{info_name} merge", args[1:], parent, **extra)


PARSED_BY = {"gate": GateCommand}


def _end(answer: GateResult, json: bool, reports: pathlib.Path, summary: pathlib.Path | None) -> NoReturn:
    if json:
        print_json(suite_json(answer))
    else:
        _print(answer, reports)
    if summary is not None:
        try:
            append_summary(summary, (reports / answer.run_id / "report.md").read_text())
        except OSError as error:
            note(f"The answer stands, but {summary} could not be written: {error.strerror}")
    raise typer.Exit(EXIT_CODES[answer.verdict])


def _print(answer: GateResult, reports: pathlib.Path) -> None:
    table = Table("verdict", "scenario", "runs", "reason", box=None, header_style="bold")
    for row in answer.rows:
        table.add_row(*map(safe, row.cells[:4]), style=STYLES[row.result.verdict])
    print_table(table)
    for absent in answer.part.left_out:
        say(f"left out: {absent.scenario}: {absent.why}")
    if answer.held is not None:
        out.print(f"Against baseline [bold]{safe(answer.held.baseline)}[/]")
        compared = Table(*COMPARED_HEAD[:-1], box=None, header_style="bold")
        for each in answer.held.answers:
            compared.add_row(*map(safe, compared_cells(each)[:-1]), style=STYLES[each.verdict])
        print_table(compared)
        for reason in answer.held.reasons:
            say(f"  {reason}")
        for untold in answer.held.not_compared:
            say(f"  not compared: {untold}", "dim")
    head, *more = clauses(answer.reason)
    out.print(f"[bold]{answer.verdict.value.upper()}[/]  {safe(head)}", soft_wrap=True)
    for clause in more:
        say(f"  {clause}")
    say(f"Report: {reports / answer.run_id / 'report.html'}", "dim")
    for step in next_steps(answer):
        say(f"  {step_here(step)}")
    out.print(f"[{STYLES[answer.verdict]}]{safe(yes_or_no(answer))}[/]", soft_wrap=True)


@baseline.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="Its name.")],
    source: Annotated[
        str, typer.Option("--from", help="A gate's id, 'last' for the newest gate, a commit, or a file.")
    ] = "last",
    reports: ReportsOption = REPORTS,
) -> None:
    """Store the measurements of a gate, of the runs on a commit, or in a file, as a named baseline.

    Example: chaos baseline set last-week --from last
    """
    figures = baselines.find(source, reports)
    path = baselines.keep(name, figures, reports)
    for line in _in_words(figures):
        say(line)
    say(f"Kept as {name}: {path}")
    with contextlib.suppress(UsageError, OSError, ValueError):  # these figures belong to no stored gate
        if (verdict := stored_gate.read(reports / figures.source).verdict) is not Verdict.PASS:
            note(f"This gate was {verdict}: keep its figures only if you trust this stack.")
    judged = {each.identity.name: [run.verdict in baselines.JUDGED for run in each.runs] for each in figures.scenarios}
    if few := [name for name, runs in judged.items() if sum(runs) < RUNS_MIN]:
        note(
            f"Fewer than {RUNS_MIN} judged runs: {', '.join(few)}. A gate that is held against this can fail, but not"
            f" pass. Make a baseline with: chaos gate SUITE --repeat {RUNS_USUAL}"
        )


@baseline.command("list")
def list_(json: JsonOption = False, reports: ReportsOption = REPORTS) -> None:
    """List the stored baselines."""
    found = {
        name: baselines.find(str(reports / baselines.FOLDER / f"{name}.json"), reports)
        for name in baselines.known(reports)
    }
    if json:
        told = []
        for name, figures in found.items():
            scenarios = [{"scenario": each.identity.name, "runs": len(each.runs)} for each in figures.scenarios]
            head = {"name": name, "source": figures.source, "made_at": figures.made_at, "commits": figures.commits}
            told.append({**head, "scenarios": scenarios})
        print_json(told)
        return
    table = Table("baseline", "made at", "from", "scenarios", "runs", box=None, header_style="bold")
    for name, figures in found.items():
        runs = sum(len(each.runs) for each in figures.scenarios)
        table.add_row(*map(safe, (name, figures.made_at, figures.source, len(figures.scenarios), runs)))
    if found:
        print_table(table)
    else:
        out.print("no baselines yet; `chaos baseline set NAME` keeps the last gate's figures")


@baseline.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A baseline's name, a file, a gate's id, or a commit.")],
    json: Annotated[bool, typer.Option("--json", help="The baseline as a file, to keep or to use elsewhere.")] = False,
    reports: ReportsOption = REPORTS,
) -> None:
    """Show the measurements in a baseline."""
    figures = baselines.find(name, reports)
    if json:
        sys.stdout.write(figures.to_text())
        return
    for line in _in_words(figures):
        say(line)


def _in_words(figures: Figures) -> list[str]:
    lines = [f"From {figures.source or 'an unknown source'}, {figures.made_at}"]
    for each in figures.scenarios:
        identity = each.identity
        judged = [run for run in each.runs if run.verdict in baselines.JUDGED]
        left_out = len(each.runs) - len(judged)
        size = f"{counted(identity.nodes, 'node')} with {counted(identity.ranks_per_node, 'rank')} each"
        place = f"{identity.backend}, {size}"
        machine = ", ".join(f"{key} {value}" for key, value in identity.hardware.items())
        doubtful = f" ({left_out} more were neither pass nor fail: no evidence)" if left_out else ""
        lines.append(f"  {identity.name}: {counted(len(judged), 'run')}{doubtful}; {place}; {machine}")
        medians = []
        for figure in COMPARED:
            if told := [value for run in judged if (value := getattr(run, figure)) is not None]:
                medians.append(f"{title(figure)} {middle(figure, told)}")
        failed = sum(run.verdict is Verdict.FAIL for run in judged)
        lines.append(f"    {', '.join([*medians, f'{failed} of {len(judged)} failed'])}")
    return lines
