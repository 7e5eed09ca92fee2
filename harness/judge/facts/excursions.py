"""Finds excursions (`mode: final`): steps in a row whose loss or gradient norm is far from the fault-free run's."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.evidence import by_time
from harness.evidence.losses import WORDS, Comparison, near_by
from harness.judge.facts import tellers
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.known import By
from harness.judge.thresholds import (
    LAG_STRETCHES,
    LASTS,
    NEAR_ZERO,
    NORM_OFF,
    RANK_GAP_FACTOR,
    RECOVERS_STEPS,
    SPREAD,
    STRETCH_STEPS,
)
from harness.node.emitter.abnormal import SPIKE_LOSS_EXCESS, SPIKE_LOSS_SPREADS, SPIKE_MARGIN_STEPS, SPIKE_STEPS
from harness.timeline.sorted_events import acted_at
from harness.timeline.timeline import FaultRecord


@dataclass(frozen=True)
class Excursion:
    """An excursion: steps in a row with an abnormal loss or gradient norm, caused in the steps `since` to `until`."""

    words: str
    first: int  # step
    last: int  # step
    since: int
    until: int
    fault: str  # id of a fault that moved the figure, if the figure came back soon after the fault's end
    by: By = tellers.SEEN


def excursions(evidence: Analysis) -> Iterator[Excursion]:
    """Yields the excursions of the loss, then of the gradient norm. Modes other than `final` have no excursions."""
    run, usual, bounds = evidence.run, evidence.fault_free, evidence.continuity
    if bounds is None or bounds.mode != "final" or usual is None or evidence.incomparable:
        return
    sizes = [epoch.size / usual.largest_world for epoch in run.epochs]
    noisier = np.sqrt(max([1, *sizes, *(1 / size for size in sizes)]))  # the gradients of smaller batches
    for whose, compared in evidence.compared.items():
        yield from _of(evidence, compared, "loss", max(SPIKE_LOSS_EXCESS, bounds.max_final_gap / 100), whose)
        yield from _of(evidence, compared, "grad_norm", NORM_OFF * noisier - 1, whose)
        if whose:
            yield from _final_of_rank(compared, RANK_GAP_FACTOR * bounds.max_final_gap, whose)


def _final_of_rank(compared: Comparison, most: float, whose: str) -> Iterator[Excursion]:
    """Ranks that are off in opposite directions have the usual mean loss."""
    gap, last = compared.final_gap_percent, int(compared.step[-1]) if len(compared.step) else 0
    if gap is not None and not abs(gap) <= most + compared.final_scatter_percent:
        words = f"the final loss{whose} is {gap:+.2g} % off that of the same rank in the fault-free run"
        yield Excursion(words, last, last, last, last, "", tellers.of_rank(whose))


def _of(evidence: Analysis, compared: Comparison, name: str, excess: float, whose: str) -> Iterator[Excursion]:
    columns = [getattr(each, name) for each in (compared.run, compared.fault_free)]
    told = np.isfinite(columns).all(axis=0)
    step, parts, theirs = (_stretches(each[told]) for each in (compared.step, *columns))
    if not len(step):
        return
    mine, other = np.median(parts, axis=1), np.median(theirs, axis=1)
    scatter = np.median(np.abs(theirs - other[:, np.newaxis]), axis=1)
    most, least = near_by(other, LAG_STRETCHES), -near_by(-other, LAG_STRETCHES)
    wide = np.maximum(SPIKE_LOSS_SPREADS * SPREAD * near_by(scatter, LAG_STRETCHES), NEAR_ZERO * np.ptp(other))
    far = mine - most > np.maximum(excess * np.abs(most), wide)
    for part in by_time.stretches(mine - most > np.maximum(excess * np.abs(most), NEAR_ZERO * np.ptp(other))):
        far[part] |= part.stop - part.start >= LASTS
    if name == "grad_norm":
        far |= least - mine > np.maximum(excess * mine, wide)
    for part in by_time.stretches(far):
        first, last = int(step[part.start, 0]), int(step[part.stop - 1, -1])
        values = f"{mine[part.start]:.4g} at first, and {other[part.start]:.4g} in the fault-free run"
        words = f"from step {first} to step {last} the {WORDS[name]}{whose} is far off: {values} (medians of ten steps)"
        since, until = int(step[max(0, part.start - LAG_STRETCHES - 1), 0]), int(step[part.start, -1])
        fault = _moved_by(evidence, first, until, last)
        yield Excursion(words, first, last, since, until, fault, tellers.of_rank(whose))


def _moved_by(evidence: Analysis, first: int, until: int, last: int) -> str:
    run = evidence.run
    for fault, begin, end in acted(evidence):
        soon = begin <= until and first <= end + SPIKE_MARGIN_STEPS + SPIKE_STEPS and last <= end + RECOVERS_STEPS
        restarted = any(epoch.begin > acted_at(fault) and epoch.first <= last for epoch in run.epochs[1:])
        if fault.moves and soon and not restarted:
            return fault.id
    return ""


def acted(evidence: Analysis) -> Iterator[tuple[FaultRecord, int, int]]:
    """Yields each injected fault, the job's last step before the fault began, and the job's last step before the fault
    ended."""
    work = evidence.work
    for fault in evidence.run.faults:
        if fault.injected is not None:
            yield fault, work.furthest(fault.injected), work.furthest(by_time.healed_at(evidence.run, fault))


def _stretches(values: Any) -> Any:
    return values[len(values) % STRETCH_STEPS :].reshape(-1, STRETCH_STEPS)
