"""Defines the JSON file with the measurements of a gate's runs, and with the job and the machine of each scenario.

The file's content is not trusted, so size and values have limits, and no run may be listed twice."""

from __future__ import annotations

import contextlib
import hashlib
import json
import pathlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from harness.errors import UsageError
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.report import run_report
from harness.report.run_report import Report
from harness.report.strict_json import json_text, strict
from harness.report.words import one_line

SCHEMA = 1
BYTES_MAX = 16 * 2**20
HARDWARE = ("machine", "cpu", "cpus", "gpu", "gpus")  # keys of a report's environment

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
Short = Annotated[str, msgspec.Meta(max_length=300)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Count = Annotated[int, msgspec.Meta(ge=1, le=10**7)]


class RunFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measurements of one run, in seconds or GPU-seconds. A quantity that the run did not measure is `None`."""

    run_id: Text
    verdict: Verdict
    commit: Short = ""
    seconds: Amount = 0.0  # length of the whole run
    recovery_time: Amount | None = None
    wasted_gpu_seconds: Amount | None = None
    checkpoint_stall: Amount | None = None
    allocated_gpu_seconds: Amount | None = None
    step_seconds: Amount | None = None  # median of its steps


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The properties of a run, such as seed and GPU, that must be equal in two runs for a comparison."""

    scenario: Text
    profile: Short | None = None
    backend: Text
    seed: Text
    nodes: Count
    ranks_per_node: Count
    steps: Count | None  # `None`: the fault-free run decides, and told none so far
    version: Text  # digest of the scenario as it was planned
    hardware: Annotated[dict[Text, Short | int], msgspec.Meta(max_length=20)]

    @property
    def name(self) -> str:
        return f"{self.scenario} ({self.profile})" if self.profile else self.scenario


class ScenarioFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    identity: Identity
    runs: Annotated[tuple[RunFigures, ...], msgspec.Meta(max_length=10_000)]


class Figures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: int = SCHEMA
    source: Short = ""  # gate or commit from which it was made
    made_at: Short = ""
    scenarios: Annotated[tuple[ScenarioFigures, ...], msgspec.Meta(max_length=2000)]

    def of(self, identity: Identity) -> ScenarioFigures | None:
        """Returns the measurements of the scenario and profile that `identity` names, or `None` if there are none. If
        possible, the measured runs have the same scenario version and number of steps as `identity`."""
        wanted = (identity.scenario, identity.profile)
        fitting = [each for each in self.scenarios if (each.identity.scenario, each.identity.profile) == wanted]
        same = [each for each in fitting if each.identity.version == identity.version]
        alike = [each for each in same if each.identity.steps == identity.steps]
        return next(iter(alike or same or fitting), None)

    @property
    def commits(self) -> list[str]:
        return sorted({run.commit for each in self.scenarios for run in each.runs if run.commit})

    def to_text(self) -> str:
        return json_text(strict(msgspec.to_builtins(self)))


def read(path: pathlib.Path) -> Figures:
    """Reads a file of measurements. Raises `UsageError` if the file cannot be read, or is not valid."""
    try:
        data = run_report.read_regular(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > BYTES_MAX:
        raise UsageError(f"{path}: a baseline may have at most {BYTES_MAX // 2**20} MiB")
    try:
        found = msgspec.json.decode(data, type=Figures)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a baseline: {one_line(error)}") from error
    if problem := _problem(found):
        raise UsageError(f"{path}: {problem}")
    return found


def _problem(found: Figures) -> str:
    if found.schema != SCHEMA:
        return f"it has schema {found.schema}; this version reads schema {SCHEMA}"
    identities = [each.identity for each in found.scenarios]
    names = Counter(f"{each.name}, version {each.version}, steps {each.steps}" for each in identities)
    runs = Counter(run.run_id for each in found.scenarios for run in each.runs)
    for what, counts in (("scenario", names), ("run", runs)):
        if twice := next((name for name, count in counts.items() if count > 1), None):
            return f"the {what} {one_line(twice)} is listed twice"
    return ""


def figures_of(report: Report) -> RunFigures:
    """Returns the measurements in a run's report. Raises `ValueError` for a measurement that is negative or impossibly
    large."""
    waste = report.wasted_gpu_hours
    step_s = report.metrics.get("step_seconds_p50")
    values = {
        "run_id": report.run_id,
        "verdict": report.verdict,
        "commit": report.commit or "",
        "seconds": report.run.duration_s or 0.0,
        "recovery_time": report.recovery_time.seconds,
        "wasted_gpu_seconds": waste.gpu_seconds_wasted_by_faults,
        "checkpoint_stall": waste.accounts.get("checkpoint_stall") or None,  # a save that is told stalls a little
        "allocated_gpu_seconds": waste.gpu_seconds_allocated,
        "step_seconds": float(step_s) if isinstance(step_s, int | float) and 0 < step_s < 1e9 else None,
    }
    try:
        return msgspec.convert(values, RunFigures)
    except msgspec.ValidationError as error:
        figure = str(error).rpartition("$.")[2].rstrip("`")
        raise ValueError(f"run {one_line(report.run_id)}: {figure} is {values.get(figure)}: {error}") from error


def identity_of(plan: Mapping[str, Any], environment: Mapping[str, Any]) -> Identity:
    """Returns the properties of a run that must be equal in two runs for a comparison. `environment` describes the
    machine of the run. Raises `ValueError` if `plan` is not a valid plan of a run."""
    try:
        workload = plan["workload"]
        values = {
            "scenario": plan["scenario"]["name"],
            "profile": plan.get("profile"),
            "backend": plan["backend"],
            "seed": str(plan["seed"]),
            "nodes": workload["nodes"],
            "ranks_per_node": workload["ranks_per_node"],
            "steps": workload.get("steps"),
            "version": version_of(plan),
            "hardware": {name: environment[name] for name in HARDWARE if environment.get(name) is not None},
        }
        return msgspec.convert(values, Identity)
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise ValueError(f"not a plan: {error!r}") from error


def version_of(plan: Mapping[str, Any]) -> str:
    """Returns a digest of a scenario's workload, faults, and limits on faults. The digest omits the trainer, because
    the trainer is under test. The digest omits bounds, titles and time limits, because a run does not depend on them.
    The digest omits the number of steps, because a fault-free run may set this number."""
    workload = {name: value for name, value in plan["workload"].items() if name not in ("trainer", "steps")}
    limits = plan.get("limits") and {name: value for name, value in plan["limits"].items() if name != "gpu_hours"}
    decides = {"workload": workload, "faults": plan.get("faults") or [], "limits": limits}
    return hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()[:16]


def gathered(found: Iterable[tuple[Identity, RunFigures]]) -> tuple[ScenarioFigures, ...]:
    sets: dict[str, tuple[Identity, list[RunFigures]]] = {}
    for identity, run in found:
        key = json.dumps(msgspec.to_builtins(identity), sort_keys=True)
        sets.setdefault(key, (identity, []))[1].append(run)
    return tuple(ScenarioFigures(identity=identity, runs=tuple(runs)) for identity, runs in sets.values())


def figures_of_cards(cards: Sequence[Scorecard]) -> tuple[ScenarioFigures, ...]:
    """Returns the measurements of the largest group of comparable runs in `cards`, or an empty tuple if all runs are
    left out. A run is left out if its plan holds neither faults nor expectations."""
    found: list[tuple[Identity, RunFigures]] = []
    for card in cards:
        plan = card.evidence.run.plan
        if plan.get("faults") or plan.get("expect"):
            with contextlib.suppress(ValueError):
                found.append((identity_of(plan, card.environment), figures_of(run_report.from_scorecard(card))))
    return tuple(sorted(gathered(found), key=lambda each: -len(each.runs))[:1])
