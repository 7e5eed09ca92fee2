"""Answers the questions of the checklist before a job's launch, each from the newest stored result that can answer
it."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

from harness.campaign.run_store import NotARun, Store, by_log
from harness.campaign.wings import Item, Proof, latest_s, trainers_of, wings
from harness.judge.verdict import Verdict
from harness.report import run_report
from harness.report.words import short_commit
from harness.trainers.shared import checkout

RUNS_MAX = 500  # so many of the newest are read
FEWER_MAX = 0.05  # the last batch of a pass is rarely even, and a run may be short
YES, NO, NOT_TRIED = "yes", "no", "not tried"
VERDICTS = {YES: Verdict.PASS, NO: Verdict.FAIL, NOT_TRIED: Verdict.INCONCLUSIVE}
HOW = {
    Item.RESUMES: "chaos matrix resume SCENARIO, or a run with a restore drill",
    Item.DATA: "chaos run SCENARIO, of a scenario without faults whose trainer tells of the samples of each rank",
    Item.DRY_RUN: "chaos run SCENARIO, of a scenario without faults",
    Item.ALERTS: "chaos gameday PLAN, with an alert that a rehearsal must raise",
    Item.GATE: "chaos gate SUITE",
    Item.GAME_DAY: "chaos gameday PLAN",
    Item.RUNBOOKS: "chaos gameday PLAN, with a runbook for each entry",
    Item.CLUSTER: "chaos preflight SCENARIO",
}


@dataclass(frozen=True)
class Answer:
    """The answer to one question of the checklist before a launch. `same_commit` is True if the stored result was made
    with the commit that is checked out, and `None` if this is unknown."""

    item: Item
    answer: str
    why: str
    proof: Proof | None = None
    same_commit: bool | None = None


def checklist(reports: pathlib.Path, here: pathlib.Path) -> tuple[str | None, list[Answer]]:
    commit, found = checkout.commit_of(here), dict[Item, Proof]()
    for proofs in (*(wing.proofs(reports) for wing in wings()), _of_runs(reports)):
        for proof in proofs:
            if proof.item not in found or proof.at_s > found[proof.item].at_s:
                found[proof.item] = proof
    return commit, [_answer(item, found.get(item), commit) for item in Item]


def _answer(item: Item, proof: Proof | None, commit: str | None) -> Answer:
    if proof is None:
        return Answer(item, NOT_TRIED, f"no stored result tells; make one with: {HOW[item]}")
    same = proof.commits == {commit} and not str(commit).endswith("-dirty") if commit and proof.commits else None
    if proof.verdict is not Verdict.PASS:
        return Answer(item, NO, f"{proof.verdict.value}: {proof.words}", proof, same)
    if item is Item.GATE and not same:
        on = ", ".join(sorted(map(short_commit, proof.commits))) or "a commit that is not told"
        here = short_commit(commit) if commit else "no checkout"
        return Answer(
            item, NO, f"green, but on {on}; here is {here} (*: with changed files): {proof.words}", proof, same
        )
    return Answer(item, YES, proof.words, proof, same)


def _of_runs(reports: pathlib.Path) -> Iterator[Proof]:
    untold = {Item.RESUMES, Item.DATA, Item.DRY_RUN}
    for run in Store(reports).evidence()[:RUNS_MAX]:
        folder = reports / run.run_id
        if run.begun_s > latest_s() or not untold:
            continue
        try:
            has_log = (folder / "events").is_dir()  # which counts, as a report may have been edited
            report = by_log(folder).report if has_log else run_report.read(folder / "report.json")
        except (run_report.ReportError, NotARun):
            continue
        for item, verdict, words in (*_resumes(report), *_data(report), *_dry_run(report)):
            commits = frozenset({report.commit} if report.commit else ())
            untold.discard(item)
            yield Proof(item, verdict, words, folder, run.begun_s, commits, trainers_of(folder / "plan.json"))


Told = Iterator[tuple[Item, Verdict, str]]


def _resumes(report: run_report.Report) -> Told:
    """Yields the verdict on the whole run, because any finding on the run may show that the job does not resume
    correctly."""
    outcome = report.scores.get("last_checkpoint", {}).get("outcome")
    if outcome and "last checkpoint" not in report.not_judged:
        of_run = "" if report.verdict is Verdict.PASS else f"; the run: {(report.reasons or ('no pass',))[0]}"
        yield Item.RESUMES, report.verdict, f"restore drill: {outcome}{of_run}"


def _data(report: run_report.Report) -> Told:
    least, most = (report.metrics.get(f"rank_samples_{which}") for which in ("min", "max"))
    if isinstance(least, int) and isinstance(most, int) and "samples of each rank" not in report.not_judged:
        wrong, short = [], report.metrics.get("batches_short")
        if (fewer := 1 - least / max(most, 1)) > FEWER_MAX:
            wrong.append(f"one has {100 * fewer:.0f} % fewer than another")
        if short and report.verdict is not Verdict.PASS:
            wrong.append(f"{short} batches were short")
        told = "; ".join([f"{least:,} to {most:,} samples a rank", *wrong])
        if wrong and not report.faults:  # a fault may take a rank away, or leave samples out on purpose
            yield Item.DATA, Verdict.FAIL, told
        elif report.verdict is Verdict.PASS and not wrong:
            yield Item.DATA, Verdict.PASS, told


def _dry_run(report: run_report.Report) -> Told:
    if not report.faults and report.run.outcome is not None:
        yield Item.DRY_RUN, report.verdict, f"without faults: {(report.reasons or ('no reason is told',))[0]}"
    elif report.run.fault_free and report.verdict is Verdict.PASS:
        yield Item.DRY_RUN, Verdict.PASS, "the fault-free run of this one"
