"""Anomalies: what the log shows as abnormal is told by the trainer, and what was told survives in no step.

A loss that leaves its course and does not come back; a rank with other weights, or with those of an older step; a batch
with samples missing; memory that leaks. Loss and gradient norm are sums over all ranks and prove nothing about one
rank: a digest of each rank's own weights (`weights` of a step) and its own count of samples (`rank_samples`) do.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from harness.emitter import abnormal
from harness.judge.facts import ranks, reported
from harness.judge.facts.alarms import Said
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.spikes import seldom
from harness.judge.score import Bounds, Evidence, Expectation, S, Score, ScoreResult, Verdict
from harness.judge.verdict import Claim, Code, Doubt, Ground, Kind, failed, unknown
from harness.timeline.lineage import NEVER
from harness.timeline.timeline import FaultRecord, Ints, Timeline

UNTOLD = "and the trainer did not say so"


class Seen(NamedTuple):
    """Something abnormal, as the log shows it."""

    what: object  # in words
    begin: int  # ns
    survives: bool
    steps: tuple[int, int] | None = None  # an alarm that names a step names one of these


def _unanswered(said: Said, found: Iterable[Seen], untold: Code, went_on: Code) -> Iterator[Claim]:
    """The rule: what is abnormal is told, and survives in no step."""
    for each in found:
        if not said.of(each.begin, each.steps):
            yield failed(untold, f"{each.what}, {UNTOLD}")
        elif each.survives:
            yield failed(went_on, f"{each.what}; the trainer said so, and went on with these steps")


class DivergenceBounds(Bounds):
    """Nothing to set; `divergence: off` where nobody has to go back."""


class Divergence(Score):
    """Judged where a fault drives the loss away: a spike that passes by itself needs no answer. What a trainer says
    that it left out is judged in every run."""

    name = "divergence"
    section = "metrics"
    order = 29  # before the losses: what diverged is the cause of other losses
    Bounds = DivergenceBounds
    by_default = "divergence of the loss"

    def score(self, evidence: Analysis, bounds: DivergenceBounds | None) -> ScoreResult:
        run, left_out = evidence.run, evidence.left_out
        values = {"loss_spikes": len(evidence.spikes), "samples_left_out": sum(n for _, n in left_out.accepted)}
        if bounds is None:
            return ScoreResult(values)
        struck = min((f.injected for f in run.faults if f.diverges and f.injected is not None), default=None)
        reasons = [failed(Code.SAMPLES_LEFT_OUT_WRONG, text) for text in left_out.wrong]
        reasons += [unknown(Code.SAMPLES_LEFT_OUT_UNPROVEN, text) for text in left_out.unproven]
        if struck is None:
            return _first_of(self, values, reasons)
        survives = run.steps.survives
        found = [
            Seen(
                each, each.begin, bool(survives[list(each.rows)].any()), (each.since, each.seen + abnormal.SPIKE_STEPS)
            )
            for each in evidence.spikes
            if each.end >= struck
        ]
        said = Said(run, abnormal.DIVERGENCE)
        why = f"the loss is not told in each step, and a spike lasts {abnormal.SPIKE_STEPS} of them"
        unanswered = _unanswered(said, found, Code.SPIKE_UNTOLD, Code.SPIKE_WENT_ON)
        return _first_of(self, values, [*unanswered, *reasons], why if seldom(run) else "")


class ReplicasBounds(Bounds):
    """Nothing to set; `replicas: off` where ranks are meant to hold different weights."""


class Replicas(Score):
    """The newest alarm is no excuse: weights that differ must not survive."""

    name = "replicas"
    section = "metrics"
    order = 28  # before the losses: weights that differ are the cause of other losses
    Bounds = ReplicasBounds
    by_default = reported.ITEMS["weights"]

    def score(self, evidence: Analysis, bounds: ReplicasBounds | None) -> ScoreResult:
        run, fault_free = evidence.run, evidence.fault_free
        told, apart = evidence.weights_apart
        values = {"replica_checks": told, "replicas_apart": len(apart)}
        if bounds is None:
            return ScoreResult(values)
        if fault_free is not None and ranks.weights_apart(fault_free.steps)[1]:
            why = "the ranks of the fault-free run differ, too"
            return _first_of(self, values, _other_weights(evidence, fault_free.largest_world), why)
        struck = [fault for fault in run.faults if fault.drifts and fault.injected is not None]
        if struck and not told:
            return _first_of(self, values, (), "the log holds no digest of the weights")
        said, found = Said(run, "replica"), [Seen(each, each.begin, each.survives) for each in apart]
        unanswered = _unanswered(said, found, Code.REPLICAS_UNTOLD, Code.REPLICAS_WENT_ON)
        unnoticed = _unnoticed(run, struck, said) if struck else ()
        return _first_of(self, values, [*unanswered, *unnoticed, *_other_weights(evidence), *_same_weights(evidence)])


def _other_weights(evidence: Analysis, world: int | None = None) -> Iterator[Claim]:
    """Weights follow from the steps before: where those are the fault-free run's bit for bit, so are the weights.
    `world`: only in a world of so many ranks, each of which holds its own part."""
    run, fault_free, comparison = evidence.run, evidence.fault_free, evidence.comparison
    if fault_free is None or comparison is None or evidence.incomparable:
        return
    spoilt = any(fault.injected is not None and (fault.drifts or fault.diverges) for fault in run.faults)
    last = comparison.first_divergent_step or NEVER  # which began with the same weights, unless a fault spoilt them
    rows, same = ranks.weights_beside(run.steps, fault_free.steps, last - spoilt)
    if world is not None:
        alike = np.array([epoch.size == world for epoch in run.epochs], np.bool_)[run.steps.epoch[rows]]
        rows, same = rows[alike], same[alike]
    if same.all():
        return
    step, first = run.steps.step[rows], rows[~same][0]
    struck = min((fault.injected for fault in run.faults if fault.injected is not None), default=run.end)
    shown = same & (step > step[0]) & (run.steps.end[rows] < struck)
    text = f"at step {run.steps.step[first]} rank {run.steps.rank[first]} computed with other weights than in the"
    text += " fault-free run, though all steps before it were the same"
    if shown.any() and run.steps.begin[first] >= struck:
        yield failed(Code.REPLICAS_OTHER_WEIGHTS, text, Ground(Kind.LOSSES))
    elif comparison.identical:
        yield unknown(Code.REPLICAS_OTHER_WEIGHTS, f"{text}; nothing shows that they are the same in every run")


def _same_weights(evidence: Analysis) -> Iterator[Claim]:
    """Each update changes the weights, unless those of the fault-free run stay the same, too."""
    fault_free, again = evidence.fault_free, ranks.weights_again(evidence.run.steps)
    if again is None or (fault_free is not None and ranks.weights_again(fault_free.steps)):
        return
    text = f"at step {again[0]} the weights are those of step {again[1]}, though there were updates in between"
    yield Claim(Code.REPLICAS_SAME_WEIGHTS, text, None if fault_free is None else False)


def _unnoticed(run: Timeline, struck: Iterable[FaultRecord], said: Said) -> Iterator[Claim]:
    """Weights that a fault changed, as it measured, of which the trainer said nothing or named another rank."""
    digests, suspects = ranks.Digests(run.steps), said.suspects()
    for fault in struck:
        acted = [int(effect["at"]) for effect in fault.effects if effect.get("ok") is True]
        victims = {target["rank"] for target in fault.targets if isinstance(target.get("rank"), int)}
        shown = ", ".join(map(str, sorted(victims)))
        if said.of(fault.injected or 0, None):
            since = (fault.injected or 0) - run.uncertainty_ns
            wrong = sorted(rank for rank, last in suspects.items() if last >= since and rank not in victims)
            if victims and wrong:
                names = ", ".join(map(str, wrong))
                text = f"the trainer named rank {names}, but fault {fault.id} changed rank {shown}"
                yield failed(Code.REPLICAS_WRONG_RANK, text)
        elif acted:
            steps = [digests.checked_after(rank, acted[0]) for rank in victims]
            if checked := [step for step in steps if step is not None]:
                text = f"fault {fault.id} changed the weights of rank {shown}, {UNTOLD}"
                yield failed(Code.REPLICAS_UNNOTICED, f"{text}, though it took digests at step {min(checked)}")


class RankSamplesBounds(Bounds):
    """Nothing to set; `rank_samples: off` where ranks are meant to leave samples out."""


class RankSamples(Score):
    """A rank with fewer samples, or with some twice, raises no error, and the places of the global batch in the
    shuffled order stay right."""

    name = "rank_samples"
    section = "metrics"
    order = 27  # before the losses: other samples are the cause of other losses
    Bounds = RankSamplesBounds
    by_default = "samples of each rank"

    def score(self, evidence: Evidence, bounds: RankSamplesBounds | None) -> ScoreResult:
        run, fault_free = evidence.run, evidence.fault_free
        rows = ranks.samples_counted(run.steps)
        untold = _untold(run, fault_free)
        if not len(rows):
            return _first_of(self, {}, untold if bounds else ())
        short = ranks.samples_short(run.steps, rows)
        totals = np.bincount(run.steps.rank[rows], weights=run.steps.rank_samples[rows])
        totals = totals[np.unique(run.steps.rank[rows])]
        values = {"rank_samples_min": int(totals.min()), "rank_samples_max": int(totals.max())}
        values |= {"batches_short": len(short)}
        if bounds is None:
            return ScoreResult(values)
        if fault_free is not None and ranks.samples_short(fault_free.steps, ranks.samples_counted(fault_free.steps)):
            return _first_of(self, values, (), "the ranks of the fault-free run leave samples out, too")
        found = [Seen(each, each.begin, True, (each.step, each.step)) for each in short]
        code = Code.RANK_SAMPLES_SHORT
        unanswered = _unanswered(Said(run, "data_skew"), found, code, code)
        return _first_of(self, values, [*unanswered, *_unlike_shares(run, fault_free, rows), *untold])


def _unlike_shares(run: Timeline, fault_free: Timeline | None, rows: Ints) -> Iterator[Claim]:
    """A rank with none of a batch that is large enough for all, or with far fewer than another one, where as many ranks
    share their batches evenly in the fault-free run."""
    found = ranks.parts(run.steps, rows)
    samples, asked = run.steps.rank_samples, run.steps.count
    apart = samples[found.most] - samples[found.least]
    none = (samples[found.least] == 0) & (asked[found.least] >= found.size)
    known = np.zeros(len(none), np.bool_)
    if fault_free is not None:
        usual = ranks.parts(fault_free.steps, ranks.samples_counted(fault_free.steps))
        least, most = fault_free.steps.rank_samples[usual.least], fault_free.steps.rank_samples[usual.most]
        for size in np.unique(usual.size):
            same = usual.size == size
            known |= found.size == size
            none &= (found.size != size) | (least[same] > 0).all()
            apart[found.size == size] -= max(1, int((most - least)[same].max()))
    wrong, odd = none & known, none | (known & (apart > 0))
    for place in np.flatnonzero(wrong if wrong.any() else odd)[:1].tolist():
        least, most = found.least[place], found.most[place]
        text = f"at step {run.steps.step[least]} rank {run.steps.rank[least]} computed with {samples[least]} samples"
        text += f" and rank {run.steps.rank[most]} with {samples[most]}"
        if wrong[place]:
            yield failed(Code.RANK_SAMPLES_NONE, f"{text}; in the fault-free run each rank has some")
            return
        usual_is = "in the fault-free run they have nearly as many"
        why = usual_is if known[place] else "no fault-free run shows whether that is usual"
        yield unknown(Code.RANK_SAMPLES_UNEVEN, f"{text}; {why}")


def _untold(run: Timeline, fault_free: Timeline | None) -> Iterator[Claim]:
    """A trainer that tells its samples in some steps tells them in all: what it leaves out may be what went wrong."""
    here = ranks.tells_samples(run.steps)
    usual = None if fault_free is None else fault_free.steps.rank[ranks.tells_samples(fault_free.steps)]
    if not here.any():
        if usual is not None and len(usual):
            text = "the ranks did not report their samples, but those of the fault-free run did"
            yield unknown(Code.RANK_SAMPLES_MISSING, text)
        return
    silent = np.flatnonzero(run.steps.survives & run.steps.complete & ~here)
    if usual is not None and len(usual):  # who is silent there is silent by rule
        silent = silent[np.isin(run.steps.rank[silent], usual)]
    if len(silent):
        first = silent[np.lexsort((run.steps.rank[silent], run.steps.step[silent]))[0]]
        who = f"at step {run.steps.step[first]} rank {run.steps.rank[first]}"
        yield unknown(Code.RANK_SAMPLES_UNTOLD, f"{who} did not report its samples, but others were reported")


def _first_of(score: Score, values: dict[str, Any], claims: Iterable[Claim], why_not: str = "") -> ScoreResult:
    """The first claim: what follows has the same cause. `why_not`: it is not judged, or not all of it."""
    first = [replace(claim, words=f"{score.name}: {claim.words}") for claim in itertools.islice(claims, 1)]
    return ScoreResult(values, reasons=first, not_judged=[(score.by_default, why_not)] if why_not else ())


class MemoryBounds(Bounds):
    """`foreseen`: the trainer says that a rank's memory runs out before that rank ends."""

    foreseen: bool | None = None


class MemoryGrowth(Score):
    """A rank whose memory leaks is found before the kernel kills it. Judged only where a scenario expects it: a trainer
    that is killed and comes back has survived, too."""

    name = "memory_growth"
    order = 26  # before what a killed rank costs: the leak is the cause
    Bounds = MemoryBounds

    def score(self, evidence: Evidence, bounds: MemoryBounds | None) -> ScoreResult:
        leaks = [(fault, rank) for fault in evidence.run.faults if _leaked(fault) for rank in _ranks(fault)]
        if not leaks and bounds is None:
            return ScoreResult({})
        seen = _foreseen(evidence.run, leaks)
        values: dict[str, Any] = {"seconds_until_told": {f"rank {rank}": seen[rank] for rank in sorted(seen)}}
        if bounds is None or not bounds.foreseen:
            return ScoreResult(values)
        name, bound = "memory_growth.foreseen", "each leak"
        if not leaks:
            reason, doubt = "no rank's memory leaked", Doubt.UNMEASURED
            return ScoreResult(values, [Expectation(name, bound, "—", Verdict.INCONCLUSIVE, reason, doubt=doubt)])
        unseen = [rank for rank in sorted(seen) if seen[rank] is None]
        told = f"{len(seen) - len(unseen)} of {len(seen)} ranks"
        if unseen:
            reason = f"the memory of rank {unseen[0]} leaked until it ended, {UNTOLD}"
            return ScoreResult(values, [Expectation(name, bound, told, Verdict.FAIL, reason)])
        latest = max(after for after in seen.values() if after is not None)
        summary = f"the leak was found {latest:.1f} s after it began"
        return ScoreResult(values, [Expectation(name, bound, told, Verdict.PASS)], summary=summary)


def _leaked(fault: FaultRecord) -> bool:
    return fault.leaks and fault.injected is not None and all(effect.get("ok") for effect in fault.effects)


def _ranks(fault: FaultRecord) -> Iterator[int]:
    return (target["rank"] for target in fault.targets if isinstance(target.get("rank"), int))


def _foreseen(run: Timeline, leaks: Iterable[tuple[FaultRecord, int]]) -> dict[int, float | None]:
    """Seconds from each leak's begin until the trainer told of it, if it did so before the leaking process ended."""
    ends, told = dict[int, list[int]](), dict[int, list[int]]()
    for exit_ in run.exits:
        bisect.insort(ends.setdefault(exit_["rank"], []), exit_["at"])
    for alarm in Said(run, abnormal.MEMORY).all:
        bisect.insort(told.setdefault(alarm.get("suspect", alarm["rank"]), []), alarm["at"])
    found = dict[int, float | None]()
    for fault, rank in leaks:
        begin = fault.injected or 0
        ended = _next(ends.get(rank, ()), begin, run.end)
        at = _next(told.get(rank, ()), begin - run.uncertainty_ns, NEVER)
        found[rank] = (at - begin) / S if at <= ended + run.uncertainty_ns else None
    return found


def _next(moments: Sequence[int], since: int, default: int) -> int:
    place = bisect.bisect_left(moments, since)
    return moments[place] if place < len(moments) else default


SCORES = (MemoryGrowth(), RankSamples(), Replicas(), Divergence())
