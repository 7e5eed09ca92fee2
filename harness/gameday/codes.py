"""Defines the reason codes of verdicts on game days, and on faults injected into a job that somebody else started."""

from __future__ import annotations

import enum


class Code(enum.StrEnum):
    DAY_BUDGET = "day.budget"
    DAY_EMPTY = "day.empty"
    DAY_ENTRY_CUT = "day.entry-cut"
    DAY_JOB = "day.job"
    DAY_JOB_UNKNOWN = "day.job-unknown"
    DAY_NOT_COMPLETED = "day.not-completed"
    DAY_NOT_STEADY = "day.not-steady"
    DAY_NO_END = "day.no-end"
    DAY_REHEARSAL = "day.rehearsal"
    DAY_WATCH = "day.watch"
    DAY_WENT_ON_UNSTEADY = "day.went-on-unsteady"
    PROBE_FAILED = "probe.failed"
    PROBE_UNANSWERED = "probe.unanswered"
    STRIKES_NOT_COMPLETED = "strikes.not-completed"
    STRIKES_NOT_SEEN = "strikes.not-seen"
    STRIKES_NOT_STEADY = "strikes.not-steady"
    STRIKES_NO_END = "strikes.no-end"
    STRIKE_NODE_ENDED = "strike.node-ended"
    STRIKE_NOT_HEALED = "strike.not-healed"
    STRIKE_NOT_WHOLE = "strike.not-whole"
    STRIKE_NO_EFFECT = "strike.no-effect"
    STRIKE_DONE_OTHERWISE = "strike.done-otherwise"
    STRIKE_NO_PROGRESS = "strike.no-progress"
    STRIKE_UNKNOWN_PROGRESS = "strike.unknown-progress"
