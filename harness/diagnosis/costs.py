"""Computes how many GPU-hours wrong decisions after failures cost, by comparing runs with the same faults.

Only the training job's own diagnoses count, because the job acts on no other program's diagnoses. Two runs are compared
if the same faults hit the same ranks or nodes. Without runs to compare, the cost is not measured.
"""

from __future__ import annotations

import pathlib
import statistics
from collections.abc import Iterable

from harness.diagnosis.grading import RunGrade
from harness.diagnosis.scores import NOT_MEASURED
from harness.evidence.logs import load_evidence
from harness.judge.facts.analysis import Analysis
from harness.units import counted

NS_PER_HOUR = 3_600 * 10**9


def wasted_by_wrong_decisions(runs: Iterable[tuple[RunGrade, pathlib.Path]]) -> str:
    """Returns a text on the GPU-hours that wrong decisions cost. For each set of faults, the cost is the mean waste of
    runs with a wrong decision, minus the mean waste of runs with only right decisions. Raises `EventLogError` for an
    unreadable run."""
    groups: dict[object, dict[bool, list[pathlib.Path]]] = {}
    for grade, folder in runs:
        if told := [each.decision_right for each in grade.faults if each.decision_right is not None]:
            struck = tuple((each.injected.fault, each.injected.victims) for each in grade.faults)
            groups.setdefault(struck, {True: [], False: []})[all(told)].append(folder)
    pairs = [group for group in groups.values() if group[True] and group[False]]
    if not pairs:
        return NOT_MEASURED
    lost = sum(_mean_hours(group[False]) - _mean_hours(group[True]) for group in pairs)
    wrong = counted(sum(len(group[False]) for group in pairs), "run")
    return f"{lost:+.4f} in {counted(len(pairs), 'comparison')} of {wrong} with a wrong decision"


def _mean_hours(folders: Iterable[pathlib.Path]) -> float:
    return statistics.mean(map(_hours, folders))


def _hours(folder: pathlib.Path) -> float:
    return Analysis.of(load_evidence(folder)).ledger.wasted_by_faults / NS_PER_HOUR
