"""Joins the results of a gate's shards from several machines, after checking that the shards belong to one gate."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from harness.campaign import run_store
from harness.campaign.experiment import new_run_id
from harness.campaign.repeats import RepeatVerdict
from harness.errors import UsageError
from harness.gate import baseline, run_figures, stored_gate
from harness.gate.baseline_comparison import Regressions
from harness.gate.gate_report import GateResult, SuiteRow, render
from harness.gate.run_figures import Figures, ScenarioFigures
from harness.gate.stored_gate import LeftOut, Part, Stored
from harness.gate.suite_run import decided
from harness.judge.verdict import Verdict
from harness.report import write_files
from harness.report.run_report import ReportError
from harness.report.words import one_line

SHARDS_MAX = 1000
NOT_CAUGHT = "its blindness check, which must fail, did not fail in each of its runs"


def merge_gates(folders: Sequence[pathlib.Path], reports: pathlib.Path, against: str = "") -> GateResult:
    """Joins the results of a gate's shards into one result, and writes the report of the whole gate. Raises
    `UsageError` if the shards are of different suites, backends or seeds. If a shard is missing, the whole gate cannot
    pass. The result is invalid if the blindness check (a scenario that must fail) of any shard did not fail."""
    parts = [(folder, stored_gate.read(folder)) for folder in folders]
    if not parts:
        raise UsageError("chaos gate merge needs the gates of all shards, by folder or id")
    _check([stored for _, stored in parts])
    measured = [found for folder, stored in parts for found in _figures(folder, stored)]
    parts = [(folder, _by_logs(stored, folder.parent)) for folder, stored in parts]
    first = parts[0][1]
    rows = tuple(_row(row) for _, stored in parts for row in stored.scenarios)
    sets = tuple(each for each in measured if each)
    merged = Figures(source=new_run_id(first.suite), made_at=baseline.now(), scenarios=sets)
    part = _whole([stored.part for _, stored in parts], [row.name for row in rows])
    check_row = _row(first.blindness_check)
    # A gate that stopped after its blindness check ran no scenario and left none out.
    blind = [
        stored
        for _, stored in parts
        if not _caught(stored.blindness_check) or (stored.verdict is Verdict.INVALID and not stored.scenarios)
    ]
    own = (stored.reason if stored.verdict is Verdict.INVALID else NOT_CAUGHT for stored in blind[:1])
    reason = f"shard {blind[0].part.shard}: {next(own)}" if blind else ""
    answer = GateResult(first.suite, first.title, merged.source, Verdict.INVALID, reason, check_row, part=part)
    if not blind:
        held = _compared(against, list(zip(rows, measured, strict=True)), reports)
        answer = decided(replace(answer, rows=rows, held=held))
        red = [stored for _, stored in parts if stored.verdict is Verdict.FAIL and answer.verdict is not Verdict.FAIL]
        if red:  # by its own comparison with a baseline, or by an altered file
            said = f"shard {red[0].part.shard} says fail: {red[0].reason}"
            answer = replace(answer, verdict=Verdict.FAIL, reason=said)
    folder = reports / answer.run_id
    folder.mkdir(parents=True)
    write_files({**render(answer), baseline.FIGURES: merged.to_text()}, folder)
    return answer


def _check(parts: Sequence[Stored]) -> None:
    first = parts[0]
    seen: set[int] = set()
    for stored in parts:
        part = stored.part
        if part.shard is None or part.shards is None or not part.shard <= part.shards <= SHARDS_MAX:
            why = "leave it out if it is a merge itself, or run it with"
            raise UsageError(f"gate {stored.run_id} is not a shard; {why} --shard 1/{len(parts)}")
        if (stored.suite, part.same) != (first.suite, first.part.same):
            raise UsageError(
                f"gate {stored.run_id} has another suite, backend, seed or number of shards than {first.run_id}"
            )
        if part.shard in seen:
            raise UsageError(f"gate {stored.run_id}: shard {part.shard} of {part.shards} is given twice")
        seen.add(part.shard)
    runs = Counter(run.run_id for stored in parts for row in stored.scenarios for run in row.runs)
    if twice := next((name for name, count in runs.items() if count > 1), None):
        raise UsageError(f"run {one_line(twice)} is in two places")


def _whole(parts: Sequence[Part], ran: Sequence[str]) -> Part:
    first = parts[0]
    left_out = [each for part in parts for each in part.left_out]
    told = Counter([*ran, *(each.scenario for each in left_out)])
    if more := sorted((told - Counter(first.names)).elements()):
        raise UsageError(f"the shards hold {one_line(more[0])} more often than the suite")
    missing = sorted(set(range(1, (first.shards or 0) + 1)) - {part.shard for part in parts})
    if not missing:
        untold = (Counter(first.names) - told).elements()
        left_out += [LeftOut(name, "no shard holds it", True) for name in untold]
    left_out += [LeftOut(f"shard {number} of {first.shards}", "it was not given", True) for number in missing]
    whole = {"shard": None, "shards": None, "left_out": tuple(left_out), "again": False, "added": ""}
    return msgspec.structs.replace(first, **whole)


def _row(row: stored_gate.Row) -> SuiteRow:
    runs = row.runs
    result = RepeatVerdict(row.verdict, row.reasons)
    expected = Verdict.FAIL if row.known_failure else Verdict.PASS
    bad = next((run for run in runs if run.verdict is not expected), None)
    if row.verdict is Verdict.PASS and (bad or not runs):
        why = f"run {bad.run_id} is {bad.verdict}" if bad else "it has no runs"
        result = RepeatVerdict(Verdict.INCONCLUSIVE, (f"the shard says pass, but {why}", *row.reasons))
    return SuiteRow(row.scenario, row.title, result, known=row.known_failure, stored=runs, swept=row.swept)


def _by_logs(stored: Stored, reports: pathlib.Path) -> Stored:
    def by_log(run: stored_gate.Run) -> stored_gate.Run:
        folder = reports / pathlib.PurePath(run.run_id).name
        if not (folder / "events").is_dir():
            return run
        try:
            return stored_gate.Run(run.run_id, run_store.by_log(folder).run.verdict or Verdict.INCONCLUSIVE)
        except (ReportError, run_store.NotARun):
            return stored_gate.Run(run.run_id, Verdict.INCONCLUSIVE)

    def held(row: stored_gate.Row) -> stored_gate.Row:
        return row if row.swept else msgspec.structs.replace(row, runs=tuple(map(by_log, row.runs)))

    rows, check = tuple(map(held, stored.scenarios)), held(stored.blindness_check)
    return msgspec.structs.replace(stored, scenarios=rows, blindness_check=check)


def _caught(check: stored_gate.Row) -> bool:
    return check.verdict is Verdict.FAIL and bool(check.runs) and {run.verdict for run in check.runs} == {Verdict.FAIL}


def _figures(folder: pathlib.Path, stored: Stored) -> list[ScenarioFigures | None]:
    path, part = folder / baseline.FIGURES, stored.part
    figures = run_figures.read(path)
    found = [next((each for each in figures.scenarios if _is_of(row, each)), None) for row in stored.scenarios]
    for each in figures.scenarios:
        of = each.identity
        if each not in found:
            raise UsageError(f"{folder}: its figures of {of.name} are not those of its suite.json")
        for what, told, right in (("seed", of.seed, str(part.seed)), ("backend", of.backend, part.backend)):
            if told != right:
                raise UsageError(f"{path}: {of.name} has {what} {one_line(told)}; that of its suite.json is {right}")
    held = baseline.by_logs(figures, folder.parent).scenarios
    return [each and held[figures.scenarios.index(each)] for each in found]


def _is_of(row: stored_gate.Row, measured: ScenarioFigures) -> bool:
    told = {run.run_id: run.verdict for run in row.runs}
    there = {run.run_id: run.verdict for run in measured.runs}
    passed = {run_id for run_id, verdict in told.items() if verdict is Verdict.PASS}
    known = measured.identity.name == row.scenario
    return known and bool(there) and there.items() <= told.items() and passed <= there.keys()


def _compared(
    against: str, measured: Sequence[tuple[SuiteRow, ScenarioFigures | None]], reports: pathlib.Path
) -> Regressions | None:
    if not against:
        return None
    asked = [(row, found) for row, found in measured if not row.known and not row.swept]
    new = [found for _, found in asked if found]
    before = baseline.find(against, reports, [each.identity for each in new])
    baseline.check(against, before, [each.identity for each in new])
    return baseline.regressions(against, before, new, [row.name for row, found in asked if not found])
