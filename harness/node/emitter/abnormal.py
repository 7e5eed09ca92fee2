"""Detects abnormal events of a training run, such as loss spikes, slow steps and memory leaks. Uses only the standard
library.

Trainers, the judge, live metrics and the alert rules in `examples/monitoring/` share these definitions.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

# The loss stagnates when its mean over the recent steps is hardly below the mean over those before them.
LOSS_RECENT_STEPS = 50
LOSS_BEFORE_STEPS = 100
LOSS_IMPROVES_MIN = 0.02  # of the mean before

# What is over these limits is not as usual.
GRADIENT_NORM_FACTOR = 10.0  # times the usual norm
STEP_TIME_EXCESS = 0.15  # of the usual step time
DATA_WAIT_SHARE = 0.10  # of the step time
CHECKPOINT_INTERVALS = 2.0  # without a commit

# The loss diverges when it is over both limits, or the gradient norm over its own, for some steps in a row. That does
# not pass by itself: the job goes back, and leaves out the batches around the first of these steps.
SPIKE_LOSS_EXCESS = 0.3  # of the usual loss
SPIKE_LOSS_SPREADS = 5.0  # times the usual spread of the loss
SPIKE_STEPS = 3
SPIKE_MARGIN_STEPS = 5  # before the first of them; the state may be spoilt already there
LEFT_OUT_BEFORE = 1  # batches before the first of them
LEFT_OUT_STEPS = 8  # batches in all

# Memory grows towards its limit when most readings rise and the limit is near.
MEMORY_EVERY_S = 0.25  # between two readings; it doubles when the older half of them is dropped
MEMORY_KEPT = 64  # readings; then the older half is dropped
MEMORY_JUDGED = 16  # readings at least
MEMORY_RISES = 0.7  # of the readings are above the one before
MEMORY_RISE_MIN_BYTES = 32 * 2**20  # over the readings judged
MEMORY_HORIZON_S = 60.0  # a limit that is nearer than this, or than the readings judged reach back, is near

GPU_SLOWED = 0x8 | 0x20 | 0x40 | 0x80  # bits of NVML: clocks held down by the hardware, by heat, by the power supply

LOSSES_KEPT = 32  # whose median is the usual loss; it falls as the training goes on
NORMS_KEPT, NORMS_MIN = 100, 20  # gradient norms whose median is the usual one; with fewer nothing is usual yet
TIMES_RECENT, TIMES_BEFORE = 50, 100  # step times: the median of these against that of those before them

STAGNATION, GRADIENT, SLOW, DATA_WAIT = "stagnation", "gradient", "slow", "data_wait"
CHECKPOINT_LATE, DIVERGENCE, MEMORY, GPU = "checkpoint_late", "divergence", "memory", "gpu"
OF_STEPS = (STAGNATION, GRADIENT, SLOW, DATA_WAIT)  # kinds of anomalies that a `Watch` finds


def loss_improvement(losses: Sequence[float]) -> float | None:
    """Returns by which fraction the mean loss of the last 50 steps is below the mean of the 100 steps before, or `None`
    for fewer than 150 losses."""
    if len(losses) < LOSS_RECENT_STEPS + LOSS_BEFORE_STEPS:
        return None
    recent = losses[-LOSS_RECENT_STEPS:]
    before = sum(losses[-LOSS_RECENT_STEPS - LOSS_BEFORE_STEPS : -LOSS_RECENT_STEPS]) / LOSS_BEFORE_STEPS
    return (before - sum(recent) / LOSS_RECENT_STEPS) / abs(before) if before else None  # fmean raises for infinities


def loss_stagnates(losses: Sequence[float]) -> bool:
    improvement = loss_improvement(losses)
    return improvement is not None and improvement < LOSS_IMPROVES_MIN


def gradient_spikes(norm: float, before: Sequence[float]) -> bool:
    """Returns True if a gradient norm is more than ten times the median of the norms before it."""
    return len(before) >= NORMS_MIN and norm > GRADIENT_NORM_FACTOR * statistics.median(before)


def loss_spikes(loss: float, before: Sequence[float]) -> bool:
    """Returns True if a loss is NaN or infinite, or exceeds the median of earlier losses by more than 30 % and by more
    than five times their spread. The spread is 1.4826 times the median absolute deviation, an estimate of the standard
    deviation."""
    if len(before) < NORMS_MIN:
        return False
    usual = statistics.median(before)
    spread = 1.4826 * statistics.median([abs(each - usual) for each in before])
    return not math.isfinite(loss) or loss - usual > max(SPIKE_LOSS_EXCESS * abs(usual), SPIKE_LOSS_SPREADS * spread)


def steps_are_slow(times: Sequence[float]) -> bool:
    """Returns True if the median time of the last 50 steps is over 15 % above the median of the 100 steps before."""
    if len(times) < TIMES_RECENT + TIMES_BEFORE:
        return False
    usual = statistics.median(times[-TIMES_RECENT - TIMES_BEFORE : -TIMES_RECENT])
    return statistics.median(times[-TIMES_RECENT:]) > (1 + STEP_TIME_EXCESS) * usual


def waits_for_data(waited: Sequence[float], times: Sequence[float]) -> bool:
    """Returns True if waiting for data took more than a tenth of the time of the last 50 steps."""
    return len(times) >= TIMES_RECENT and sum(waited[-TIMES_RECENT:]) > DATA_WAIT_SHARE * sum(times[-TIMES_RECENT:])


def checkpoint_is_late(since: float, interval: float) -> bool:
    """Returns True if more than two checkpoint intervals passed since the last commit (both in steps or in seconds)."""
    return since > CHECKPOINT_INTERVALS * interval


def replay_from(steps: int) -> int:
    """Returns the first step that a new `Watch` must be given again, in order to decide like a `Watch` that saw all
    `steps` steps."""
    return max(0, steps // LOSS_RECENT_STEPS - 4) * LOSS_RECENT_STEPS


class Watch:
    """Finds abnormal events in the training steps of one process. A lasting state, such as slow steps, is reported once
    in 50 steps."""

    def __init__(self) -> None:
        kept = LOSS_RECENT_STEPS + LOSS_BEFORE_STEPS
        self._losses: deque[float] = deque(maxlen=kept)
        self._times: deque[float] = deque(maxlen=TIMES_RECENT + TIMES_BEFORE)
        self._waited: deque[float] = deque(maxlen=TIMES_RECENT)
        self._norms: deque[float] = deque(maxlen=NORMS_KEPT)
        self._steps = 0

    def norm_spikes(self, grad_norm: float) -> bool:
        return gradient_spikes(grad_norm, self._norms)

    def step_done(self, loss: float, grad_norm: float, took: float, waited: float) -> list[str]:
        """Adds a finished step, and returns the kinds of abnormal events found. `took` is the duration of the step, and
        `waited` is the time spent waiting for data, in the same unit."""
        self._steps += 1
        found = [GRADIENT] if self.norm_spikes(grad_norm) else []
        self._losses.append(loss)
        self._norms.append(grad_norm)
        self._times.append(took)
        self._waited.append(waited)
        if self._steps % LOSS_RECENT_STEPS:
            return found
        losses, times, waits = list(self._losses), list(self._times), list(self._waited)
        found += [STAGNATION] if loss_stagnates(losses) else []
        found += [SLOW] if steps_are_slow(times) else []
        return found + ([DATA_WAIT] if waits_for_data(waits, times) else [])


class Growth(NamedTuple):
    bytes_per_s: float
    full_in_s: float


class Leak:
    """Detects that a process's memory grows steadily towards its limit.

    Memory is read at ever longer intervals, so that slow leaks are found as well as quick leaks. Only the newer half of
    the memory readings is used, so that growth at the process's start is ignored. The growth rate is the Theil–Sen
    slope: the median of the slopes between all pairs of readings (Sen, 1968, doi:10.1080/01621459.1968.10480934). A
    process counts as leaking if, at the current growth rate, it would reach its memory limit within 60 s or within the
    period that the used readings cover.
    """

    def __init__(self) -> None:
        self._readings: list[tuple[float, int]] = []
        self._every_s = MEMORY_EVERY_S

    def due(self, now_s: float) -> bool:
        return not self._readings or now_s - self._readings[-1][0] >= self._every_s

    def read(self, now_s: float, resident: int, free: int) -> Growth | None:
        """Adds a memory reading, and returns the growth of the process's memory if the process leaks, else `None`.
        `resident` holds the bytes in use, and `free` the bytes left until the limit."""
        self._readings.append((now_s, resident))
        if len(self._readings) >= MEMORY_KEPT:
            self._readings, self._every_s = self._readings[::2], 2 * self._every_s
        judged = self._readings[len(self._readings) // 2 :]
        if len(judged) < MEMORY_JUDGED or judged[-1][1] - judged[0][1] < MEMORY_RISE_MIN_BYTES:
            return None
        rises = sum(after > before for (_, before), (_, after) in zip(judged, judged[1:]))
        rate = statistics.median((y - x) / (t - s) for (s, x), (t, y) in itertools.combinations(judged, 2) if t > s)
        if rate <= 0 or rises < MEMORY_RISES * (len(judged) - 1):
            return None
        growth = Growth(rate, free / rate)
        return growth if growth.full_in_s <= max(MEMORY_HORIZON_S, judged[-1][0] - judged[0][0]) else None


class Spikes:
    """Detects divergence: three steps in a row with a loss or gradient norm far above the median. The median leaves out
    the losses and norms of abnormal steps."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=LOSSES_KEPT)
        self._norms: deque[float] = deque(maxlen=NORMS_KEPT)
        self.in_a_row = 0

    def abnormal(self, loss: float, grad_norm: float) -> bool:
        return loss_spikes(loss, self._losses) or gradient_spikes(grad_norm, self._norms)

    def step_done(self, loss: float, grad_norm: float) -> bool:
        """Adds a finished step, and returns True if at least the last three steps had a spike of loss or gradient
        norm."""
        if self.abnormal(loss, grad_norm):
            self.in_a_row += 1
        else:
            self.in_a_row = 0
            self._losses.append(loss)
            self._norms.append(grad_norm)
        return self.in_a_row >= SPIKE_STEPS

    def state(self) -> dict[str, Any]:
        """Returns the state to store in a checkpoint, so that a restarted process knows the usual losses and norms."""
        return {"losses": list(self._losses), "norms": list(self._norms), "in_a_row": self.in_a_row}

    def load(self, state: dict[str, Any]) -> None:
        self._losses = deque(state.get("losses", ()), maxlen=LOSSES_KEPT)
        self._norms = deque(state.get("norms", ()), maxlen=NORMS_KEPT)
        self.in_a_row = state.get("in_a_row", 0)
