"""Defines the command `chaos run`, which runs a scenario and judges it."""

from typing import Annotated

import typer

from harness.backends.contract import load_backend
from harness.campaign.campaign_observers import Together
from harness.campaign.checked_files import find_plan, load_plan
from harness.campaign.experiment import new_run_id, run_repeatedly
from harness.campaign.fault_free import forget_fault_free
from harness.campaign.repeats import repeat_verdict
from harness.cli import shared_options as options
from harness.cli.display import Display
from harness.cli.exports import Chosen, Telling, offering, watched
from harness.cli.output import err, out, print_json, safe, say
from harness.cli.scenarios import plan_of
from harness.cli.summary import SummaryOption, summary_to
from harness.errors import INTERRUPTED, UsageError
from harness.judge.verdict import EXIT_CODES
from harness.plan.capabilities import check_capabilities
from harness.report.view import in_words
from harness.run.stop import stop


@offering(lambda export: export.live is not None or export.each)
def run(
    context: typer.Context,
    chosen: Chosen,
    scenario: Annotated[str, typer.Argument(help="A name from `chaos list`, or a path to a YAML file.")] = "",
    plan: Annotated[str, typer.Option(help="Instead of a scenario: a stored plan.json, or the run it is from.")] = "",
    backend: options.BackendOption = "local",
    seed: options.SeedOption = 1,
    profile: options.ProfileOption = None,
    repeat: Annotated[int | None, typer.Option(min=1, help="Runs judged together; default: the scenario's.")] = None,
    fresh_fault_free: Annotated[bool, typer.Option("--fresh-fault-free", help="Repeat the fault-free run.")] = False,
    label: options.LabelOption = None,
    max_gpu_hours: options.GpuHoursOption = None,
    summary: SummaryOption = None,
    json: options.JsonOption = False,
    reports: options.ReportsOption = options.REPORTS,
    scenarios: options.ScenariosOption = options.SCENARIOS,
) -> None:
    """Run a scenario and judge it.

    The exit code is 0 for pass, 1 for fail, 3 for inconclusive or invalid, and 4 if the scenario cannot run here.

    Example: chaos run spot-evict --seed 7
    """
    if plan:
        for given in ("scenario", "backend", "seed", "profile"):  # which the plan holds already
            source = context.get_parameter_source(given)
            if source is not None and source.name == "COMMANDLINE":
                raise UsageError(f"--plan: a stored plan has its own {given}; give either the plan or the {given}")
        times, planned = repeat or 1, load_plan(find_plan(plan, reports))
    else:
        spec, planned = plan_of(scenario, backend, seed, profile, scenarios)
        times = repeat or spec.repeat
    planned, stop.cap = planned.labelled(options.labels_of(label)), options.cap_of(max_gpu_hours)
    name = planned.scenario.name
    engine = load_backend(planned.backend)
    check_capabilities(planned, engine.probe())
    title = f"[bold]{safe(name)}[/] · {safe(planned.scenario.title)}"
    console = err if json else out
    console.print(f"{title} · backend {safe(planned.backend)} · seed {planned.seed}", soft_wrap=True)
    if fresh_fault_free:
        forget_fault_free(planned, reports.resolve())
    plans = (planned.again(new_run_id(name)) for _ in range(times))
    folder, telling = reports.resolve(), Telling(chosen, *summary_to(summary))
    with Display(console) as display, watched(display, chosen) as observer:
        cards, interrupted = run_repeatedly(plans, folder, engine, Together(observer, telling), stop)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    result = repeat_verdict(cards)
    if json:
        print_json(
            {
                "verdict": result.verdict.value,
                "reasons": list(result.reasons),
                "runs": [{"folder": str(folder / card.run_id), "verdict": card.verdict.value} for card in cards],
            }
        )
    elif len(cards) > 1:
        out.print(f"[bold]{len(cards)} runs: {result.verdict}[/]")
        for reason in result.reasons:
            say(f"  {in_words(reason)}")
    raise typer.Exit(EXIT_CODES[result.verdict])
