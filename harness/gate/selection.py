"""Selects the scenarios that a gate runs, by tag or shard, and orders scenarios by importance for a limited time."""

from __future__ import annotations

import pathlib
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.campaign.run_store import Store, Wanted
from harness.errors import UsageError
from harness.gate.stored_gate import Stored
from harness.gate.stored_runs import by_reports
from harness.gate.suite_file import SuiteEntry
from harness.judge.verdict import Verdict
from harness.spec.scenario import Scenario

NEWEST = 10  # most stored runs from which the length of a scenario is estimated
UNKNOWN_S = 120.0  # length of a scenario if no scenario ever ran
SWEEP_S = 900.0  # most seconds of a sweep over the saves
_SHARD = re.compile(r"([0-9]{1,4})/([0-9]{1,4})\Z")

Chosen = tuple[SuiteEntry, Scenario]


@dataclass(frozen=True)
class Shard:
    number: int
    of: int


@dataclass(frozen=True)
class Past:
    seconds: float  # length of one run
    failed_lately: bool


def parse_shard(text: str) -> Shard:
    """Parses a shard such as `2/4` (the second of four). Raises `UsageError` for a text that does not look like
    `2/4`."""
    match = _SHARD.match(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard {text}: write which one of how many, like 2/4")
    return Shard(int(match[1]), int(match[2]))


def tagged(specs: Sequence[Chosen], tag: str) -> list[Chosen]:
    found = [each for each in specs if tag in each[1].tags]
    if not found:
        known = sorted({tag for _, spec in specs for tag in spec.tags})
        raise UsageError(f"--tag {tag}: no scenario of this suite has it; their tags are: {', '.join(known)}")
    return found


def not_passed(gate: Stored) -> frozenset[str]:
    """Returns the names of the scenarios that an earlier gate left out, or that did not pass in the earlier gate.
    Raises `UsageError` if all scenarios of the earlier gate passed, or if no scenario ran."""
    failed = [row.scenario for row in gate.scenarios if row.verdict is not Verdict.PASS]
    if gate.scenarios and (again := frozenset([*failed, *(each.scenario for each in gate.part.left_out)])):
        return again
    ran = "every scenario passed" if gate.scenarios else "it ended with its blindness check"
    raise UsageError(f"--last-failed: {gate.run_id}: {ran}; run the gate without it")


def of_shard(specs: Sequence[Chosen], shard: Shard) -> list[Chosen]:
    """Returns the scenarios of one shard: every n-th scenario, if there are n shards. Stored runs have no influence, so
    that all machines divide a suite alike."""
    return list(specs[shard.number - 1 :: shard.of])


def look_back(specs: Sequence[Chosen], reports: pathlib.Path, backend: str) -> dict[str, Past]:
    """Returns how long a run of each scenario usually takes, and whether a recent run of the scenario failed. A
    scenario without stored runs gets the median duration of the scenarios with stored runs."""
    store = Store(reports)
    seen: dict[str, Past] = {}
    for entry, spec in specs:
        judged = by_reports(store, Wanted(scenario=spec.name, backend=backend), NEWEST)
        took = [report.run.duration_s for _, report in judged if report.profile == entry.profile]
        if took := [seconds for seconds in took if seconds]:
            seen[entry.name] = Past(statistics.median(took), any(run.verdict is Verdict.FAIL for run, _ in judged))
    usual = statistics.median([past.seconds for past in seen.values()]) if seen else UNKNOWN_S
    return {entry.name: seen.get(entry.name, Past(usual, False)) for entry, _ in specs}


def by_weight(specs: Sequence[Chosen], past: Mapping[str, Past]) -> list[int]:
    """Returns the indices of the scenarios `specs`, the most important scenario first. Required scenarios come before
    optional scenarios, and in both groups, scenarios with a recent failure come first."""

    weights = [(not entry.required, not past[entry.name].failed_lately) for entry, _ in specs]
    return sorted(range(len(specs)), key=weights.__getitem__)


def needed_s(entry: SuiteEntry, repeats: int, past: Mapping[str, Past]) -> float:
    """Returns the expected seconds of a scenario's fault-free run and all its runs with faults. A sweep (restarts of a
    job from several checkpoints) is expected to take `SWEEP_S` seconds."""
    return SWEEP_S if entry.matrix else (repeats + 1) * past[entry.name].seconds
