"""Defines `chaos preflight`, which tests a cluster for a job, or answers the checklist before a launch."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from harness.backends.contract import load_backend
from harness.campaign.experiment import new_run_id
from harness.campaign.wings import Proof, newest
from harness.cli import path_arguments
from harness.cli.display import Display
from harness.cli.output import SIGNS, STYLES, err, note, out, print_json, print_table, safe, say
from harness.cli.scenarios import plan_of
from harness.cli.shared_options import (
    REPORTS,
    SCENARIOS,
    BackendOption,
    JsonOption,
    ProfileOption,
    ReportsOption,
    ScenariosOption,
    SeedOption,
)
from harness.errors import INTERRUPTED, UsageError, choice
from harness.judge.verdict import EXIT_CODES, Verdict, merge
from harness.plan.capabilities import check_capabilities
from harness.plan.run_plan import Plan
from harness.preflight import fitness, preflight_page, stored_evidence
from harness.preflight.checklist import VERDICTS, Answer, checklist
from harness.preflight.checks.contract import check_names, in_order, load_check
from harness.preflight.looking import Setting, look
from harness.preflight.wing import plain
from harness.report import run_report, write_files
from harness.report.strict_json import strict
from harness.report.words import DASH, one_line, short, short_commit
from harness.run.stop import stop
from harness.units import format_duration

DAY_S, HOUR_S = 86_400, 3600
TRAINER_MAX = 200  # characters of a command that are shown

JunitOption = Annotated[
    pathlib.Path | None,
    typer.Option(
        help="Also write the answer into this file, for CI.",
        dir_okay=False,
        callback=path_arguments.file_to_write("--junit"),
    ),
]


def preflight(
    scenario: Annotated[
        str, typer.Argument(help="Whose trainer, nodes and engine are looked at: a name, or a YAML file.")
    ] = "",
    from_stored: Annotated[
        bool, typer.Option("--checklist", help="Instead: the checklist before a launch, from stored results alone.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="Only this check; several are allowed.")
    ] = None,
    keep: Annotated[str, typer.Option(help="Keep the result under this name; without SCENARIO, the newest one.")] = "",
    against: Annotated[str, typer.Option(help="Hold the result against the one that was kept under this name.")] = "",
    faults: Annotated[
        bool, typer.Option("--faults", help="Let the scenario's faults act while nodes measure; asks nothing else.")
    ] = False,
    backend: BackendOption = "local",
    seed: SeedOption = 1,
    profile: ProfileOption = None,
    json: JsonOption = False,
    junit: JunitOption = None,
    reports: ReportsOption = REPORTS,
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """Test a cluster for a job, or say what stored results prove.

    With a scenario, a program on the scenario's nodes checks that devices and software are alike, files of the command
    exist, clocks agree, and no rank, link or storage is slow. The trainer runs once without a fault, and once with a
    rank killed. Each finding names a node, link or rank, and the usual cause.

    With --checklist, each question is answered from the newest stored result that can answer it; nothing is run.

    Exits 0 if the cluster is fit or all answers are yes, 1 if not, and 3 if something is unknown or was not tried.

    Example: chaos preflight my-scenario.yaml --backend slurm --against last-month
    """
    if from_stored == bool(scenario) and not (keep and not scenario):
        raise UsageError("say what to check: chaos preflight SCENARIO, or chaos preflight --checklist")
    if not from_stored:
        chosen, given = _chosen(only or [], faults), (keep, against, faults, json, junit)
        if not scenario:
            fitness.keep(keep, run_report.read_as(_newest(reports) / fitness.KNOWN, fitness.Preflight), reports)
            return
        raise typer.Exit(_look(plan_of(scenario, backend, seed, profile, scenarios)[1], reports, chosen, *given))
    commit, answers = checklist(reports, pathlib.Path.cwd())
    verdict = merge(VERDICTS[each.answer] for each in answers)
    if junit:
        cases = ((each.item, VERDICTS[each.answer], each.why) for each in answers)
        write_files({junit.name: preflight_page.in_junit("preflight", cases)}, junit.parent)
    if json:
        items = [_values(each) for each in answers]
        print_json(strict({"schema": 1, "verdict": verdict.value, "commit": commit, "items": items}))
    else:
        _print(answers)
    raise typer.Exit(EXIT_CODES[verdict])


def _chosen(only: Sequence[str], faults: bool) -> list[str]:
    for name in only:
        if name not in check_names():
            raise UsageError(f"--only {name}: {choice(name, check_names())}")
    chosen = [name for name in in_order(only) if not faults or load_check(name).needs == "nodes"]
    if not chosen:
        raise UsageError(f"--faults: they act while nodes measure, and --only {only[0]} asks the trainer")
    return chosen


def _newest(reports: pathlib.Path) -> pathlib.Path:
    for folder, _ in newest(reports, fitness.KNOWN):
        return folder
    raise UsageError(f"no preflight is in {reports}; make one with: chaos preflight SCENARIO")


def _look(
    plan: Plan,
    reports: pathlib.Path,
    checks: Sequence[str],
    keep: str,
    against: str,
    faults: bool,
    json: bool,
    junit: pathlib.Path | None,
) -> int:
    if keep:
        fitness.check_name(keep)
        if faults:
            raise UsageError("--keep: nothing is held against a preflight with --faults")
    plan, reports = plan.again(new_run_id(f"preflight-{plan.scenario.name}")), reports.resolve()
    before, engine = fitness.kept(against, reports, plan.backend) if against else None, load_backend(plan.backend)
    check_capabilities(plan if faults else plan.without_faults(plan.run_id), engine.probe())
    with Display(err) as display:
        folder = look(plan, Setting(reports, engine, display, stop, checks, against, faults))
    found = stored_evidence.judged(folder, before)
    preflight_page.write(found, folder)
    if junit:
        write_files({junit.name: (folder / "junit.xml").read_text()}, junit.parent)
    if json:
        print_json(strict(plain(found)))
    else:
        _print_found(found, folder)
    if keep and found.verdict is Verdict.PASS:
        fitness.keep(keep, found, reports)
    elif keep:
        note(f"not kept as {keep}: only what is fit is kept")
    return INTERRUPTED if found.interrupted else EXIT_CODES[found.verdict]


def _print_found(found: fitness.Preflight, folder: pathlib.Path) -> None:
    table = Table("", "check", "what was seen", box=None, header_style="bold")
    for each in found.checks:
        sign = SIGNS[each.verdict] if each.verdict else DASH
        style = STYLES[each.verdict] if each.verdict not in (None, Verdict.PASS) else ""
        table.add_row(*map(safe, (sign, each.title, fitness.in_words(each))), style=style)
    print_table(table)
    for _, finding in found.findings:
        say(finding.words, STYLES[Verdict.FAIL if finding.certain else Verdict.INCONCLUSIVE])
        if finding.cause:
            say(f"  usually: {finding.cause}")
    out.print(f"[bold]{found.verdict.value.upper()}[/]  report: {safe(folder / 'report.html')}", soft_wrap=True)


def _values(answer: Answer) -> dict[str, object]:
    proof = answer.proof
    told: dict[str, object] = {"item": answer.item.value, "answer": answer.answer, "why": answer.why}
    told |= {"evidence": str(proof.folder) if proof else None, "age_s": time.time() - proof.at_s if proof else None}
    told |= {"commits": sorted(proof.commits) if proof else [], "same_commit": answer.same_commit}
    return told | {"trainers": sorted(proof.trainers) if proof else []}


def _print(answers: Sequence[Answer]) -> None:
    _print_trainers([each.proof for each in answers if each.proof])
    table = Table("", "item", "answer", "age", "commit", "evidence", "why", box=None, header_style="bold")
    for each in answers:
        verdict, of_proof = VERDICTS[each.answer], ("", "", "")
        if proof := each.proof:
            other = ", ".join(sorted(map(short_commit, proof.commits))) or "not told"
            of_proof = _age(time.time() - proof.at_s), "this one" if each.same_commit else other, proof.folder.name
        cells = (SIGNS[verdict], each.item, each.answer, *of_proof, each.why)
        table.add_row(*map(safe, cells), style="" if verdict is Verdict.PASS else STYLES[verdict])
    print_table(table)


def _print_trainers(proofs: Sequence[Proof]) -> None:
    items = dict[str, list[str]]()
    for proof in proofs:
        for trainer in proof.trainers or {"a trainer that is not told"}:
            items.setdefault(short(one_line(trainer), TRAINER_MAX), []).append(proof.item)
    if len(items) > 1:
        say("The evidence is of different trainers:", STYLES[Verdict.INCONCLUSIVE])
    for trainer, proven in items.items():
        say(f"  {trainer}: {', '.join(proven)}" if len(items) > 1 else f"The evidence is of {trainer}.")


def _age(seconds: float) -> str:
    for unit, length in (("d", DAY_S), ("h", HOUR_S)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return format_duration(max(0, round(seconds)) * 10**9)
