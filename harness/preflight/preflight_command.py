"""`chaos preflight`: what is known before a launch."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from harness.cli import path_arguments
from harness.cli.options import REPORTS, JsonOption, ReportsOption
from harness.cli.output import SIGNS, STYLES, print_json, print_table, safe
from harness.errors import UsageError
from harness.judge.verdict import EXIT_CODES, Verdict, merge
from harness.preflight.checklist import VERDICTS, Answer, checklist
from harness.report import junit, write_files
from harness.report.strict_json import strict
from harness.report.words import short_commit
from harness.units import format_duration

DAY_S, HOUR_S = 86_400, 3600

JunitOption = Annotated[
    pathlib.Path | None,
    typer.Option(
        help="Also write the answer into this file, for CI.",
        dir_okay=False,
        callback=path_arguments.file_to_write("--junit"),
    ),
]


def preflight(
    from_stored: Annotated[
        bool, typer.Option("--checklist", help="The checklist before a launch, from stored results alone.")
    ] = False,
    json: JsonOption = False,
    junit: JunitOption = None,
    reports: ReportsOption = REPORTS,
) -> None:
    """Say what is known before a launch: the checklist, from stored results.

    Each item is answered by the newest stored result that says something to it: yes, no, or not tried. Only a gate
    must be of the commit that is checked out here; of the others it is told. Nothing is run.

    Exits 0 if all is yes, 1 if anything is no, and 3 if something was not tried.

    Example: chaos preflight --checklist
    """
    if not from_stored:
        raise UsageError("say what to check: chaos preflight --checklist")
    commit, answers = checklist(reports, pathlib.Path.cwd())
    verdict = merge(VERDICTS[each.answer] for each in answers)
    if junit:
        write_junit(junit, "preflight", [(each.item, VERDICTS[each.answer], each.why) for each in answers])
    if json:
        items = [_values(each) for each in answers]
        print_json(strict({"schema": 1, "verdict": verdict.value, "commit": commit, "items": items}))
    else:
        _print(answers)
    raise typer.Exit(EXIT_CODES[verdict])


def write_junit(file: pathlib.Path, name: str, cases: Sequence[tuple[str, Verdict, str]]) -> None:
    suite = junit.empty_suite(name, [verdict for _, verdict, _ in cases])
    for case, verdict, words in cases:
        junit.case(suite, name, case, verdict, words, words)
    write_files({file.name: junit.document([suite])}, file.parent)


def _values(answer: Answer) -> dict[str, object]:
    proof = answer.proof
    told: dict[str, object] = {"item": answer.item.value, "answer": answer.answer, "why": answer.why}
    told |= {"evidence": str(proof.folder) if proof else None, "age_s": time.time() - proof.at_s if proof else None}
    return told | {"commits": sorted(proof.commits) if proof else [], "same_commit": answer.same_commit}


def _print(answers: Sequence[Answer]) -> None:
    table = Table("", "item", "answer", "age", "commit", "evidence", "why", box=None, header_style="bold")
    for each in answers:
        verdict, of_proof = VERDICTS[each.answer], ("", "", "")
        if proof := each.proof:
            other = ", ".join(sorted(map(short_commit, proof.commits))) or "not told"
            of_proof = _age(time.time() - proof.at_s), "this one" if each.same_commit else other, proof.folder.name
        cells = (SIGNS[verdict], each.item, each.answer, *of_proof, each.why)
        table.add_row(*map(safe, cells), style="" if verdict is Verdict.PASS else STYLES[verdict])
    print_table(table)


def _age(seconds: float) -> str:
    """`3 d`, `5 h`; what is younger in full."""
    for unit, length in (("d", DAY_S), ("h", HOUR_S)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return format_duration(max(0, round(seconds)) * 10**9)
