"""The doubts: what spoils which evidence, and where. The only place that makes of a failure something unknown.

A claim names the ground that it stands on (`harness.judge.verdict`). A row here spoils one kind of ground, for one
reason. A failure on spoilt ground is inconclusive. To excuse a new kind of history, add a row; no question knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.judge.codes import Doubt
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.observable import blindness
from harness.judge.verdict import Claim, Finding, Ground, Kind, Verdict


@dataclass(frozen=True)
class Row:
    """`why` says in words what spoils this ground in this run; an empty text: nothing does. `alone`: these words stand
    in place of the claim's own, which are about nothing then."""

    doubt: Doubt
    spoils: Kind
    why: Callable[[Analysis, Ground], str]
    alone: bool = False


def weighed(claim: Claim, evidence: Analysis) -> Finding | None:
    """What a claim comes to; `None` where nothing hangs on it."""
    if claim.good:
        return Finding(Verdict.PASS, claim.words, claim.code)
    if claim.good is None:
        return Finding(Verdict.INCONCLUSIVE, claim.words, claim.code, claim.doubt)
    if found := spoilt(claim.rests_on, evidence):
        return None if claim.idle else Finding(Verdict.INCONCLUSIVE, found.after(claim.words), claim.code, found.doubt)
    return Finding(Verdict.INVALID if claim.of_a_fault else Verdict.FAIL, claim.words, claim.code)


@dataclass(frozen=True)
class Spoilt:
    """Which doubt holds, and why in words."""

    doubt: Doubt
    why: str
    alone: bool

    def after(self, words: str) -> str:
        return self.why if self.alone else f"{words}; {self.why}"


def spoilt(grounds: Sequence[Ground], evidence: Analysis) -> Spoilt | None:
    """By the first doubt that holds for one of these grounds."""
    for row in TABLE:
        for ground in grounds:
            if row.spoils is ground.kind and (why := row.why(evidence, ground)):
                return Spoilt(row.doubt, why, row.alone)
    return None


def _lines_dropped(evidence: Analysis, ground: Ground) -> str:
    """A full disk took as many lines as are missed, of each process that would have told."""
    run = evidence.run
    known = [run.processes[row].dropped for row in ground.processes]
    lost = all(dropped >= ground.lines for dropped in known) if known else run.dropped
    return f"{run.dropped} events were lost to a full disk" if lost else ""


def _lost_with_their_process(evidence: Analysis, ground: Ground) -> str:
    """The last lines of a process that a fault took never came into the log."""
    run = evidence.run
    if ground.since is not None and ground.processes:
        taken = (evidence.taken[row] + run.uncertainty_ns for row in ground.processes)
        return "the log of a killed rank ends before it" if all(ground.since <= at for at in taken) else ""
    seams = {int(epoch.first) - 1 for epoch in run.epochs if epoch.kept >= 0}
    last = ground.steps and all(step in seams and step - 1 not in ground.steps for step in ground.steps)
    return "its event was lost when its workers died" if last else ""


def _blind(evidence: Analysis, ground: Ground) -> str:
    why = blindness(evidence.run, evidence.fault_free)
    return f"not judged: {why}" if why else ""


def _other_rehearsal(evidence: Analysis, ground: Ground) -> str:
    other = evidence.run.beside.other_losses
    then = "changes what the job computes from there on: rehearse it on another day, or after this one"
    return f"rehearsal {other} {then}" if other else ""


def _never_the_same(evidence: Analysis, ground: Ground) -> str:
    return evidence.never_the_same


def _scatter(evidence: Analysis, ground: Ground) -> str:
    comparison = evidence.comparison
    gap, scatter = (comparison.final_gap_percent, comparison.final_scatter_percent) if comparison else (None, 0.0)
    told = gap is not None and abs(gap) - scatter <= ground.bound
    return f"such gaps scatter by ± {scatter:.2g} % here: train longer, or allow a larger gap" if told else ""


def _order_unproven(evidence: Analysis, ground: Ground) -> str:
    unproven = evidence.consumed is not None and evidence.consumed.unproven
    return "nothing shows that the order is the same in every run" if unproven else ""


def _given_up_before(evidence: Analysis, ground: Ground) -> str:
    run = evidence.run
    early = run.outcome == "aborted" and all(fault.injected is None for fault in run.faults)
    return "the run was aborted before any fault had struck" if early else ""


TABLE: Sequence[Row] = (
    Row(Doubt.BLIND, Kind.STEPS, _blind, alone=True),
    Row(Doubt.TORN_TAIL, Kind.ABSENCE, _lost_with_their_process),
    Row(Doubt.LINES_DROPPED, Kind.ABSENCE, _lines_dropped),
    Row(Doubt.OTHER_REHEARSAL, Kind.LOSSES, _other_rehearsal),
    Row(Doubt.NEVER_THE_SAME, Kind.BITS, _never_the_same, alone=True),
    Row(Doubt.SCATTER, Kind.GAP, _scatter),
    Row(Doubt.ORDER_UNPROVEN, Kind.ORDER, _order_unproven),
    Row(Doubt.NOTHING_STRUCK, Kind.DURATION, _given_up_before),
)
