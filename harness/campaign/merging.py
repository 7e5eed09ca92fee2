"""The shards of a gate, run on several machines, as one answer.

What another machine wrote is hostile until it is read here: bounded, typed, and consistent with itself.
"""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import msgspec

from harness.campaign import baseline, figures
from harness.campaign.experiment import new_run_id
from harness.campaign.figures import Count, Figures, Text
from harness.campaign.gate import decided
from harness.errors import UsageError
from harness.judge.comparison import Regressions
from harness.judge.repeats import RepeatVerdict
from harness.judge.score import Verdict
from harness.report import model, write_files
from harness.report.suite import GateResult, LeftOut, Part, RunLine, SuiteRow, render
from harness.report.words import one_line

SHARDS_MAX = 1000
Reason = Annotated[str, msgspec.Meta(max_length=20_000)]
Zero = Annotated[int, msgspec.Meta(ge=0, le=10**6)]


class _Run(msgspec.Struct, frozen=True):
    run_id: Text
    verdict: Verdict


class _Row(msgspec.Struct, frozen=True):
    scenario: Text
    title: Reason
    verdict: Verdict
    reasons: Annotated[tuple[Reason, ...], msgspec.Meta(min_length=1, max_length=1000)]
    runs: Annotated[tuple[_Run, ...], msgspec.Meta(max_length=10_000)]
    known_failure: bool = False


class _LeftOut(msgspec.Struct, frozen=True):
    scenario: Text
    why: Reason
    required: bool


class _Part(msgspec.Struct, frozen=True):
    in_suite: Count
    selected: Count
    tag: Annotated[str, msgspec.Meta(max_length=300)]
    backend: Text
    seed: int
    digest: Text
    shard: Count | None
    shards: Count | None
    left_out: Annotated[tuple[_LeftOut, ...], msgspec.Meta(max_length=2000)]

    @property
    def same(self) -> tuple[object, ...]:
        """What all shards of a gate share."""
        return self.in_suite, self.selected, self.tag, self.backend, self.seed, self.digest, self.shards


class Stored(msgspec.Struct, frozen=True):
    """A gate as suite.json has it. Keys of later versions are ignored."""

    schema: int
    suite: Text
    title: Reason
    run_id: Text
    verdict: Verdict
    reason: Reason
    canary: _Row
    scenarios: Annotated[tuple[_Row, ...], msgspec.Meta(max_length=2000)]
    part: _Part


def read(folder: pathlib.Path) -> Stored:
    """Raises `UsageError` for a folder that holds no gate of this version."""
    path = folder / "suite.json"
    try:
        data = model.read_regular(path)
        if len(data) > figures.BYTES_MAX:
            raise UsageError(f"{path}: larger than {figures.BYTES_MAX // 2**20} MiB")
        return msgspec.json.decode(data, type=Stored)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a gate of this version: {one_line(error)}") from error


def merge_gates(folders: Sequence[pathlib.Path], reports: pathlib.Path, against: str = "") -> GateResult:
    """One answer of all shards, written like that of a gate. Raises `UsageError` where they do not belong together.

    A shard that is missing makes the answer inconclusive; one whose canary did not fail makes it invalid.
    """
    parts = [(folder, read(folder)) for folder in folders]
    if not parts:
        raise UsageError("chaos gate merge needs the gates of all shards, by folder or id")
    _check([stored for _, stored in parts])
    first = parts[0][1]
    rows = tuple(_row(row) for _, stored in parts for row in stored.scenarios)
    merged = Figures(source=new_run_id(first.suite), made_at=baseline.now(), scenarios=_figures(parts))
    part = _whole([stored.part for _, stored in parts], len(rows))
    canary_row = _row(first.canary)
    if blind := next(
        (stored for _, stored in parts if stored.canary.verdict is not Verdict.FAIL or _is_blind(stored)), None
    ):
        reason = f"shard {blind.part.shard}: {blind.reason}"
        answer = GateResult(first.suite, first.title, merged.source, Verdict.INVALID, reason, canary_row, part=part)
    else:
        held = _held(against, merged, rows, reports)
        answer = decided(first.suite, first.title, merged.source, canary_row, rows, held, part)
    folder = reports / answer.run_id
    folder.mkdir(parents=True)
    write_files({**render(answer), baseline.FIGURES: merged.to_text()}, folder)
    return answer


def _is_blind(stored: Stored) -> bool:
    """It stopped after its canary: it has neither run nor left out anything."""
    return stored.verdict is Verdict.INVALID and not stored.scenarios


def _check(parts: Sequence[Stored]) -> None:
    first = parts[0]
    seen: set[int] = set()
    for stored in parts:
        part = stored.part
        if part.shard is None or part.shards is None or not part.shard <= part.shards <= SHARDS_MAX:
            raise UsageError(f"gate {stored.run_id} is no shard of a gate; run it with --shard 1/{len(parts)}")
        if (stored.suite, part.same) != (first.suite, first.part.same):
            raise UsageError(
                f"gate {stored.run_id} is of another suite, backend, seed or number of shards than {first.run_id}"
            )
        if part.shard in seen:
            raise UsageError(f"gate {stored.run_id}: shard {part.shard} of {part.shards} is given twice")
        seen.add(part.shard)
    runs = Counter(run.run_id for stored in parts for row in stored.scenarios for run in row.runs)
    if twice := next((name for name, count in runs.items() if count > 1), None):
        raise UsageError(f"run {one_line(twice)} is in two places")


def _whole(parts: Sequence[_Part], ran: int) -> Part:
    """What is left out: by the shards, the shards that are missing, and what is unaccounted for."""
    first = parts[0]
    left_out = [LeftOut(each.scenario, each.why, each.required) for part in parts for each in part.left_out]
    missing = sorted(set(range(1, (first.shards or 0) + 1)) - {part.shard for part in parts})
    if not missing and ran + len(left_out) != first.selected:
        why = f"{ran + len(left_out)} of {first.selected} scenarios are accounted for"
        left_out.append(LeftOut("the rest of the suite", why, True))
    left_out += [LeftOut(f"shard {number} of {first.shards}", "it was not given", True) for number in missing]
    told = (first.in_suite, first.selected, first.tag, first.backend, first.seed, first.digest)
    return Part(*told, left_out=tuple(left_out))


def _row(row: _Row) -> SuiteRow:
    """A pass that its own runs do not show is none."""
    runs = [RunLine(run.run_id, run.verdict) for run in row.runs]
    result = RepeatVerdict(row.verdict, row.reasons)
    bad = next((run for run in runs if run.verdict is not Verdict.PASS), None)
    if row.verdict is Verdict.PASS and not row.known_failure and (bad or not runs):
        why = f"run {bad.run_id} is {bad.verdict}" if bad else "it has no runs"
        result = RepeatVerdict(Verdict.INCONCLUSIVE, (f"the shard says pass, but {why}", *row.reasons))
    return SuiteRow(row.scenario, row.title, result, known=row.known_failure, stored=runs)


def _figures(parts: Sequence[tuple[pathlib.Path, Stored]]) -> tuple[figures.ScenarioFigures, ...]:
    """Of all shards. Only what a shard's suite.json tells as run is believed."""
    found: dict[tuple[str, str], figures.ScenarioFigures] = {}
    for folder, stored in parts:
        told = {run.run_id for row in stored.scenarios for run in row.runs}
        for each in figures.read(folder / baseline.FIGURES).scenarios:
            key = (each.identity.name, each.identity.version)
            if key in found or not {run.run_id for run in each.runs} <= told:
                raise UsageError(f"{folder}: its figures of {each.identity.name} are not those of its suite.json")
            found[key] = each
    return tuple(found.values())


def _held(against: str, merged: Figures, rows: Sequence[SuiteRow], reports: pathlib.Path) -> Regressions | None:
    if not against:
        return None
    known = {row.name for row in rows if row.known}
    asked = [each for each in merged.scenarios if each.identity.name not in known]
    wanted = [each.identity for each in asked]
    before = baseline.find(against, reports, wanted)
    baseline.check(against, before, wanted)
    names = {identity.name for identity in wanted}
    return baseline.regressions(against, before, asked, [row.name for row in rows if row.name not in names | known])
