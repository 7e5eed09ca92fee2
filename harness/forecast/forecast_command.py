"""Defines the command `chaos forecast`, which forecasts the cost of a large training job."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Annotated

import typer

from harness.cli.output import note, print_figures, print_json, say, write_page
from harness.cli.shared_options import REPORTS, JsonOption, PageOption, ReportsOption, SeedOption
from harness.errors import UsageError
from harness.forecast import answer, forecast_page
from harness.forecast.failure_rates import DEFAULT, load_gaps, load_rates
from harness.forecast.job_model import DAY_S, Job, number
from harness.forecast.measured_inputs import Measured, job_of, read_runs
from harness.forecast.money import SAMPLES, Prices
from harness.forecast.outcome import Question
from harness.forecast.trace_failures import table_of, with_trace
from harness.spec.traces import load_trace

TABLES = "llama3, rsc-1, rsc-2, byterobust-dense, byterobust-moe, infinitehbd"
GPUS_MAX, DAYS_MAX, SAMPLES_MAX = 10_000_000, 3650, 10_000


def forecast(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN…", help="Runs that passed: folders, ids, the beginnings of these, or 'last'."),
    ] = None,
    gpus: Annotated[str, typer.Option(help="GPUs that work; spares come on top.")] = "",
    days: Annotated[str, typer.Option(help="Days that the work takes if nothing fails and nothing is saved.")] = "",
    gpus_per_node: Annotated[str, typer.Option(help="GPUs that fail and are replaced together.")] = "8",
    rates: Annotated[
        str | None, typer.Option(help=f"Failures by cause: {TABLES}, or a file. [default: {DEFAULT}]")
    ] = None,
    failures: Annotated[
        str | None, typer.Option(help="How failures follow each other: poisson or weibull:0.6. [default: poisson]")
    ] = None,
    trace: Annotated[
        pathlib.Path | None,
        typer.Option(metavar="FILE", help="A trace: failures come as in it, and as often if it tells who was there."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An input of your own; several are allowed.")
    ] = None,
    what_if: Annotated[
        list[str] | None, typer.Option(metavar="NAME=0.5x", help="Also with one input changed; several are allowed.")
    ] = None,
    price: Annotated[str | None, typer.Option(help="Dollars of a node-hour on demand.")] = None,
    spot_price: Annotated[str | None, typer.Option(help="Dollars of a spot node-hour.")] = None,
    deadline: Annotated[str | None, typer.Option(help="Days until the work must be done.")] = None,
    tokens_per_second: Annotated[str | None, typer.Option(help="Of the whole job while it works.")] = None,
    samples: Annotated[str, typer.Option(help="Histories that are simulated.")] = "1000",
    vectors: Annotated[bool, typer.Option("--vectors", help="Hold the simulator to published figures.")] = False,
    page: PageOption = None,
    json: JsonOption = False,
    seed: SeedOption = 1,
    reports: ReportsOption = REPORTS,
) -> None:
    """Say what this stack will cost at scale, by runs and failure rates.

    Simulates the whole job many times. Shows the expected failures, days and GPU-hours, the causes of wasted GPU-hours,
    and the best checkpoint interval and number of spare nodes. Each input that was not measured is listed as an
    assumption. Exits 0 for any forecast; with --vectors, exits 1 if the simulator misses a published figure.

    Example: chaos forecast last --gpus 16384 --days 54 --what-if recovery=0.5x --price 32.77 --spot-price 11
    """
    if vectors:
        raise typer.Exit(_vectors(json))
    question = _question(gpus, days, gpus_per_node, samples, seed)
    measured = read_runs(runs or [], reports)
    for why in measured.passed_over:
        note(f"passed over: {why}")
    job, source = _job(question, measured, rates, failures, trace, set_ or ())
    prices = _prices(price, spot_price, deadline, tokens_per_second, question, measured)
    found = answer.forecast(question, job, source, measured, what_if or [], prices)
    if page is not None:
        write_page(page, forecast_page.render(found))
    if json:
        print_json(answer.to_json(found))
    else:
        _print(found, page)


def _question(gpus: str, days: str, gpus_per_node: str, samples: str, seed: int) -> Question:
    if seed < 0:
        raise UsageError(f"--seed {seed}: write a whole number from 0")
    return Question(
        gpus=int(number(gpus, "--gpus", 1, GPUS_MAX, whole=True)),
        days=number(days, "--days", 0.01, DAYS_MAX),
        gpus_per_node=int(number(gpus_per_node, "--gpus-per-node", 1, 1024, whole=True)),
        samples=int(number(samples, "--samples", 10, SAMPLES_MAX, whole=True)),
        seed=seed,
    )


def _job(
    question: Question,
    measured: Measured,
    rates: str | None,
    failures: str | None,
    trace: pathlib.Path | None,
    changes: Sequence[str],
) -> tuple[Job, tuple[str, str]]:
    if failures is not None and trace is not None:
        raise UsageError("--failures and --trace both say how failures follow each other; write one of them")
    name, table = load_rates(rates or DEFAULT)
    told = None if trace is None else load_trace(trace)
    if told and rates is None and (of_trace := table_of(told)):
        name, table = told.name, of_trace
    table = table.of_nodes_with(question.gpus_per_node)
    job = job_of(question.nodes, question.days * DAY_S, table, load_gaps(failures or "poisson"), measured)
    job, source = with_trace(job, told) if told else job, table.source
    for change in changes:
        job = job.changed(change)
        if change.startswith("failure_rate"):
            source += f"; how often, --set {change} says"
    return job, (name, source)


def _prices(
    price: str | None,
    spot: str | None,
    deadline: str | None,
    tokens: str | None,
    question: Question,
    measured: Measured,
) -> Prices | None:
    if price is None:
        given = {"--spot-price": spot, "--deadline": deadline, "--tokens-per-second": tokens}
        if alone := next((name for name, value in given.items() if value is not None), None):
            raise UsageError(f"{alone} needs --price, the dollars of a node-hour on demand")
        return None
    per_s, unit = None, SAMPLES
    if tokens is not None:
        per_s, unit = number(tokens, "--tokens-per-second", 1e-6, 1e15), "tokens"
    elif measured.samples_per_gpu_s:
        per_s = question.gpus * sum(measured.samples_per_gpu_s) / len(measured.samples_per_gpu_s)
    return Prices(
        on_demand=number(price, "--price", 1e-6, 1e6),
        spot=None if spot is None else number(spot, "--spot-price", 1e-6, 1e6),
        deadline_days=None if deadline is None else number(deadline, "--deadline", 0.01, 10 * DAYS_MAX),
        per_s=per_s,
        unit=unit,
    )


def _print(found: answer.Forecast, page: pathlib.Path | None) -> None:
    say(answer.sentence(found), "bold")
    for words in forecast_page.rests_on(found):
        say(words)
    for section in forecast_page.sections(found):
        say("")
        say(section.title, "bold")
        for words in section.words:
            say(words)
        if section.rows:
            print_figures(section.head, section.rows, section.all_text)
    if page is not None:
        say(f"Page: {page}", "dim")


def _vectors(json: bool) -> int:
    from harness.forecast import published_vectors

    rows = published_vectors.check_all()
    if json:
        print_json(published_vectors.to_json(rows))
    else:
        say(published_vectors.markdown(rows))
    return 0 if all(each.ok for each in rows) else 1
