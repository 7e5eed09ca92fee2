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
from harness.judge.score import EXIT_CODES
from harness.matrix.resume_comparison import Kind
from harness.matrix.resume_matrix import Setting, run_sweep
from harness.matrix.sweep import Sweep
from harness.plan.model import Plan
from harness.report import html_page, markdown, write_files
from harness.report.words import one_line
from harness.run.stop import stop
from harness.trainers.contract import Checkpoint
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
    setting = Setting(reports, engine, stop, note, _seconds(budget))
    found = run_sweep(_changed(plan, steps, save_every), setting)
    kept(found, reports)
    if json:
        print_json(_plain(found))
    else:
        _print(found, reports / found.name)
    return INTERRUPTED if found.interrupted else EXIT_CODES[found.verdict]


def kept(found: Sweep, reports: pathlib.Path) -> Swept:
    """With its pages in its folder."""
    write_files({"resume.md": _markdown(found), "report.html": _page(found)}, reports / found.name)
    return Swept(found.name, found.verdict, found.findings or [found.why])


def _seconds(text: str) -> float:
    try:
        return TypeAdapter(Duration).validate_python(text).ns / 1e9
    except ValidationError as error:
        raise UsageError(f"--budget {text}: {error.errors(include_url=False)[0]['msg']}") from error


def _changed(plan: Plan, steps: int | None, save_every: int | None) -> Plan:
    """With other steps or saves than the scenario has. Raises `UsageError` where the trainer does not hear of them."""
    for name, word, fields in (
        ("--steps", "{steps}", {} if steps is None else {"steps": steps}),
        ("--save-every", "{checkpoint_every}", {} if save_every is None else {"checkpoint": _rhythm(plan, save_every)}),
    ):
        changed = plan.model_copy(update={"workload": plan.workload.model_copy(update=fields)})
        if changed.workload != plan.workload and changed.launch() == plan.launch():
            raise UsageError(f"{name}: the command of this trainer does not take {word}")
        plan = changed
    return plan


def _rhythm(plan: Plan, save_every: int) -> Checkpoint:
    return plan.workload.checkpoint.model_copy(update={"every_steps": save_every, "every": None})


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
        "verdict": found.verdict.value,
        "complete": found.complete,
        "steps": found.steps,
        "saves": found.saves,
        "pass_ends": found.ends,
        "repeats_bit_for_bit": found.repeats,
        "compared": found.compared,
        "why": found.why,
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
    if found.repeats is not None:
        most = max(found.apart.values(), default=0.0)
        differs = f"a repeat of the run differs, by up to {most:.2g} of a figure's size"
        facts.append("a repeat of the run is the same bit for bit" if found.repeats else differs)
    words = {Kind.SAMPLES: "samples", Kind.SCHEDULE: "learning rates", Kind.COMPUTED: "losses and other figures"}
    words |= {Kind.SAVED: "tensors of saves"}
    untold = [text for kind, text in words.items() if not found.compared.get(kind.name)]
    return facts + ([f"not compared, as nobody tells them: {', '.join(untold)}"] if untold and found.tried else [])


def _cells(found: Sweep) -> list[tuple[str, ...]]:
    return [(each.moment.words, str(each.moment.step), str(each.steps), each.short) for each in found.tried]


def _markdown(found: Sweep) -> str:
    lines = [f"# Resumes of {one_line(found.trainer)}", "", f"**{found.verdict.value.upper()}**", ""]
    lines += [f"* {one_line(fact)}" for fact in _facts(found)]
    lines += ["", markdown.table(HEAD, _cells(found)), ""]
    lines += (
        ["## What went wrong", "", *(f"* {one_line(each)}" for each in found.findings), ""] if found.findings else []
    )
    lines += ["## Not tried", ""]
    lines += [markdown.table(("moment", "why"), found.not_tried)]
    return "\n".join(lines) + "\n"


def _page(found: Sweep) -> str:
    came, (done, tried, *others) = found.verdict, _facts(found)
    return html_page.fill(
        f"{__package__}/resume.jinja",
        verdict=came.value,
        run_id=found.name,
        summary=found.why,
        facts=[done, tried, *others],
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
    out.print(f"[bold]{found.verdict.value.upper()}[/]  report: {safe(folder / 'report.html')}", soft_wrap=True)
