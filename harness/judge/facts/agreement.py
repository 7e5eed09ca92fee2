"""Compares the values that ranks log for each step, such as the loss, between ranks and with the fault-free run."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from harness.judge.facts import by_time, losses, ranks, repeated_steps, tellers
from harness.judge.facts.alarms import LeftOut
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.known import Odd
from harness.judge.facts.losses import CURVES, WORDS, Comparison, Curve
from harness.judge.thresholds import LAST_STEPS, REPEAT_FACTOR, SAME_STEPS
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import first_strike
from harness.units import counted

SAMPLES = {"digest": "samples", "first": "sample position", "count": "batch size"}  # in words
MOVING = WORDS | {"sync_ns": "time of the gradient sync in ns"}
NO_BOUND = "the scenario sets no bound on it"


def unbound(evidence: Analysis) -> str:
    return "" if evidence.continuity else NO_BOUND


def own_losses(evidence: Analysis) -> bool:
    """Returns True if each rank of the fault-free run logs its own loss, so that losses differ from rank to rank."""
    usual = evidence.fault_free.steps if evidence.fault_free else None
    return usual is not None and ranks.is_local(usual, "loss", ranks.telling(usual, "loss"))


def disagreements(evidence: Analysis) -> Iterator[Odd]:
    """Yields a text for each quantity, such as the loss, for which ranks log different values in the same step. A
    quantity that differs between ranks by design is compared, rank by rank, with the fault-free run. The fault-free run
    or, if there is none, the steps before the first fault show which quantities differ by design."""
    run, fault_free, bounds = evidence.run, evidence.fault_free, evidence.continuity
    if bounds is None:
        return
    before = run.steps.survives & (run.steps.end < first_strike(run.faults))
    usual = fault_free.steps if fault_free else replace(run.steps, survives=before)
    closely = {"exact": 0.0, "ulp": bounds.max_ulp}.get(bounds.mode) if not evidence.never_the_same else None
    followed = evidence.consumed is not None or bounds.samples == "reported"
    for name, words in (WORDS if followed else WORDS | SAMPLES).items():
        telling = ranks.telling(fault_free.steps if fault_free else run.steps, name)
        local = ranks.is_local(usual, name, telling)
        if local and fault_free is not None:
            allowed = closely if name in CURVES else None if bounds.moves_samples else 0.0
            row = None if allowed is None else ranks.off_the_fault_free_run(run.steps, fault_free.steps, name, allowed)
            if row is not None:
                whose = f"at step {run.steps.step[row]} the {words} of rank {run.steps.rank[row]}"
                yield Odd(f"{whose} differs from the same rank of the fault-free run")
        elif bad := ranks.split(run.steps, name, telling):
            text = f"at step {bad[0]} ranks {bad[1]} disagree on the {words}"
            if local:
                yield Odd(f"{text}, and no fault-free run shows whether they always do", tellers.UNTOLD)
            else:
                yield Odd(text)


def far_off(evidence: Analysis) -> Iterator[Odd]:
    """Yields a text for each rank whose last losses are constant, or have a median that exceeds the 95 % quantile of
    the fault-free run's last losses by more than `max_final_gap` percent."""
    run, usual, comparison, bounds = evidence.run.steps, evidence.fault_free, evidence.comparison, evidence.continuity
    if bounds is None or bounds.mode != "final" or usual is None or comparison is None or not own_losses(evidence):
        return
    first = int(comparison.step[-LAST_STEPS:].min(initial=NEVER))
    late, told = (each.survives & (each.step >= first) & np.isfinite(each.loss) for each in (run, usual.steps))
    if told.sum() < LAST_STEPS or len(comparison.step) < 2 * LAST_STEPS:
        return
    most = float(np.quantile(usual.steps.loss[told], 0.95))
    for rank in np.unique(run.rank[late]).tolist()[1:]:
        losses, text = run.loss[late & (run.rank == rank)], f"from step {first} on the loss of rank {rank} is"
        if np.median(losses) > most + bounds.max_final_gap / 100 * abs(most):
            told_as = f"{np.median(losses):.4g} in the median, and below {most:.4g} mostly without a fault"
            yield Odd(f"{text} {told_as}", tellers.OWN_FIGURES)
        elif len(losses) == LAST_STEPS and np.ptp(losses) == 0 < np.ptp(usual.steps.loss[told]):
            yield Odd(f"{text} {losses[0]:g} in each step, and changes without a fault", tellers.OWN_FIGURES)


def untold(evidence: Analysis) -> Iterator[Odd]:
    """Yields a text for each quantity, such as loss, that only the run or only the fault-free run logs at a step."""
    run, fault_free, comparison, bounds = evidence.run, evidence.fault_free, evidence.comparison, evidence.continuity
    if bounds is None or fault_free is None or comparison is None or evidence.incomparable:
        return
    for name, rows in ranks.holes(run.steps, fault_free.steps):
        if len(rows):
            text = f"rank {run.steps.rank[rows[0]]} does not tell its {WORDS[name]} at step {run.steps.step[rows[0]]}"
            such = f"where it does in the fault-free run ({counted(len(rows), 'such value')})"
            yield Odd(f"{text}, {such}", tellers.UNTOLD)
        if len(steps := comparison.alone(name)):
            text = f"the {WORDS[name]} of {counted(len(steps), 'step')} is told by one of the two runs only"
            yield Odd(f"{text}, first at step {steps[0]}", tellers.UNTOLD)


def never_changing(comparison: Comparison | None, resized: bool = False) -> Iterator[Odd]:
    """Yields a text if a loss, gradient norm or gradient-sync time stays constant over many steps at which the
    fault-free run's value changes. If the number of ranks changed (`resized`), gradient-sync times are not checked."""
    if comparison is None:
        return
    for name in ("loss", "grad_norm", "sync_ns")[: 2 if resized else 3]:
        mine, usual = getattr(comparison.run, name), getattr(comparison.fault_free, name)
        for part in by_time.stretches(mine[1:] == mine[:-1]):
            if part.stop - part.start >= SAME_STEPS and not (usual[1:] == usual[:-1])[part].any():
                steps = f"{comparison.step[part.start]} to {comparison.step[part.stop]}"
                text = f"the {MOVING[name]} is {mine[part.start]:g} in all steps {steps}"
                yield Odd(f"{text}, and changes at each of them without a fault", tellers.OWN_FIGURES)


def otherwise_again(evidence: Analysis) -> Iterator[Odd]:
    """Yields a text if a process executed a step twice with equal samples, but with different losses or gradient norms.
    Only steps whose first execution has the fault-free run's loss bit for bit are checked, and only in `mode: final`.
    Rounding errors, and repeats after a skipped update or before the last non-killing fault, are not reported."""
    run, steps, usual, bounds = evidence.run, evidence.run.steps, evidence.fault_free, evidence.continuity
    if bounds is None or bounds.mode != "final" or usual is None or evidence.incomparable or evidence.never_the_same:
        return
    before = replace(steps, survives=~steps.survives)
    again, first = losses.paired(steps, before)
    rows, same = ranks.beside(before, usual.steps, "loss")
    acted = max((fault.injected or 0 for fault in run.faults if not fault.kills), default=0)
    skipped = steps.step[again[steps.applied[again] == 0]].min(initial=NEVER)
    told = (steps.digest[again] != 0) | (steps.samples[again] >= 0) | (steps.first[again] >= 0)
    told &= steps.process[again] == steps.process[first]
    told &= (steps.digest[again] == 0) == (steps.digest[first] == 0)
    told &= np.isin(first, rows[same]) & (steps.begin[again] >= acted) & (steps.step[again] < skipped)
    both = np.sort(np.append(first[told], again[told]))
    pairs = replace(steps, **{name: column[both] for name, column in vars(steps).items()})
    rounding = float(losses.rounding(np.ones(1), losses.terms(run))[0])
    for each in repeated_steps.done_again(repeated_steps.executed(replace(run, steps=pairs))):
        for off in each.off.values():
            far = off.apart > REPEAT_FACTOR * np.maximum(off.digit, rounding)
            step, words = off.words(int(far.argmax())) if far.any() else (NEVER, "")
            if step < min(each.differ, default=(NEVER, ""))[0]:
                yield Odd(f"at step {step} {words}, with the same samples", tellers.DONE_OTHERWISE)


def others_consumed(evidence: Analysis) -> Iterator[Odd]:
    """Yields a text with the number of steps in which the run consumed samples other than those of the fault-free run.
    Steps whose sample positions are only shifted are not counted if the scenario allows repeated or skipped samples."""
    comparison, consumed, bounds = evidence.comparison, evidence.consumed, evidence.continuity
    if bounds is None or bounds.samples == "reported" or comparison is None:
        return
    if consumed is not None:
        steps, first = (0 if bounds.moves_samples else consumed.moved), consumed.first_moved
    else:
        mine, other = comparison.run, moved_on(comparison.fault_free, evidence.left_out)
        differ = (mine.digest != other.digest) & (mine.digest != 0) & (other.digest != 0)
        told = (mine.first >= 0) & (other.first >= 0) & (mine.count >= 0) & (other.count >= 0)
        differ |= told & ((mine.first != other.first) | (mine.count != other.count)) & (not bounds.moves_samples)
        steps, first = int(differ.sum()), next(iter(comparison.step[differ].tolist()), None)
    if steps:
        text = f"{counted(steps, 'step')} consumed other samples than the fault-free run"
        yield Odd(f"{text}, first at step {first}")


def moved_on(fault_free: Curve, left_out: LeftOut) -> Curve:
    """Returns the fault-free run's values by step, with its sample positions moved past the samples that the judged run
    was allowed to leave out. A step without a fault-free batch at its moved position loses its digest of samples."""
    if not left_out.accepted or not len(fault_free) or (fault_free.first < 0).any():
        return fault_free
    first, order = left_out.moved(fault_free.first), np.argsort(fault_free.first)
    place = order[np.searchsorted(fault_free.first, first, sorter=order).clip(max=len(order) - 1)]
    known = fault_free.first[place] == first
    return replace(fault_free, first=first, digest=np.where(known, fault_free.digest[place], 0))
