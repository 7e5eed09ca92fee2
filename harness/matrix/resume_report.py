"""Shows the results of restarts from several saves of a job as an HTML page, as Markdown, and as JSON values."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Any

from harness.matrix.resume_comparison import Kind
from harness.matrix.sweep import Sweep, Tried, store
from harness.report import html_page, markdown, write_files
from harness.report.words import one_line
from harness.units import counted, format_duration

HEAD = ("resumed from", "at", "steps", "result")
FILES_MAX = 5  # most forgotten files that are named


def write(found: Sweep, folder: pathlib.Path) -> None:
    store(found, folder)
    write_files({"report.md": _markdown(found), "report.html": _page(found)}, folder)


def plain(found: Sweep) -> dict[str, Any]:
    """Returns the results of restarts from several saves as JSON values."""
    tried = [
        {
            "moment": each.moment.told,
            "save": each.moment.save,
            "step": each.moment.step,
            "micro_batches": each.moment.micro_batches,
            "resume": each.moment.resume,
            "nodes": each.moment.nodes,
            "ranks_per_node": each.moment.ranks,
            "also_with": list(each.moment.also),
            "steps_compared": each.steps,
            "to_end": each.to_end,
            "inconclusive": each.unsure,
            "other_tensors": list(each.tensors),
            "seconds": round(each.seconds, 1),
            "right": each.right,
            "result": "; ".join(each.words) or (each.unsure and each.short) or "the same",
            "forgot_files": list(each.beside.words),
            "files_compared": each.beside.compared,
            "files_unseen": each.beside.unseen,
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


def facts(found: Sweep) -> list[str]:
    passes = "passes over the data cannot be told"
    if found.ends is not None:
        ends = ", ".join(map(str, found.ends[:6])) + (", …" if len(found.ends) > 6 else "")
        passes = f"a pass over the data ended at step {ends}" if found.ends else "less than one pass over the data"
    done = f"{counted(found.steps, 'step')} without faults, {found.known_saves}"
    wrong = len(found.wrong)
    took = format_duration(int(1e9 * sum(each.seconds for each in found.tried)))
    facts = [
        f"{found.trainer}: {done}; {passes}",
        f"{counted(len(found.tried), 'restart')} tried, {wrong} went wrong, in {took}",
    ]
    if found.tried:
        facts.append(_followed(found))
    if found.repeats is not None:
        most = max(found.apart.values(), default=0.0)
        differs = f"a repeat of the run differs, by up to {most:.2g} of a figure's size"
        facts.append("a repeat of the run is the same bit for bit" if found.repeats else differs)
    words = {Kind.SAMPLES: "samples", Kind.SCHEDULE: "learning rates", Kind.COMPUTED: "losses and other figures"}
    words |= {Kind.SAVED: "tensors of saves"}
    untold = [text for kind, text in words.items() if not found.compared.get(kind.name)]
    if found.tried:
        facts.append(f"files, beside the state: {_files(found)}")
    return facts + ([f"not compared, as they are not told: {', '.join(untold)}"] if untold and found.tried else [])


def _followed(found: Sweep) -> str:
    ends = dict.fromkeys(each.moment.kind for each in found.tried if each.to_end)
    others = dict.fromkeys(each.moment.kind for each in found.tried if each.moment.kind not in ends)
    words = (
        f"followed to the end of the job: from {_all_of(ends)}" if ends else "none was followed to the end of the job"
    )
    short = "; followed only to some steps after the next save, so that later differences do not show: from "
    return words + (f"{short}{_all_of(others)}" if others else "")


def _all_of(kinds: Iterable[str]) -> str:
    return ", from ".join(kinds)


def _files(found: Sweep) -> str:
    if forgot := dict.fromkeys(words for each in found.tried for words in each.beside.words):
        return "; ".join(list(forgot)[:FILES_MAX])
    most = max(each.beside.compared for each in found.tried)
    seen = f"{most} compared, none is missing" if most else "none could be compared"
    unseen = [f"; not from {each.moment.words}: {each.beside.unseen}" for each in found.tried if each.beside.unseen]
    return seen + "".join(unseen[:FILES_MAX])


def followed(tried: Tried) -> str:
    return f"{tried.steps}, to the end" if tried.to_end else str(tried.steps)


def cells(found: Sweep) -> list[tuple[str, ...]]:
    return [(each.moment.told, each.moment.where, followed(each), each.short) for each in found.tried]


def _markdown(found: Sweep) -> str:
    lines = [f"# Resumes of {one_line(found.trainer)}", "", f"**{found.verdict.value.upper()}**", ""]
    lines += [f"* {one_line(fact)}" for fact in facts(found)]
    lines += ["", markdown.table(HEAD, cells(found)), ""]
    lines += (
        ["## What went wrong", "", *(f"* {one_line(each)}" for each in found.findings), ""] if found.findings else []
    )
    lines += ["## Not tried", ""]
    lines += [markdown.table(("moment", "why"), found.not_tried)]
    return "\n".join(lines) + "\n"


def _page(found: Sweep) -> str:
    came, (done, tried, *others) = found.verdict, facts(found)
    return html_page.fill(
        f"{__package__}/resume.jinja",
        verdict=came.value,
        run_id=found.name,
        summary=found.why,
        facts=[done, tried, *others],
        tried=found.told_once(),
        followed=followed,
        of_saves=found.of_saves,
        not_tried=found.not_tried,
    )
