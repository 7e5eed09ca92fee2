"""Makes the report section "a week at scale": the GPU time that larger jobs waste if they recover like the run."""

from __future__ import annotations

from harness.errors import UsageError
from harness.forecast.answer import LOW_HIGH, big, dollars, hours_text
from harness.forecast.failure_rates import DEFAULT, load_rates
from harness.forecast.job_model import DAY_S, Gaps
from harness.forecast.measured_inputs import RECOVERIES_MAX, Measured, add_report, job_of
from harness.forecast.outcome import Question, outcome_of
from harness.forecast.simulator import simulate
from harness.judge.verdict import Verdict
from harness.report.commands import as_here, copied
from harness.report.run_report import Report
from harness.report.section import Section
from harness.report.words import DASH, percent
from harness.units import counted

SIZES, AT_THE_TOP = (64, 1024, 4096), 1024  # GPUs
WEEKS, SAMPLES = 13, 200


def section_of(report: Report) -> Section | None:
    """Returns the section "a week at scale" of a run's report, or `None` if the run did not pass or measured no usable
    recovery."""
    found = Measured()
    try:
        if report.verdict is Verdict.PASS:
            add_report(found, report)
        del found.recoveries[RECOVERIES_MAX:]
        return _section(report, found) if found.recoveries else None
    except UsageError:
        return None


def _section(report: Report, found: Measured) -> Section:
    name, table = load_rates(DEFAULT)
    asked = [Question(gpus, 7 * WEEKS, samples=SAMPLES) for gpus in SIZES]
    jobs = [job_of(each.nodes, each.days * DAY_S, table, Gaps(), found).completed() for each in asked]
    histories = simulate(jobs, SAMPLES, seed=1)
    price, top, rows = _price(report), "", []
    for place, (question, job) in enumerate(zip(asked, jobs, strict=True)):
        out = outcome_of(question, job, histories, place)
        paid = question.paid_gpus(job) * 7 * 24
        wasted = [paid * (1 - share) for share in (out.goodput.mean, out.goodput.high, out.goodput.low)]
        between = DASH if out.between_h is None else hours_text(out.between_h)
        row = [f"{question.gpus:,}", between, percent(100 * out.goodput.mean), *map(big, wasted)]
        if price is not None:
            mean, low, high = (dollars(price * each) for each in wasted)
            row.append(mean)
            if question.gpus == AT_THE_TOP:
                top = f"At {counted(AT_THE_TOP, 'GPU')}, a stack that recovers like this wastes {mean} a week "
                top += f"(90 %: {low} to {high}) at ${price:,.2f} a GPU-hour."
        rows.append(row)
    wider = f"chaos forecast {report.kept_as or copied(report.run_id)} --gpus 16384 --days 54"
    words = [
        f"What failures, checkpoints and spares take, forecast from the recoveries of this run alone, with the failure "
        f"rates of the table {name} and nodes of 8 GPUs. All assumptions, other sizes and more runs: "
        f"{as_here(wider)}"
    ]
    head = ["GPUs", "a failure every", "goodput", "GPU-h wasted a week", *LOW_HIGH]
    head += [] if price is None else ["dollars a week"]
    return Section("A week at scale", words, head, rows, top=top)


def _price(report: Report) -> float | None:
    wasted = report.wasted_gpu_hours
    if wasted.dollars_wasted is None or not wasted.gpu_seconds_wasted:
        return None
    return wasted.dollars_wasted / wasted.gpu_seconds_wasted * 3600
