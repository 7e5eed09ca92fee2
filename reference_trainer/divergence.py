"""Detects that training diverges. If training diverges, all ranks restore an earlier checkpoint, and skip the batches
around the spike.

A single step with a far too large loss or gradient norm does no harm, because the gradient is clipped or the update
skipped. After three steps in a row with a far too large loss or gradient norm, the weights count as spoilt (see
`harness.events.abnormal.Spikes`). All ranks see the same losses, so all ranks decide alike. Checkpoints saved since
shortly before the spike are deleted. The skipped batches come again in the next pass over the data. A checkpoint stores
which samples are skipped, and the usual loss and gradient norm.
"""

from __future__ import annotations

from typing import Any

from harness.events import Emitter, abnormal
from reference_trainer.data import Samples
from reference_trainer.replicas import Setback


class Spike(Setback):
    """Raised if training diverges: checkpoints after step `before` are bad, and samples `left_out` must be skipped."""

    def __init__(self, why: str, before: int, at_step: int, left_out: tuple[int, int]):
        super().__init__(why)
        self.before, self.at_step, self.left_out = before, at_step, left_out


class Divergence:
    """Watches loss and gradient norm of each step. After a spike, makes `samples` skip the batches around the spike."""

    def __init__(self, emit: Emitter, rank: int, samples: Samples, on: bool):
        self._emit, self._rank, self._samples, self._on = emit, rank, samples, on
        self._spikes = abnormal.Spikes()
        self._decided: list[tuple[int, int]] = []  # left out by this process; an older checkpoint does not know of it

    def seems_abnormal(self, loss: float, grad_norm: float) -> bool:
        """Returns True if a step's loss or gradient norm is far above the usual value. Does not record the step."""
        return self._spikes.abnormal(loss, grad_norm)

    def step_done(self, step: int, loss: float, grad_norm: float) -> None:
        """Records a step's loss and gradient norm. Raises `Spike` if the training diverges."""
        if not self._on or not self._spikes.step_done(loss, grad_norm):
            return
        since = step - self._spikes.in_a_row + 1
        detail = f"loss {loss:.4g} and gradient norm {grad_norm:.4g} at step {step}"
        detail += f": far above the usual since step {since}"
        if self._rank == 0:
            self._emit("anomaly", kind=abnormal.DIVERGENCE, detail=detail, at_step=step)
            self._emit("diagnosis", kind="bad-data", decision="roll-back", why=detail)
        raise Spike(detail, since - 1 - abnormal.SPIKE_MARGIN_STEPS, step, self._around(since))

    def _around(self, step: int) -> tuple[int, int]:
        begin = step - abnormal.LEFT_OUT_BEFORE
        first, last = (self._samples.batch(each) for each in (begin, begin + abnormal.LEFT_OUT_STEPS - 1))
        return first.first, last.first + len(last.indices) - first.first

    def gone_back(self, spike: Spike) -> None:
        first, count = spike.left_out
        self._decided.append(spike.left_out)
        self._samples.left_out = merged([*self._samples.left_out, *self._decided])
        detail = f"samples {first} to {first + count - 1} in the data's order are left out once"
        if self._rank == 0:
            print(f"back before the spike: {detail}", flush=True)
            self._emit("samples.left_out", at_step=spike.at_step, first=first, count=count, detail=detail)

    def state(self) -> dict[str, Any]:
        return {"left_out": self._samples.left_out, "usual": self._spikes.state()}

    def load(self, state: dict[str, Any]) -> None:
        self._spikes.load(state.get("usual", {}))
        known = [(first, count) for first, count in state.get("left_out", ())]
        self._samples.left_out = merged([*known, *self._decided])


def merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorts ranges, and merges ranges that overlap or touch. A range is a pair of its first position and its length.

    >>> merged([(30, 10), (0, 8), (4, 6), (40, 2)])
    [(0, 10), (30, 12)]
    """
    found: list[tuple[int, int]] = []
    for first, count in sorted(ranges):
        if found and first <= sum(found[-1]):
            begin, known = found[-1]
            found[-1] = begin, max(known, first + count - begin)
        else:
            found.append((first, count))
    return found
