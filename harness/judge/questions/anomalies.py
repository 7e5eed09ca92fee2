"""Anomalies: what the log shows as abnormal is told by the trainer, and what was told survives in no step.

A loss that leaves its course and does not come back; a rank with other weights, or with those of an older step; a batch
with samples missing; memory that leaks. Loss and gradient norm are sums over all ranks and prove nothing about one
rank: a digest of each rank's own weights (`weights` of a step) and its own count of samples (`rank_samples`) do.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from harness.judge.bounds import MemoryBounds
from harness.judge.facts import ranks
from harness.judge.facts.alarms import Said, seldom
from harness.judge.facts.analysis import Analysis
from harness.judge.score import Evidence, S, Score, ScoreResult, left_open, line
from harness.judge.verdict import Claim, Code, Doubt, Ground, Kind, failed, unknown
from harness.node.emitter import abnormal
from harness.timeline.lineage import NEVER
from harness.timeline.lookups import first_from, grouped
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import FaultRecord, Ints, Timeline

UNTOLD = "and the trainer did not say so"


class Seen(NamedTuple):
    """Something abnormal, as the log shows it."""

    what: object  # in words
    begin: int  # ns
    survives: bool
    steps: tuple[int, int] | None = None  # an alarm that names a step names one of these


class Look(NamedTuple):
    """What a sign comes to in a run. `why_not`: it is not judged, or not all of it."""

    values: dict[str, Any]
    found: Sequence[Seen] = ()
    beside: Iterable[Claim] = ()  # what else there is to claim
    why_not: str = ""


class Sign(Score):
    """A sort of thing that is abnormal: how the log shows it, and the word by which a trainer tells of it."""

    section = "metrics"
    alarm: ClassVar[str]  # the kind of an `anomaly`
    untold: ClassVar[Code]
    went_on: ClassVar[Code]

    @abc.abstractmethod
    def look(self, evidence: Analysis, said: Said) -> Look: ...

    def score(self, evidence: Analysis, bounds: object) -> ScoreResult:
        """The first claim only: what follows has the same cause."""
        said = Said(evidence.run, self.alarm)
        look = self.look(evidence, said)
        if bounds is None:
            return ScoreResult(look.values)
        found = itertools.chain(self._unanswered(said, look.found), look.beside)
        first = [replace(claim, words=f"{self.name}: {claim.words}") for claim in itertools.islice(found, 1)]
        not_judged = [(self.by_default, look.why_not)] if look.why_not else []
        return ScoreResult(look.values, reasons=first, not_judged=not_judged)

    def _unanswered(self, said: Said, found: Iterable[Seen]) -> Iterator[Claim]:
        """The rule: what is abnormal is told, and survives in no step."""
        for each in found:
            told = said.of(each.begin, each.steps)
            if not told or each.survives:
                answer = "; the trainer said so, and went on with these steps" if told else f", {UNTOLD}"
                yield failed(self.went_on if told else self.untold, f"{each.what}{answer}")


class Divergence(Sign):
    """Judged where a fault drives the loss away: a spike that passes by itself needs no answer. What a trainer says
    that it left out is judged in every run."""

    name = "divergence"
    order = 29  # before the losses: what diverged is the cause of other losses
    alarm, untold, went_on = abnormal.DIVERGENCE, Code.SPIKE_UNTOLD, Code.SPIKE_WENT_ON

    def look(self, evidence: Analysis, said: Said) -> Look:
        run, left_out = evidence.run, evidence.left_out
        values = {"loss_spikes": len(evidence.spikes), "samples_left_out": sum(n for _, n in left_out.accepted)}
        beside = [
            *(failed(Code.SAMPLES_LEFT_OUT_WRONG, text) for text in left_out.wrong),
            *(unknown(Code.SAMPLES_LEFT_OUT_UNPROVEN, text) for text in left_out.unproven),
        ]
        struck = min((f.injected for f in run.faults if f.diverges and f.injected is not None), default=None)
        if struck is None:
            return Look(values, (), beside)
        survives = run.steps.survives
        found = [
            Seen(spike, spike.begin, bool(survives[list(spike.rows)].any()), spike.may_be_named)
            for spike in evidence.spikes
            if spike.end >= struck
        ]
        why = f"the loss is not told in each step, and a spike lasts {abnormal.SPIKE_STEPS} of them"
        return Look(values, found, beside, why if seldom(run) else "")


class Replicas(Sign):
    """The newest alarm is no excuse: weights that differ must not survive."""

    name = "replicas"
    order = 28  # before the losses: weights that differ are the cause of other losses
    alarm, untold, went_on = "replica", Code.REPLICAS_UNTOLD, Code.REPLICAS_WENT_ON

    def look(self, evidence: Analysis, said: Said) -> Look:
        run, fault_free = evidence.run, evidence.fault_free
        told, apart = evidence.weights_apart
        values = {"replica_checks": told, "replicas_apart": len(apart)}
        if fault_free is not None and ranks.weights_apart(fault_free.steps)[1]:
            why = "the ranks of the fault-free run differ, too"
            return Look(values, (), _other_weights(evidence, fault_free.largest_world), why)
        struck = [fault for fault in run.faults if fault.drifts and fault.injected is not None]
        if struck and not told:
            return Look(values, why_not="the log holds no digest of the weights")
        found = [Seen(each, each.begin, each.survives) for each in apart]
        unnoticed = _unnoticed(run, struck, said) if struck else ()
        never = _never_together(run, fault_free)
        beside = itertools.chain(unnoticed, _other_weights(evidence), _same_weights(evidence), never)
        return Look(values, found, beside)


def _other_weights(evidence: Analysis, world: int | None = None) -> Iterator[Claim]:
    """Weights follow from the steps before: where those are the fault-free run's bit for bit, so are the weights.
    `world`: only in a world of so many ranks, each of which holds its own part."""
    run, fault_free, comparison = evidence.run, evidence.fault_free, evidence.comparison
    if fault_free is None or comparison is None or evidence.incomparable:
        return
    spoilt = any(fault.injected is not None and (fault.drifts or fault.diverges) for fault in run.faults)
    last = comparison.first_divergent_step or NEVER  # which began with the same weights, unless a fault spoilt them
    rows, same = ranks.beside(run.steps, fault_free.steps, "weights", last - spoilt)
    if world is not None:
        alike = np.array([epoch.size == world for epoch in run.epochs], np.bool_)[run.steps.epoch[rows]]
        rows, same = rows[alike], same[alike]
    if same.all():
        return
    step, first, struck = run.steps.step[rows], rows[~same][0], min(first_strike(run.faults), run.end)
    shown = same & (step > step[0]) & (run.steps.end[rows] < struck)
    text = f"at step {run.steps.step[first]} rank {run.steps.rank[first]} computed with other weights than in the"
    text += " fault-free run, though all steps before it were the same"
    sure = bool(shown.any() and run.steps.begin[first] >= struck)
    if sure or comparison.identical:
        text += "" if sure else "; nothing shows that they are the same in every run"
        yield Claim(Code.REPLICAS_OTHER_WEIGHTS, text, False if sure else None, (Ground(Kind.LOSSES),))


def _same_weights(evidence: Analysis) -> Iterator[Claim]:
    """Each update changes the weights, unless those of the fault-free run stay the same, too."""
    fault_free, again = evidence.fault_free, ranks.weights_again(evidence.run.steps)
    if again is None or (fault_free is not None and ranks.weights_again(fault_free.steps)):
        return
    text = f"at step {again[0]} the weights are those of step {again[1]}, though there were updates in between"
    yield Claim(Code.REPLICAS_SAME_WEIGHTS, text, None if fault_free is None else False)


def _never_together(run: Timeline, fault_free: Timeline | None) -> Iterator[Claim]:
    """Ranks that tell their weights since the last restart or fault, and never in the same step, as without a fault."""
    if fault_free is None or not run.epochs or run.epochs[-1].size != fault_free.largest_world:
        return
    struck = min((fault.injected for fault in run.faults if fault.injected is not None), default=run.begin)
    mine = (run.steps.epoch == len(run.epochs) - 1) & (run.steps.begin > struck)
    since = int(run.steps.step[mine].min(initial=NEVER))
    told, usual = ranks.weights_together(run.steps, mine), ranks.weights_together(fault_free.steps)
    usual = usual[(usual >= since) & (usual <= run.epochs[-1].kept)]
    if not len(told) and len(usual) > 1 and len(set(run.steps.rank[mine & (run.steps.weights != 0)].tolist())) > 1:
        text = f"since step {since} no two ranks told digests of their weights in the same step"
        yield unknown(Code.REPLICAS_NEVER_TOGETHER, f"{text}; in the fault-free run they do")


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


class RankSamples(Sign):
    """A rank with fewer samples, or with some twice, raises no error, and the places of the global batch in the
    shuffled order stay right."""

    name = "rank_samples"
    order = 27  # before the losses: other samples are the cause of other losses
    alarm, untold, went_on = "data_skew", Code.RANK_SAMPLES_SHORT, Code.RANK_SAMPLES_SHORT

    def look(self, evidence: Analysis, said: Said) -> Look:
        run, fault_free = evidence.run, evidence.fault_free
        rows, untold = ranks.samples_counted(run), _untold(run, fault_free)
        if not len(rows):
            return Look({}, (), untold)
        short = ranks.samples_short(run.steps, rows)
        totals = np.bincount(run.steps.rank[rows], weights=run.steps.rank_samples[rows])
        totals = totals[np.unique(run.steps.rank[rows])]
        values = {"rank_samples_min": int(totals.min()), "rank_samples_max": int(totals.max())}
        values |= {"batches_short": len(short)}
        if fault_free is not None and ranks.samples_short(fault_free.steps, ranks.samples_counted(fault_free)):
            return Look(values, why_not="the ranks of the fault-free run leave samples out, too")
        found = [Seen(each, each.begin, True, (each.step, each.step)) for each in short]
        return Look(values, found, itertools.chain(_unlike_shares(run, fault_free, rows), untold))


def _unlike_shares(run: Timeline, fault_free: Timeline | None, rows: Ints) -> Iterator[Claim]:
    """A rank with none of a batch that is large enough for all, or with far fewer than another one, where as many ranks
    share their batches evenly in the fault-free run."""
    found = ranks.parts(run.steps, rows)
    samples, asked = run.steps.rank_samples, run.steps.count
    apart = samples[found.most] - samples[found.least]
    none = (samples[found.least] == 0) & (asked[found.least] >= found.size)
    known = np.zeros(len(none), np.bool_)
    if fault_free is not None:
        usual = ranks.parts(fault_free.steps, ranks.samples_counted(fault_free))
        least, most = fault_free.steps.rank_samples[usual.least], fault_free.steps.rank_samples[usual.most]
        for size in np.unique(usual.size):
            same = usual.size == size
            known |= found.size == size
            none &= (found.size != size) | (least[same] > 0).all()
            apart[found.size == size] -= max(1, int((most - least)[same].max()))
    wrong, odd = none & known, none | (known & (apart > 0))
    sure = bool(wrong.any())
    for place in np.flatnonzero(wrong if sure else odd)[:1].tolist():
        least, most = found.least[place], found.most[place]
        text = f"at step {run.steps.step[least]} rank {run.steps.rank[least]} computed with {samples[least]} samples"
        text += f" and rank {run.steps.rank[most]} with {samples[most]}"
        if sure:
            code, why = Code.RANK_SAMPLES_NONE, "in the fault-free run each rank has some"
        elif known[place]:
            code, why = Code.RANK_SAMPLES_UNEVEN, "in the fault-free run they have nearly as many"
        else:
            code, why = Code.RANK_SAMPLES_UNEVEN, "no fault-free run shows whether that is usual"
        yield Claim(code, f"{text}; {why}", False if sure else None)


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


class MemoryGrowth(Score):
    """A rank whose memory leaks is found before the kernel kills it. Judged only where a scenario expects it: a trainer
    that is killed and comes back has survived, too."""

    name = "memory_growth"
    order = 26  # before what a killed rank costs: the leak is the cause

    def score(self, evidence: Evidence, bounds: MemoryBounds | None) -> ScoreResult:
        leaks = list(_leaks(evidence.run))
        if not leaks and bounds is None:
            return ScoreResult({})
        seen = _foreseen(evidence.run, leaks)
        values: dict[str, Any] = {"seconds_until_told": {f"rank {rank}": seen[rank] for rank in sorted(seen)}}
        if bounds is None or not bounds.foreseen:
            return ScoreResult(values)
        name, bound = "memory_growth.foreseen", "each leak"
        if not leaks:
            return ScoreResult(values, [left_open(name, bound, "no rank's memory leaked", Doubt.UNMEASURED)])
        unseen = [rank for rank in sorted(seen) if seen[rank] is None]
        told = f"{len(seen) - len(unseen)} of {len(seen)} ranks"
        if unseen:
            reason = f"the memory of rank {unseen[0]} leaked until it ended, {UNTOLD}"
            return ScoreResult(values, [line(name, bound, told, reason)])
        latest = max(after for after in seen.values() if after is not None)
        summary = f"the leak was found {latest:.1f} s after it began"
        return ScoreResult(values, [line(name, bound, told, "")], summary=summary)


def _leaks(run: Timeline) -> Iterator[tuple[int, int]]:
    """When each began, and the rank."""
    for fault in run.faults:
        if fault.leaks and fault.injected is not None and all(effect.get("ok") for effect in fault.effects):
            ranks_hit = (target.get("rank") for target in fault.targets)
            yield from ((fault.injected, rank) for rank in ranks_hit if isinstance(rank, int))


def _foreseen(run: Timeline, leaks: Iterable[tuple[int, int]]) -> dict[int, float | None]:
    """Seconds from each leak's begin until the trainer told of it, if it did so before the leaking process ended."""
    ends = grouped((exit_["rank"], exit_["at"]) for exit_ in run.exits)
    alarms = Said(run, abnormal.MEMORY).all
    told = grouped((alarm.get("suspect", alarm["rank"]), alarm["at"]) for alarm in alarms)
    found = dict[int, float | None]()
    for begin, rank in leaks:
        ended = min(first_from(ends.get(rank, ()), begin), run.end)
        at = first_from(told.get(rank, ()), begin - run.uncertainty_ns)
        found[rank] = (at - begin) / S if at <= ended + run.uncertainty_ns else None
    return found


SCORES = (MemoryGrowth(), RankSamples(), Replicas(), Divergence())
