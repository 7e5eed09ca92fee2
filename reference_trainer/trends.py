"""Logs anomalies of a running training, such as slower steps, by the rules of `harness.events.abnormal`."""

from __future__ import annotations

import time

from harness.events import Emitter, abnormal
from reference_trainer.rhythm import Rhythm

WORDS = {
    abnormal.STAGNATION: f"the loss of the last {abnormal.LOSS_RECENT_STEPS} steps is hardly below that before",
    abnormal.GRADIENT: f"the gradient norm is more than {abnormal.GRADIENT_NORM_FACTOR:g} times the usual one",
    abnormal.SLOW: f"steps take over {abnormal.STEP_TIME_EXCESS:.0%} longer than before",
    abnormal.DATA_WAIT: f"over {abnormal.DATA_WAIT_SHARE:.0%} of the time goes into waiting for data",
    abnormal.CHECKPOINT_LATE: f"no checkpoint for over {abnormal.CHECKPOINT_INTERVALS:g} times the interval",
}


class Trends:
    """Detects anomalies in the trend of loss, gradient norm, step time and data wait. Rank 0 watches loss and gradient
    norm (sums over all ranks) and step times for all ranks. Each rank watches its own wait for data."""

    def __init__(self, emit: Emitter, rank: int, rhythm: Rhythm):
        self._emit, self._rank, self._rhythm = emit, rank, rhythm
        self._watch = abnormal.Watch()
        self._newest, self._newest_ns = -1, 0  # step of the newest checkpoint, or the last before the first one seen
        self._late = False

    def step_done(
        self, step: int, loss: float, grad_norm: float, took_ns: int, data_ns: int, committed_step: int
    ) -> None:
        """Counts a step and logs new anomalies. `committed_step` is the step of the newest checkpoint, or -1."""
        newest = max(committed_step, self._newest if self._newest >= 0 else step - 1)
        if newest != self._newest:
            self._newest, self._newest_ns = newest, time.monotonic_ns()
        found = self._watch.step_done(loss, grad_norm, took_ns, data_ns)
        since_s = (time.monotonic_ns() - self._newest_ns) / 1e9
        late = abnormal.checkpoint_is_late(*self._rhythm.since(step - newest, since_s))
        found += [abnormal.CHECKPOINT_LATE] if late and not self._late else []
        self._late = late
        for kind in found:
            if self._rank == 0 or kind == abnormal.DATA_WAIT:
                where = f"at step {step} on rank {self._rank}" if kind == abnormal.DATA_WAIT else f"at step {step}"
                self._emit("anomaly", kind=kind, detail=f"{where}: {WORDS[kind]}", at_step=step)
