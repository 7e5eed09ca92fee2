"""Lets the harness check suite files, and adds the verdict of the newest suite run to the pre-launch checklist."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

from harness.campaign.checked_files import check_plan, load_scenario
from harness.campaign.wings import FileKind, Item, Proof, Wing, newest, trainers_of
from harness.errors import UsageError
from harness.gate import stored_gate
from harness.gate.suite_file import find_blindness_check, load_suite
from harness.gate.suite_run import load_entries
from harness.report import run_report
from harness.units import counted


def _check(path: pathlib.Path, scenarios: pathlib.Path) -> str:
    suite = load_suite(path)
    entries = load_entries(path, suite, scenarios)
    check_plan(load_scenario(find_blindness_check(suite, path, scenarios)), None)
    for entry, spec in entries:
        check_plan(spec, entry.profile)
    return f"ok, a suite of {counted(len(entries), 'scenario')}"


def _proofs(reports: pathlib.Path) -> Iterator[Proof]:
    for folder, at_s in newest(reports, "suite.json"):
        try:
            gate = stored_gate.read(folder)
        except UsageError:
            continue
        if not (gate.part.shard or gate.part.tag or (gate.part.again and not gate.part.added)):
            names = [run.run_id for row in gate.scenarios if not row.swept for run in row.runs]
            runs = [reports / pathlib.PurePath(name).name for name in names]
            told = [run_report.commit_in(run / "report.json") for run in runs]
            commits = frozenset(each for each in told if each) if all(told) else frozenset()
            words = f"{gate.suite} on {gate.part.backend}: {gate.reason}"
            trainers = trainers_of(*(run / "plan.json" for run in runs))
            yield Proof(Item.GATE, gate.verdict, words, folder, at_s, commits, trainers)
            return


WING = Wing(proofs=_proofs, files=[FileKind("suite", key="scenarios", folder="suites", check=_check)])
