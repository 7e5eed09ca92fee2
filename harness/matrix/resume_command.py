"""`chaos matrix resume`: what a sweep over the saves of a job showed, as a table, a page and JSON."""

from __future__ import annotations

import pathlib
from typing import Any

from pydantic import TypeAdapter, ValidationError
from rich.table import Table

from harness.backends.contract import Backend
from harness.campaign.wings import Swept
from harness.cli.output import note, out, print_json, safe, say
from harness.errors import INTERRUPTED, UsageError
from harness.judge.score import EXIT_CODES, Verdict
from harness.matrix.resume_matrix import Sweep, run_sweep
from harness.plan.model import Plan
from harness.report import html_page, markdown, write_files
from harness.report.words import one_line
from harness.run.stop import stop
from harness.units import Duration, counted, format_duration

HEAD = ("resumed from", "step", "steps", "result")


def sweep(
    plan: Plan,
    engine: Backend,
    reports: pathlib.Path,
    budget: str,
    steps: int | None,
    save_every: int | None,
    json: bool,
) -> int:
    """Makes it, and says what it showed. Returns the exit code."""
    found = run_sweep(_changed(plan, steps, save_every), reports, engine, stop, note, _seconds(budget))
    kept(found, reports)
    if json:
        print_json(_plain(found))
    else:
        _print(found, reports / found.name)
    return INTERRUPTED if found.interrupted else EXIT_CODES[verdict(found)]


def kept(found: Sweep, reports: pathlib.Path) -> Swept:
    """With its pages in its folder."""
    write_files({"resume.md": _markdown(found), "report.html": _page(found)}, reports / found.name)
    return Swept(found.name, verdict(found), found.findings or _facts(found)[-1:])


def verdict(found: Sweep) -> Verdict:
    """What the job never had is no fault of it; what was left over by the budget may be one."""
    if found.findings:
        return Verdict.FAIL
    return Verdict.PASS if found.complete and any(each.steps for each in found.tried) else Verdict.INCONCLUSIVE


def _seconds(text: str) -> float:
    try:
        return TypeAdapter(Duration).validate_python(text).ns / 1e9
    except ValidationError as error:
        raise UsageError(f"--budget {text}: {error.errors(include_url=False)[0]['msg']}") from error


def _changed(plan: Plan, steps: int | None, save_every: int | None) -> Plan:
    """With other steps or saves than the scenario has. Raises `UsageError` where the trainer does not hear of them."""
    workload = plan.workload
    if save_every is not None:
        rhythm = {"every_steps": save_every, "every": None}
        workload = workload.model_copy(update={"checkpoint": workload.checkpoint.model_copy(update=rhythm)})
    if steps is not None:
        workload = workload.model_copy(update={"steps": steps})
    changed = plan.model_copy(update={"workload": workload})
    if changed != plan and changed.launch() == plan.launch():
        raise UsageError("--steps and --save-every: the trainer's command takes neither {steps} nor {checkpoint_every}")
    return changed


def _plain(found: Sweep) -> dict[str, Any]:
    """Stable: `schema` grows with every change of meaning."""
    tried = [
        {
            "moment": each.moment.words,
            "step": each.moment.step,
            "resume": each.moment.resume,
            "nodes": each.moment.nodes,
            "steps_compared": each.steps,
            "seconds": round(each.seconds, 1),
            "right": each.right,
            "result": "; ".join(each.words) or "the same",
            "differs": [one.kind.name.lower() for one in each.found],
        }
        for each in found.tried
    ]
    return {
        "schema": 1,
        "run_id": found.name,
        "trainer": found.trainer,
        "verdict": verdict(found).value,
        "complete": found.complete,
        "steps": found.steps,
        "saves": found.saves,
        "pass_ends": found.ends,
        "repeat_differs_by": found.apart,
        "tried": tried,
        "saves_show": [each.words for each in found.of_saves],
        "not_tried": [{"moment": words, "why": why} for words, why in found.not_tried],
    }


def _facts(found: Sweep) -> list[str]:
    passes = "passes over the data cannot be told"
    if found.ends is not None:
        ends = ", ".join(map(str, found.ends[:6])) + (", …" if len(found.ends) > 6 else "")
        passes = f"a pass over the data ended at step {ends}" if found.ends else "less than one pass over the data"
    done = f"{counted(found.steps, 'step')} without faults, {counted(len(found.saves), 'save')}"
    wrong = sum(not each.right for each in found.tried)
    took = format_duration(int(1e9 * sum(each.seconds for each in found.tried)))
    facts = [
        f"{found.trainer}: {done}; {passes}",
        f"{counted(len(found.tried), 'restart')} tried, {wrong} went wrong, in {took}",
    ]
    if found.apart is not None:
        exact = "a repeat of the run is the same bit for bit"
        facts.append(
            exact if not found.apart else f"a repeat of the run differs by up to {found.apart:.2g} of a figure's size"
        )
    return facts


def _cells(found: Sweep) -> list[tuple[str, ...]]:
    return [(each.moment.words, str(each.moment.step), str(each.steps), each.short) for each in found.tried]


def _markdown(found: Sweep) -> str:
    lines = [f"# Resumes of {one_line(found.trainer)}", "", f"**{verdict(found).value.upper()}**", ""]
    lines += [f"* {one_line(fact)}" for fact in _facts(found)]
    lines += ["", markdown.table(HEAD, _cells(found)), ""]
    lines += (
        ["## What went wrong", "", *(f"* {one_line(each)}" for each in found.findings), ""] if found.findings else []
    )
    lines += ["## Not tried", ""]
    lines += [markdown.table(("moment", "why"), found.not_tried)]
    return "\n".join(lines) + "\n"


def _page(found: Sweep) -> str:
    came, (done, tried, *others) = verdict(found), _facts(found)
    return html_page.fill(
        f"{__package__}/resume.jinja",
        verdict=came.value,
        run_id=found.name,
        summary=found.findings[0] if found.findings else tried,
        facts=[done, *([tried] if found.findings else []), *others],
        tried=found.tried,
        of_saves=found.of_saves,
        not_tried=found.not_tried,
    )


def _print(found: Sweep, folder: pathlib.Path) -> None:
    table = Table(*HEAD, box=None, header_style="bold")
    for each, cells in zip(found.tried, _cells(found), strict=True):
        table.add_row(*map(safe, cells), style="" if each.right else "bold red")
    out.print(table)
    for fact in _facts(found):
        say(fact)
    for finding in found.findings:
        say(finding, "bold red")
    for words, why in found.not_tried:
        say(f"not tried: {words}: {why}")
    out.print(f"[bold]{verdict(found).value.upper()}[/]  report: {safe(folder / 'report.html')}", soft_wrap=True)
