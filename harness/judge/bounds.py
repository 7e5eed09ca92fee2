"""Defines the limits that a scenario may set under `expect:` for each criterion, such as the recovery time.

A command that only reads scenarios imports from `harness/judge` only this file and `thresholds.py`.
"""

import functools
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema, create_model, model_validator

from harness import units
from harness.judge.thresholds import SLOWDOWN_MAX
from harness.node.emitter import abnormal
from harness.parameters import Parameters
from harness.plugins import Family

OFF = "off"  # switches a default score off
WASTED_BY_FAULTS = "GPU time wasted by faults"  # name of this item in lists of items that are not judged
SAMPLE_BOUNDS = ("max_samples_repeated", "max_samples_skipped")

_DURATION = r"^\d+(\.\d+)?\s*(ns|us|ms|s|m|h)$"
_DIGITS_MAX = 18  # digits; longer numbers exceed any run in any unit


def _bound_ns(text: object) -> int:
    """Parses a duration such as `60s` into ns. A number of over 18 digits gives the longest allowed duration."""
    digits = re.match(r"\d+", text) if isinstance(text, str) and re.fullmatch(_DURATION, text) else None
    if digits and len(digits[0].lstrip("0")) > _DIGITS_MAX:
        return units.DURATION_NS_MAX
    return units.parse_duration_ns(text)


DurationNs = Annotated[
    int, BeforeValidator(_bound_ns), WithJsonSchema({"type": "string", "pattern": _DURATION, "examples": ["60s"]})
]
Percent = Annotated[
    float,
    BeforeValidator(units.parse_percent),
    WithJsonSchema({"type": ["number", "string"], "pattern": r"^\d+(\.\d+)?%$", "examples": [25]}),
]


class Bounds(Parameters):
    """The keys that a scenario may write in `expect:` for one criterion. An unknown key is an error."""

    by_default: ClassVar[str] = ""  # name of a default score in lists of items that are not judged

    def asks(self) -> bool:
        """Returns True if the scenario sets a limit that does not apply by default."""
        if self.by_default:
            return self != type(self)()
        return any(value is not None and value != {} for value in dict(self).values())


def _nothing_to_set(name: str, by_default: str, off: str) -> type[Bounds]:
    model = create_model(name, __base__=Bounds, __doc__=f"Nothing to set; `off` where {off}.")
    model.by_default = by_default
    return model


class JobBounds(Bounds):
    """The criterion `job` has no settings: a job must do all its steps, and each process death needs a known cause."""


class FailFastBounds(Bounds):
    """If a job cannot go on, it must end soon after the first fault, and its error must name the cause."""

    max: DurationNs = Field(description="From the first fault until the last command has ended.")
    says: str | None = Field(None, min_length=1, max_length=200, description="Words of the job's error, in any case.")


class MemoryBounds(Bounds):
    """The trainer must report a memory leak before the leaking rank runs out of memory."""

    foreseen: bool | None = Field(
        None,
        description="The trainer says that memory runs out before that rank ends; a told rate is off by ≤ factor 4.",
    )


Phase = Literal[
    "interrupted_step",
    "detect",
    "drain",
    "teardown",
    "reschedule",
    "startup",
    "rendezvous",
    "restore",
    "first_step",
    "recompute",
]


class RecoveryBounds(Bounds):
    """Upper limits on the duration of each recovery, and of each phase of a recovery (such as the restore)."""

    max: DurationNs | None = Field(None, description="From the stop until the progress is regained.")
    first_step_max: DurationNs | None = Field(None, description="From the stop until the next step, repeated or new.")
    phases: Mapping[Phase, DurationNs] = Field({}, description="Of each phase, all its parts in one outage together.")


class WasteBounds(Bounds):
    """Upper limits on the GPU time that a run wastes, and on the part of this waste that faults cause."""

    max_percent: Percent | None = Field(None, description="All waste, of the allocated GPU time.")
    max_percent_by_faults: Percent | None = Field(None, description="What faults caused, of the allocated GPU time.")
    max_gpu_seconds: float | None = Field(None, description="All waste, in GPU-seconds.")
    max_gpu_seconds_by_faults: float | None = Field(None, description="What faults caused, in GPU-seconds.")


class ContinuityBounds(Bounds):
    """Limits on how far the run's losses may be from the fault-free run's, and on repeated and skipped samples."""

    mode: Literal["exact", "ulp", "envelope", "final"] = Field(
        "exact",
        description="`exact`: all bits; `ulp`: within `max_ulp`; `envelope`: in its band; `final`: by `max_final_gap`.",
    )
    against: Literal["fault-free", "itself"] = Field(
        "fault-free",
        description="`itself`: steps that were done again after a restart must be what they were the first time.",
    )
    max_ulp: float = Field(16.0, description="With `mode: ulp`: units in the last place.")
    max_final_gap: Percent = Field(1.0, description="With `mode: final`: of the mean loss in the last fifth of steps.")
    max_nonfinite_steps: int = Field(0, description="With `mode: final`: steps with a loss that is not finite.")
    samples: Literal["judged", "reported"] = Field(
        "judged", description="`reported`: which were repeated or never seen is in the report, and not judged."
    )
    max_samples_repeated: int = Field(0, description="Samples that were seen twice in one pass.")
    max_samples_skipped: int = Field(0, description="Samples that were never seen.")
    max_spike: float | None = Field(None, description="Of the loss at a resume: its rise, less the usual rise there.")

    @property
    def moves_samples(self) -> bool:
        """Returns True if the scenario allows repeated or skipped samples, which shift later steps' samples."""
        return bool(self.max_samples_repeated or self.max_samples_skipped)

    @model_validator(mode="after")
    def _judged_where_bounded(self) -> Self:
        if self.samples == "reported" and not self.model_fields_set.isdisjoint(SAMPLE_BOUNDS):
            raise ValueError("samples: reported sets no bound; leave out max_samples_repeated and max_samples_skipped")
        return self


class PaceBounds(Bounds):
    """After its last recovery, the job may be slower than the fault-free run by the factor `max_slowdown` at most."""

    by_default = "pace"
    max_slowdown: float = Field(SLOWDOWN_MAX, ge=1, description="So many times slower than without a fault.")


class UseBounds(Bounds):
    """In its last steps, the job must use all the GPUs that it has."""

    by_default = "GPUs in use"
    max_idle_steps: int = Field(10, ge=1, description="With a GPU left idle, fewer steps than this at the end.")


class ExitBounds(Bounds):
    """After its last step, the job must end within the time `max`."""

    by_default = "time of the exit"
    max: DurationNs | None = Field(
        None,
        description="From the last step to the end of all commands; else 30 s, or 3 times as long as without a fault.",
    )


class RhythmBounds(Bounds):
    """After a fault, the job must make nearly all the checkpoints that the fault-free run makes in the same steps."""

    by_default = "rhythm of checkpoints"
    max_missed: int = Field(int(abnormal.CHECKPOINT_INTERVALS) - 1, ge=0, description="Saves missed in a row.")
    min_percent: Percent = Field(75.0, description="Of the saves that were due.")


class LastCheckpointBounds(Bounds):
    """After the run, the job's command must be able to restore the newest checkpoint."""

    by_default = "last checkpoint"
    max_steps_behind: int = Field(0, ge=0, description="Steps from the newest checkpoint back to one that loads.")


class FilesBounds(Bounds):
    """The job must leave the files other than checkpoints, such as exports, that the fault-free run leaves."""

    max_missing: int = Field(0, ge=0, description="Files beside the saves that only the fault-free run left.")


class NoticesBounds(Bounds):
    """If the job gets a notice that a node will be taken, a rank must save or exit before the node is gone."""

    max_ignored: int = Field(0, ge=0, description="Notices after which nobody saved or left until the node was taken.")


class MetricBounds(Bounds):
    """Bounds on individual measured values, such as the median step time."""

    step_p50_max: DurationNs | None = Field(None, description="Of the median step.")
    step_p95_max: DurationNs | None = Field(None, description="Of the step that 95 % are not slower than.")
    step_p99_max: DurationNs | None = Field(None, description="Of the step that 99 % are not slower than.")
    detection_max: DurationNs | None = Field(None, description="From a fault until somebody in the job notices.")
    checkpoint_success_min: Percent | None = Field(None, description="Of the checkpoints that were begun.")
    resume_success_min: Percent | None = Field(None, description="Of the restarts that were tried.")
    max_false_alarms: int | None = Field(None, description="Alarms that no fault explains.")
    max_restarts: int | None = Field(None, ge=0, description="Of the rank started anew most often, whatever the cause.")
    max_restarts_without_progress: int | None = Field(
        None, description="Restarts in a row that went on from no later step than one before: no save came in time."
    )
    steps_rolled_back_max: int | None = Field(None, description="Steps lost at a rollback; 0: none, as after a notice.")


_SWITCHED = (  # score judged by default; its name in lists of items that are not judged; when a scenario sets `off`
    ("divergence", "divergence of the loss", "nobody has to go back"),
    ("effect_end", "end of the faults' effects", "a fault is meant to stay"),
    ("own_traffic", "the training's own traffic", "a fault is meant to miss the training's traffic"),
    ("rank_samples", "samples of each rank", "ranks are meant to leave samples out"),
    ("replicas", "agreement of replicas", "ranks are meant to hold different weights"),
    ("second_restart", "second restart", "the job is not meant to start again from what it saved after the recovery"),
)
_SET: Mapping[str, type[Bounds]] = {
    "checkpoint_rhythm": RhythmBounds,
    "exit_time": ExitBounds,
    "fail_fast": FailFastBounds,
    "files_beside_saves": FilesBounds,
    "gpus_in_use": UseBounds,
    "job": JobBounds,
    "last_checkpoint": LastCheckpointBounds,
    "loss_continuity": ContinuityBounds,
    "memory_growth": MemoryBounds,
    "metrics": MetricBounds,
    "notices": NoticesBounds,
    "pace": PaceBounds,
    "recovery_time": RecoveryBounds,
    "wasted_gpu_hours": WasteBounds,
}
OF_A_PLUGIN = _nothing_to_set("guarantee", "its breaches", "this guarantee of a plug-in is not judged")
BOUNDS = dict(sorted({**_SET, **{name: _nothing_to_set(name, *told) for name, *told in _SWITCHED}}.items()))
"""Bounds by score name, sorted; those of wings are in `bounds_by_score` only."""
_FAMILY = Family("bounds", "harness", "BOUNDS", part="bounds")  # this file's, and those of a wing


@functools.cache
def bounds_by_score() -> Mapping[str, type[Bounds]]:
    """Returns all `Bounds` classes by criterion, sorted: from this file, and from optional packages (wings)."""
    found = (item for name in _FAMILY.names() for item in _FAMILY.load(name).items())
    return dict(sorted(found))


def expects_something(expect: Mapping[str, Any]) -> bool:
    """Returns True if a scenario's `expect:` sets any limit. An entry such as `recovery_time: {}` sets no limit."""
    for name, written in expect.items():
        if isinstance(written, Mapping) and (bounds := bounds_by_score().get(name)):
            try:
                if bounds.model_validate(written).asks():
                    return True
            except ValidationError:
                return True  # an invalid bound is reported elsewhere
    return False
