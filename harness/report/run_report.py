"""Defines the report of a run, which is stored in `report.json`. Only this module writes and reads `report.json`.

HTML, Markdown, JUnit and terminal text are made from a `Report`, so that an old run can be shown without judging it
again. Only charts and lists of events are made from the event log. Unknown keys in `report.json` are ignored; missing
keys have defaults.
"""

import errno
import functools
import os
import pathlib
import stat
from collections.abc import Mapping
from typing import Any, Self, TypeVar

import msgspec
import numpy as np

from harness.errors import ChaosError
from harness.judge.facts.analysis import Analysis
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.judge.weighing import Judged
from harness.report import figures
from harness.report.next_steps import kept_as, next_steps
from harness.report.strict_json import strict
from harness.timeline.timeline import FaultRecord
from harness.units import counted

SCHEMA = 1
NOT_HERE = "not available here"
PROVENANCE = (
    *("trainer_commit", "trainer_diff", "scenario_digest", "data_digest", "image_digest"),
    *("gpu", "gpus", "driver", "cuda_driver", "cuda", "nccl"),
)
_GPU = ("gpu", "gpus", "driver", "cuda_driver")
_ON_THIS_MACHINE = ("local", "docker")
_AS_JUDGED = ("run_id", "scenario", "title", "backend", "seed", "verdict", "reasons", "environment")
MAX_BYTES = 64 * 2**20
T = TypeVar("T")
Scalar = bool | int | float | str | None
S = 1_000_000_000


class ReportError(ChaosError):
    """Raised if a report.json cannot be read."""


class _Part(msgspec.Struct, frozen=True, kw_only=True): ...


class Effect(_Part, frozen=True):
    measured: Scalar = None
    expected: Scalar = None
    unit: str | None = None


class Fault(_Part, frozen=True):
    """One fault of the plan. `t_injected` is in seconds since the run began, or `None` if the fault never acted."""

    id: str
    kind: str
    target: tuple[dict[str, Any], ...] = ()
    domain: str = ""  # the label of the scenario that has exactly these nodes, such as a rack's
    t_injected: float | None = None
    effect: Effect = Effect()
    healed: bool = False
    kills: bool = False  # its targets were to die: nothing of it is left that could be undone
    error: str = ""


class Expectation(_Part, frozen=True):
    """A line of the report's table of expectations, with texts for people. A numeric bound is in `unit`.

    `observed_value` is `None` if nothing was measured, or if the measured interval had not ended.
    """

    name: str
    bound: str
    observed: str
    verdict: Verdict
    reason: str = ""
    bound_value: float | None = None
    observed_value: float | None = None
    unit: str = ""

    @property
    def share(self) -> float | None:
        if self.observed_value is None or not self.bound_value:
            return None
        return self.observed_value / self.bound_value


class Run(_Part, frozen=True):
    """How a run went: duration, steps and outcome. Times are in seconds."""

    duration_s: float = 0.0
    furthest_step: int = 0
    ranks: int = 0
    outcome: str | None = None  # completed · failed · aborted · interrupted · None: the harness itself died
    outcome_reason: str = ""
    fault_free: bool = False  # a fault-free run to compare with was there
    stuck_in: str = ""  # the phase of a job that never recovered
    problems: tuple[str, ...] = ()  # of the event log


class Episode(_Part, frozen=True):
    """One outage in `scores.recovery_time`. Times are in seconds; `t_stop` counts from the begin of the run."""

    t_stop: float = 0.0
    seconds: float | None = None  # None: never recovered
    first_step_seconds: float | None = None
    furthest_step: int = 0
    faults: tuple[str, ...] = ()
    phases: dict[str, float] = {}


class Slowdown(_Part, frozen=True):
    fault: str = ""
    seconds: float = 0.0
    recovered: bool = False
    slowdown: float | None = None
    slowdown_before: float | None = None
    standstill_seconds: float | None = None  # the longest time without a step


class RecoveryTime(_Part, frozen=True):
    """The contents of `scores.recovery_time`. The first three fields describe the longest outage."""

    seconds: float | None = None
    first_step_seconds: float | None = None
    phases: dict[str, float] = {}
    episodes: tuple[Episode, ...] = ()
    degraded: tuple[Slowdown, ...] = ()


class ClosedForms(_Part, frozen=True):
    """Figures that formulas (Young, Daly) predict, and the measured figures. A figure is `None` if no failure was
    measured."""

    failures: int | None = None
    mean_time_to_failure_s: float | None = None
    restart_s: float | None = None
    lost_s: float | None = None
    lost_s_expected: float | None = None
    interval_s: float | None = None
    interval_s_young: float | None = None
    interval_s_daly: float | None = None
    checkpoint_s: float | None = None
    ettr: float | None = None
    ettr_expected: float | None = None


class WastedGpuHours(_Part, frozen=True):
    """The contents of `scores.wasted_gpu_hours`. `accounts` holds GPU-seconds, which add up to all allocated time."""

    gpu_seconds_allocated: float | None = None
    gpu_seconds_wasted: float | None = None
    gpu_seconds_wasted_by_faults: float | None = None
    percent: float | None = None
    percent_by_faults: float | None = None
    accounts: dict[str, float] = {}
    accounts_by_faults: dict[str, float] = {}  # the part of each that faults caused
    baseline: str = "none"
    closed_forms: ClosedForms = ClosedForms()
    dollars_wasted: float | None = None


class LossContinuity(_Part, frozen=True):
    """The contents of `scores.loss_continuity`: the run's losses (without rolled-back steps) compared with fault-free
    losses."""

    mode: str | None = None
    max_abs_diff: float | None = None
    first_divergent_step: int | None = None
    final_gap_percent: float | None = None
    samples_repeated: int | None = None
    samples_skipped: int | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The contents of `report.json`. `scores` and `metrics` hold all figures. `recovery_time`, `wasted_gpu_hours` and
    `loss_continuity` hold the figures of three scores in typed fields."""

    schema: int = SCHEMA
    run_id: str
    scenario: str
    title: str = ""
    backend: str
    seed: int
    profile: str | None = None
    commit: str | None = None  # of the project under test; "-dirty" behind it: with uncommitted changes
    begun_at: str | None = None  # UTC, ISO 8601
    verdict: Verdict
    reasons: tuple[str, ...] = ()  # the first one is the headline
    run: Run = Run()
    faults: tuple[Fault, ...] = ()
    scores: dict[str, dict[str, Any]] = {}
    metrics: dict[str, Any] = {}
    expectations: tuple[Expectation, ...] = ()
    guarantees: tuple[Judged, ...] = ()
    environment: dict[str, Any] = {}
    labels: dict[str, str] = {}
    provenance: dict[str, str] = {}  # `PROVENANCE`, each with its value or `NOT_HERE`
    not_judged: tuple[str, ...] = ()
    not_judged_because: dict[str, str] = {}  # each item of `not_judged` → why
    next_steps: tuple[str, ...] = ()  # what to do about the verdict
    kept_as: str = ""  # what commands find it by; empty: by its `run_id`

    def to_json(self) -> dict[str, Any]:
        """Returns the report as plain JSON types. An expectation without a reason has no key `reason`."""
        values: dict[str, Any] = strict(msgspec.to_builtins(self))
        for expectation in values["expectations"]:
            if not expectation["reason"]:
                del expectation["reason"]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Makes a report from JSON. Raises `ReportError` for a value of a wrong type, or for another schema version."""
        if values.get("schema") != SCHEMA:
            raise ReportError(f"report.json has schema {values.get('schema')!r}; this version reads schema {SCHEMA}")
        try:
            report = msgspec.convert(values, cls)
            _ = report.recovery_time, report.wasted_gpu_hours, report.loss_continuity  # read now, not when first used
        except (msgspec.ValidationError, RecursionError) as error:
            raise ReportError(f"report.json cannot be read: {error}") from error
        return report

    @functools.cached_property
    def recovery_time(self) -> RecoveryTime:
        return msgspec.convert(self.scores.get("recovery_time", {}), RecoveryTime)

    @functools.cached_property
    def wasted_gpu_hours(self) -> WastedGpuHours:
        return msgspec.convert(self.scores.get("wasted_gpu_hours", {}), WastedGpuHours)

    @functools.cached_property
    def loss_continuity(self) -> LossContinuity:
        return msgspec.convert(self.scores.get("loss_continuity", {}), LossContinuity)


def from_scorecard(card: Scorecard) -> Report:
    """Returns the report of a judged run. Numbers that are not finite become null."""
    run = card.evidence.run
    scenario = run.plan.get("scenario")
    labels = scenario.get("labels") if isinstance(scenario, Mapping) else None
    names = Expectation.__struct_fields__
    texts = {"profile": run.plan.get("profile")} | {name: card.environment.get(name) for name in ("commit", "begun_at")}
    values = {
        "schema": SCHEMA,
        **{name: getattr(card, name) for name in _AS_JUDGED},
        **{name: text for name, text in texts.items() if isinstance(text, str)},
        "run": _run(card.evidence),
        "faults": [_fault(fault, run.begin) | {"domain": _domain(fault, card.evidence)} for fault in run.faults],
        "scores": figures.scores(card),
        "metrics": figures.metrics(card),
        "expectations": [{name: getattr(line, name) for name in names} for line in card.expectations],
        "guarantees": [vars(each) for each in card.guarantees],
        "labels": {str(key): str(value) for key, value in labels.items()} if isinstance(labels, Mapping) else {},
        "provenance": _provenance(card),
        "not_judged": list(card.not_judged),
        "not_judged_because": card.not_judged,
        "next_steps": next_steps(card),
        "kept_as": kept_as(card),
    }
    return Report.from_json(strict(values))


def _provenance(card: Scorecard) -> dict[str, str]:
    """Returns the versions of code, data and GPUs. Unknown GPUs of nodes on other machines are left out."""
    other = card.backend not in _ON_THIS_MACHINE
    found = {}
    for name in PROVENANCE:
        value = None if other and name in _GPU else card.environment.get(name)
        found[name] = str(value) if isinstance(value, str | int) and value != "" else NOT_HERE
    return found


def _run(evidence: Analysis) -> dict[str, Any]:
    run = evidence.run
    steps = run.steps
    last = run.episodes[-1] if run.episodes else None
    stuck_in = ""
    if last is not None and last.t_regained is None:
        stuck_in = last.segments[-1].phase if last.segments else "unknown"
    # What is wrong with the evidence itself.
    problems = [f"the last line of {writer} was cut by a kill" for writer in run.torn]
    if run.dropped:
        problems.append(f"lost because the disk was full: {counted(run.dropped, 'event')}")
    problems += [f"{each.words}; its process was killed" for each in evidence.lost_lines if each.killed]
    return {
        "duration_s": (run.end - run.begin) / S,
        "furthest_step": int(steps.step.max()) if len(steps) else 0,
        "ranks": len({process.rank for process in run.processes}.union(np.unique(steps.rank).tolist())),
        "outcome": run.outcome,
        "outcome_reason": run.outcome_reason,
        "fault_free": evidence.fault_free is not None,
        "stuck_in": stuck_in,
        "problems": [*problems, *run.problems],
    }


def _fault(fault: FaultRecord, begin: int) -> dict[str, Any]:
    """Returns the report of a fault with one of its effects: the first that was not as expected, else the last."""
    effect = next((e for e in fault.effects if not e.get("ok")), fault.effects[-1] if fault.effects else {})
    return {
        "id": fault.id,
        "kind": fault.kind,
        "target": [dict(target) for target in fault.targets],
        "t_injected": None if fault.injected is None else (fault.injected - begin) / S,
        "effect": {name: _plain(effect.get(name)) for name in Effect.__struct_fields__},
        "healed": fault.healed is not None,
        "kills": fault.kills,
        "error": fault.error or "",
    }


def _domain(fault: FaultRecord, evidence: Analysis) -> str:
    targets = evidence.planned_faults.get(fault.id, {}).get("targets") or ()
    places = {target.get("node_index") for target in targets}
    labels = (evidence.run.plan.get("workload") or {}).get("node_labels") or {}
    return " and ".join(str(label) for label, nodes in labels.items() if {*nodes} == places)


def _plain(value: Any) -> Scalar:
    value = value.item() if hasattr(value, "item") else value
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def read(path: pathlib.Path) -> Report:
    """Reads a run's report from its file. Raises `ReportError` if the file is missing or cannot be read."""
    values = read_as(path, dict[str, Any])
    try:
        return Report.from_json(values)
    except ReportError as error:
        raise ReportError(f"{path.parent}: {error}") from error


def read_as(path: pathlib.Path, kind: type[T]) -> T:
    """Reads a JSON file as a value of type `kind`. Raises `ReportError` if the file is too large, has another form or
    cannot be read."""
    try:
        content = read_regular(path)
        if len(content) <= MAX_BYTES:
            return msgspec.json.decode(content, type=kind)
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ReportError(f"{path}: {error}") from error
    raise ReportError(f"{path}: larger than {MAX_BYTES // 2**20} MiB")


class _Committed(msgspec.Struct):
    commit: str | None = None


def commit_in(path: pathlib.Path) -> str | None:
    try:
        return read_as(path, _Committed).commit
    except ReportError:
        return None


def read_regular(path: pathlib.Path) -> bytes:
    """Reads at most `MAX_BYTES` + 1 bytes of a regular file, without following links and without blocking. Raises
    `OSError` if the path is not a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(MAX_BYTES + 1)
