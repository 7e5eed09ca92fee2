"""All replicas of the model hold the same weights, or the trainer reports the difference and rolls the steps back.

A breach names the step and the rank whose weights differ from the majority's, or both ranks of a job with two ranks. If
the weights of ranks differ, the trainer must report this (`anomaly: replica`) and roll the step back. The run fails if
a fault changed the weights of one rank, and the trainer named another rank. The run fails, too, if a fault changed a
rank's weights, and the trainer logged digests of the weights but reported no difference. The run also fails if a step
has the weights of an older step in spite of updates, unless this happens in the fault-free run, too.
"""

from collections.abc import Sequence

import numpy as np

from harness.evidence import ranks
from harness.judge.facts import tellers
from harness.judge.facts.alarms import UNTOLD, Said, misnamed, unanswered
from harness.judge.guarantee import Analysis, Breaches, FaultRecord, Guarantee, breach, in_words
from harness.judge.verdict import Ground, Kind
from harness.timeline.sorted_events import acted_at, first_strike

REPLICA = "replica"  # kind of anomaly as a trainer names it


def breaches(evidence: Analysis) -> Breaches:
    seen = not nothing(evidence)
    if seen:
        yield from in_words(unanswered(evidence.run, REPLICA, evidence.weights_apart[1]))
        yield from in_words(misnamed(evidence.run, REPLICA, _drifted(evidence)))
        yield from _unnoticed(evidence)
    yield from _other_weights(evidence)
    if seen:
        yield from _same_weights(evidence)
        yield from _never_together(evidence)


def nothing(evidence: Analysis) -> str:
    if evidence.own_weights:
        return "the ranks of the fault-free run differ, too"
    return "the log holds no digest of the weights" if _drifted(evidence) and not evidence.weights_apart[0] else ""


def _drifted(evidence: Analysis) -> Sequence[FaultRecord]:
    return [fault for fault in evidence.run.faults if fault.drifts and fault.injected is not None]


def _unnoticed(evidence: Analysis) -> Breaches:
    run, said = evidence.run, Said(evidence.run, REPLICA)
    for fault in _drifted(evidence):
        acted = [int(effect["at"]) for effect in fault.effects if effect.get("ok") is True]
        victims = sorted({target["rank"] for target in fault.targets if isinstance(target.get("rank"), int)})
        if said.of(acted_at(fault), None):
            continue
        if checked := [step for rank in victims for step in ranks.digests_after(run.steps, rank, acted)]:
            text = f"fault {fault.id} changed the weights of rank {', '.join(map(str, victims))}, {UNTOLD}"
            yield breach(f"{text}, though it took digests at step {min(checked)}")


def _other_weights(evidence: Analysis) -> Breaches:
    run, fault_free, comparison = evidence.run, evidence.fault_free, evidence.comparison
    if fault_free is None or comparison is None or evidence.incomparable:
        return
    acted = [each.injected for each in run.faults if each.injected is not None and (each.drifts or each.diverges)]
    spoilt = any(run.steps.survives[row : row + 1].any() for row in np.searchsorted(run.steps.end, acted, "right"))
    last = comparison.first_divergent_step or run.changed_after  # begins with equal weights, unless a fault spoilt it
    rows, same = ranks.beside(run.steps, fault_free.steps, "weights", last - spoilt)
    if evidence.own_weights:
        alike = np.array([epoch.size == fault_free.largest_world for epoch in run.epochs], np.bool_)
        rows, same = rows[alike[run.steps.epoch[rows]]], same[alike[run.steps.epoch[rows]]]
    if same.all():
        return
    step, first, struck = run.steps.step[rows], rows[~same][0], min(first_strike(run.faults), run.end)
    shown = same & (step > step[0]) & (run.steps.end[rows] < struck)
    text = f"at step {run.steps.step[first]} rank {run.steps.rank[first]} computed with other weights than in the"
    text += " fault-free run, though all steps before it were the same"
    if shown.any() and run.steps.begin[first] >= struck:
        yield breach(text, grounds=[Ground(Kind.LOSSES)])
    elif comparison.identical:
        yield breach(f"{text}; nothing shows that they are the same in every run", tellers.UNTOLD)


def _same_weights(evidence: Analysis) -> Breaches:
    usual, again = evidence.fault_free, ranks.weights_again(evidence.run.steps)
    if again and not (usual and ranks.weights_again(usual.steps)):
        text = f"at step {again[0]} the weights are those of step {again[1]}, though there were updates in between"
        yield breach(text, tellers.beside(evidence.fault_free, tellers.UNTOLD))


def _never_together(evidence: Analysis) -> Breaches:
    run, fault_free, last = evidence.run, evidence.fault_free, evidence.run.epochs[-1:]
    if fault_free is None or [each.size for each in last] != [fault_free.largest_world]:
        return
    mine = run.steps.epoch == len(run.epochs) - 1
    told, usual = ranks.weights_together(run.steps, mine), ranks.weights_together(fault_free.steps)
    usual = usual[(usual >= last[0].first) & (usual <= last[0].kept)]
    if not len(told) and len(usual) > 1 and len(np.unique(run.steps.rank[mine & (run.steps.weights != 0)])) > 1:
        text = f"since step {last[0].first} no two ranks told digests of their weights in the same step"
        yield breach(f"{text}; in the fault-free run they do", tellers.UNTOLD)


GUARANTEE = Guarantee(breaches, rests_on=("weights",), nothing=nothing, switch="replicas")
