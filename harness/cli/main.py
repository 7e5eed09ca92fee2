"""The commands. The only place where an error becomes an exit code, and where anything is printed."""

from __future__ import annotations

import json
import pathlib
import shutil
import signal
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.backends.contract import Verb, load_backend
from harness.backends.request_text import native_text
from harness.campaign.experiment import new_run_id, run_repeatedly
from harness.campaign.fault_free import forget_twins
from harness.campaign.gate import Gate, find_suite, run_gate
from harness.cli import doctor as doctor_module
from harness.cli.terminal import STYLES, print_scorecard
from harness.errors import ChaosError, UsageError
from harness.faults.contract import fault_names, load_fault
from harness.judge import tells
from harness.judge.evidence import find_run, load_evidence
from harness.judge.repeats import together
from harness.judge.score import EXIT_CODES, Scorecard, Verdict, expects_something, judge
from harness.plan.making import Plan, check_capabilities, make_plan
from harness.report import write_reports
from harness.run import undo
from harness.spec.scenario import Scenario, find_scenario, json_schema, load_scenario
from harness.trainers.workload import render_workload

INTERRUPTED = 130
_ROOT = pathlib.Path(__file__).resolve().parents[2]

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

ScenarioArg = Annotated[str, typer.Argument(help="A name in scenarios/, or a path to a YAML file.")]
RunArg = Annotated[str, typer.Argument(help="A run's folder, its id or the beginning of it, or 'last'.")]
BackendOption = Annotated[str, typer.Option(help="Where the nodes are.")]
SeedOption = Annotated[int, typer.Option(help="Decides everything that is random.")]
ProfileOption = Annotated[str | None, typer.Option(help="A profile of the scenario, e.g. cluster.")]
ReportsOption = Annotated[pathlib.Path, typer.Option(help="Where runs are kept.", envvar="CHAOS_REPORTS")]
ScenariosOption = Annotated[pathlib.Path, typer.Option(help="Where scenarios are looked up.", envvar="CHAOS_SCENARIOS")]

REPORTS = _ROOT / "reports"
SCENARIOS = _ROOT / "scenarios"


@app.command()
def run(
    scenario: ScenarioArg,
    backend: BackendOption = "local",
    seed: SeedOption = 1,
    profile: ProfileOption = None,
    repeat: Annotated[int | None, typer.Option(min=1, help="How often; default: what the scenario says.")] = None,
    fresh_twin: Annotated[bool, typer.Option("--fresh-twin", help="Make the fault-free run anew.")] = False,
    reports: ReportsOption = REPORTS,
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """Runs a scenario and judges it. Exit: 0 pass, 1 fail, 3 inconclusive or invalid, 4 cannot run here."""
    spec, plan = _plan(scenario, backend, seed, profile, scenarios)
    engine = load_backend(backend)
    check_capabilities(plan, engine.probe())
    out.print(f"[bold]{spec.name}[/] · {spec.title} · backend {backend} · seed {seed}")
    if fresh_twin:
        forget_twins(plan, reports.resolve())
    times = repeat or spec.repeat
    plans = [plan, *(make_plan(spec, seed, backend, new_run_id(spec.name), profile) for _ in range(times - 1))]
    cards, interrupted = run_repeatedly(plans, reports.resolve(), engine, out, _show)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    result = together(cards)
    if len(cards) > 1:
        out.print(f"[bold]{len(cards)} runs: {result.verdict}[/]")
        for reason in result.reasons:
            out.print(f"  {reason}", markup=False, soft_wrap=True)
    raise typer.Exit(EXIT_CODES[result.verdict])


@app.command()
def gate(
    suite: Annotated[str, typer.Argument(help="A name in scenarios/suites/, or a path to a YAML file.")],
    backend: BackendOption = "local",
    seed: SeedOption = 1,
    reports: ReportsOption = REPORTS,
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """Rehearses a suite of scenarios, after a canary that must fail. Exits by the worst verdict."""
    setting = Gate(backend, seed, reports.resolve(), scenarios, out, _show)
    answer = run_gate(find_suite(suite, scenarios), setting)
    table = Table("verdict", "scenario", "runs", "reason", box=None, header_style="bold")
    for row in answer.rows:
        table.add_row(*map(escape, row.cells[:4]), style=STYLES[row.result.verdict])
    out.print(table)
    out.print(f"[bold]{answer.verdict.value.upper()}[/]  {escape(answer.reason)}", soft_wrap=True)
    out.print(f"Report: {reports / answer.run_id / 'report.html'}", style="dim", soft_wrap=True)
    raise typer.Exit(EXIT_CODES[answer.verdict])


@app.command()
def score(run: RunArg, reports: ReportsOption = REPORTS) -> None:
    """Judges a stored run again, from its event log alone."""
    raise typer.Exit(EXIT_CODES[_judge(find_run(run, reports))])


@app.command()
def report(run: RunArg, reports: ReportsOption = REPORTS) -> None:
    """Writes a stored run's report files again. Exits 0 whatever the verdict."""
    _judge(find_run(run, reports))


@app.command(name="list")
def list_(
    faults: Annotated[bool, typer.Option("--faults", help="The faults, not the scenarios.")] = False,
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """The scenarios, or with --faults every fault: what it does, its parameters, and where it works."""
    if faults:
        _list_faults()
        return
    table = Table("scenario", "what happens", "tags", box=None, header_style="bold")
    for path in sorted(scenarios.glob("*.yaml")):
        spec = load_scenario(path)
        table.add_row(spec.name, spec.title, ", ".join(spec.tags))
    out.print(table)


@app.command()
def validate(files: Annotated[list[str], typer.Argument(help="Scenario files or names.")]) -> None:
    """Checks scenario files, with all their profiles, without running anything."""
    problems: list[str] = []
    for name in files:
        try:
            path = find_scenario(name, SCENARIOS)
            spec = load_scenario(path)
            for profile in (None, *spec.profiles):
                make_plan(load_scenario(path, profile), 1, "local", "validate", profile)
            blind = (
                "" if expects_something(spec.expect) else ", but it expects nothing: it passes whatever its faults cost"
            )
            out.print(f"{path}: ok{blind}")
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise UsageError("\n".join(problems))


@app.command()
def schema() -> None:
    """The JSON Schema of scenario files, for editors."""
    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")


@app.command()
def explain(
    scenario: ScenarioArg,
    backend: BackendOption = "local",
    seed: SeedOption = 1,
    profile: ProfileOption = None,
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """What will be done to what, in words. Launches nothing."""
    spec, plan = _plan(scenario, backend, seed, profile, scenarios)
    for line in _explanation(spec, plan):
        out.print(line, soft_wrap=True)


@app.command()
def plan(
    scenario: ScenarioArg,
    backend: BackendOption = "local",
    seed: SeedOption = 1,
    profile: ProfileOption = None,
    as_: Annotated[str, typer.Option("--as", help="For an engine with a choice, e.g. jobset on kubernetes.")] = "",
    output: Annotated[str, typer.Option("--output", "-o", help="yaml or json.")] = "yaml",
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """What would be asked of the backend's engine, in its own words. Asks nothing of it, launches nothing."""
    if output not in ("yaml", "json"):
        raise UsageError(f"--output {output}: allowed are yaml and json")
    spec, planned = _plan(scenario, backend, seed, profile, scenarios)
    engine, workload = load_backend(backend), render_workload(planned)
    request = engine.render_as(workload, as_, spec.name) if as_ or engine.kinds else engine.render(workload)
    sys.stdout.write(native_text(request, output))


@app.command()
def doctor() -> None:
    """Which backends and faults work on this machine, and what is missing for the rest."""
    findings, capabilities = doctor_module.examine()
    for finding in findings:
        out.print(f"{_mark(finding.ok)} {finding.what}: {escape(finding.detail)}", soft_wrap=True)
    for name, capability in capabilities.items():
        out.print(
            f"{_mark(capability.available)} [bold]backend {name}[/]: {escape(capability.summary)}", soft_wrap=True
        )
        for verb in Verb:
            if capability.available and verb not in capability.verbs:
                reason = capability.missing.get(verb, "not there")
                out.print(f"    {_mark(False)} {verb.value}: {escape(reason)}", soft_wrap=True)
    for name, _, can in doctor_module.fault_table(capabilities):
        words = "; ".join(f"{backend}: {can[backend]}" for backend in can if capabilities[backend].available)
        words = words or "no backend runs here"
        out.print(f"{_mark('yes' in can.values())} fault {name} — {escape(words)}", soft_wrap=True)
    if not all(finding.ok for finding in findings) or not any(c.available for c in capabilities.values()):
        raise typer.Exit(4)


@app.command()
def heal(reports: ReportsOption = REPORTS) -> None:
    """Undoes whatever killed runs left behind. Touches only what this harness made. Idempotent."""
    healed, failed = map(list.__add__, undo.heal(reports), undo.heal_strays())
    out.print(f"healed {', '.join(healed)}" if healed else "nothing to heal")
    if failed:
        raise ChaosError("\n".join(failed))


def _plan(name: str, backend: str, seed: int, profile: str | None, scenarios: pathlib.Path) -> tuple[Scenario, Plan]:
    load_backend(backend)
    spec = load_scenario(find_scenario(name, scenarios), profile)
    return spec, make_plan(spec, seed, backend, new_run_id(spec.name), profile)


def _judge(run_dir: pathlib.Path) -> Verdict:
    scorecard = judge(load_evidence(run_dir), run_dir.name)
    _show(scorecard, write_reports(scorecard, run_dir))
    return scorecard.verdict


def _show(card: Scorecard, files: Mapping[str, pathlib.Path]) -> None:
    print_scorecard(card, files, out)


def _explanation(spec: Scenario, plan: Plan) -> list[str]:
    work = plan.workload
    trainer = "the reference trainer" if work["trainer"] == "reference" else " ".join(work["trainer"]["command"])
    world = work["nodes"] * work["ranks_per_node"]
    lines = [
        f"[bold]{spec.name}[/]: {spec.title}",
        f"{trainer} runs {work['steps']} steps on {work['nodes']} nodes with {work['ranks_per_node']} rank(s) each "
        f"({world} ranks); it may go on with {work['min_nodes']}. "
        f"A checkpoint every {work['checkpoint']['every_steps']} steps.",
        "First the same run without any fault (its twin), unless one with this seed is cached.",
    ]
    for planned in plan.faults:
        fault, targets = planned.build()
        lines.append(f"  {planned.id}: {_when_in_words(planned.when)}, {fault.describe(targets)}.")
    if nodes_at_once := plan.limits.get("nodes_at_once"):
        lines.append(f"  Never more than {nodes_at_once} node(s) with a fault at work: another fault waits.")
    if cool_down_ns := plan.limits.get("cool_down_ns"):
        lines.append(f"  After each recovery {cool_down_ns / 1e9:g} s of peace.")
    for name, bounds in plan.expect.items():
        lines.append(f"  expects {name}: {_bounds_in_words(bounds)}")
    lines += tells.forecast(plan.to_json(), plan.expect)
    lines.append(
        f"Seed {plan.seed}. Aborts when no step comes for {plan.abort['if_no_step_for_ns'] / 1e9:g} s, "
        f"or after {plan.abort['wall_clock_ns'] / 1e9:g} s. Everything is undone at the end. Nothing was launched."
    )
    return lines


def _bounds_in_words(bounds: Mapping[str, Any] | str) -> str:
    if isinstance(bounds, str):
        return bounds
    return ", ".join(f"{key} {value}" for key, value in bounds.items()) or "nothing in particular"


def _when_in_words(when: Any) -> str:
    after = f"{when['after_ns'] / 1e9:g} s after " if "after_ns" in when else ""
    base = f"{when['following']} is {when['event']}" if "following" in when else "the start"
    parts = []
    if "step" in when:
        parts.append(f"when every rank has completed step {when['step']}")
    if "following" in when or after:
        parts.append(f"{after or 'once '}{base}")
    if "phase" in when:
        parts.append(f"as soon as a rank enters {when['phase']}")
    return ", ".join(parts)


def _list_faults() -> None:
    _, capabilities = doctor_module.examine()
    for name, about, can in doctor_module.fault_table(capabilities):
        out.print(f"[bold]{name}[/] — {about}", soft_wrap=True)
        for key, field in load_fault(name).model_fields.items():
            default = "required" if field.is_required() else f"default {field.default}"
            out.print(f"    {key}: {field.description or ''} ({default})", soft_wrap=True)
        out.print("    " + "; ".join(f"{backend}: {answer}" for backend, answer in can.items()), soft_wrap=True)
    assert fault_names()


def _mark(ok: bool) -> str:
    return "[green]✓[/]" if ok else "[red]✗[/]"


def main() -> None:
    """Runs the command line; every way out is one clear message and a meaningful exit code."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        # Without standalone mode the exit code is what comes back, and nothing turns it into this process's own.
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except ChaosError as error:
        err.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        err.print("interrupted")
        sys.exit(INTERRUPTED)
    except OSError as error:
        err.print(f"error: {_disk_words(error)}", style="red", markup=False, soft_wrap=True)
        sys.exit(3)
    except Exception as error:  # the command line's own mistakes; typer keeps their common class to itself
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        sys.exit(2)


def _as_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _disk_words(error: OSError) -> str:
    free = shutil.disk_usage(".").free / 2**20
    return f"{error.strerror}: {error.filename or ''} ({free:.0f} MiB free on this disk)"
