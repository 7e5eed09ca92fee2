"""Compares weights and batches between ranks and runs, and checks whether the trainer reports changed weights."""

from collections.abc import Iterator, Sequence

import numpy as np

from harness.judge.bounds import OFF
from harness.judge.facts import ranks, tellers
from harness.judge.facts.alarms import UNTOLD, Said
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.known import Odd
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import acted_at, first_strike
from harness.timeline.timeline import FaultRecord, Ints

REPLICA, DATA_SKEW = "replica", "data_skew"  # kinds of anomaly as a trainer names them


def weights_unseen(evidence: Analysis) -> str:
    """Returns why the weights of ranks cannot be compared with each other, or an empty text if they can."""
    if evidence.own_weights:
        return "the ranks of the fault-free run differ, too"
    return "the log holds no digest of the weights" if _drifted(evidence) and not evidence.weights_apart[0] else ""


def _drifted(evidence: Analysis) -> Sequence[FaultRecord]:
    return [fault for fault in evidence.run.faults if fault.drifts and fault.injected is not None]


def unnoticed(evidence: Analysis) -> Iterator[Odd]:
    """Yields a text on each fault that changed a rank's weights if the trainer blamed an unchanged rank or reported
    nothing. A missing report is an error only if the changed rank logged a digest of its weights after the fault."""
    run, said = evidence.run, Said(evidence.run, REPLICA)
    for fault in _drifted(evidence):
        since = acted_at(fault) - run.uncertainty_ns
        acted = [int(effect["at"]) for effect in fault.effects if effect.get("ok") is True]
        victims = sorted({target["rank"] for target in fault.targets if isinstance(target.get("rank"), int)})
        named = {alarm["suspect"] for alarm in said.all if alarm["at"] >= since and alarm.get("suspect") is not None}
        shown, wrong = (", ".join(map(str, each)) for each in (victims, sorted(named - {*victims})))
        if said.of(acted_at(fault), None):
            if victims and wrong:
                yield Odd(f"the trainer named rank {wrong}, but fault {fault.id} changed rank {shown}")
        elif checked := [step for rank in victims for step in ranks.digests_after(run.steps, rank, acted)]:
            text = f"fault {fault.id} changed the weights of rank {shown}, {UNTOLD}"
            yield Odd(f"{text}, though it took digests at step {min(checked)}")


def other_weights(evidence: Analysis) -> Iterator[Odd]:
    """Yields a text on the first step whose weights differ from the fault-free run's although all steps before it were
    equal. If each rank holds its own part of the weights, only steps at the fault-free run's world size count."""
    run, fault_free, comparison = evidence.run, evidence.fault_free, evidence.comparison
    if fault_free is None or comparison is None or evidence.incomparable:
        return
    acted = [each.injected for each in run.faults if each.injected is not None and (each.drifts or each.diverges)]
    spoilt = any(run.steps.survives[row : row + 1].any() for row in np.searchsorted(run.steps.end, acted, "right"))
    last = comparison.first_divergent_step or NEVER  # begins with equal weights, too, unless a fault's effect was kept
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
        yield Odd(text)
    elif comparison.identical:
        yield Odd(f"{text}; nothing shows that they are the same in every run", tellers.UNTOLD)


def same_weights(evidence: Analysis) -> Iterator[Odd]:
    """Yields a text on a step whose weights equal an older step's, if the optimizer applied updates between the two
    steps and the fault-free run has no such pair of steps."""
    fault_free, again = evidence.fault_free, ranks.weights_again(evidence.run.steps)
    if again and not (fault_free and ranks.weights_again(fault_free.steps)):
        text = f"at step {again[0]} the weights are those of step {again[1]}, though there were updates in between"
        yield Odd(text, tellers.beside(fault_free, tellers.UNTOLD))


def never_together(evidence: Analysis) -> Iterator[Odd]:
    """Yields a text if no two ranks logged digests for a step since the last restart, and some did without a fault."""
    run, fault_free, last = evidence.run, evidence.fault_free, evidence.run.epochs[-1:]
    if fault_free is None or [each.size for each in last] != [fault_free.largest_world]:
        return
    mine = run.steps.epoch == len(run.epochs) - 1
    told, usual = ranks.weights_together(run.steps, mine), ranks.weights_together(fault_free.steps)
    usual = usual[(usual >= last[0].first) & (usual <= last[0].kept)]
    if not len(told) and len(usual) > 1 and len(np.unique(run.steps.rank[mine & (run.steps.weights != 0)])) > 1:
        text = f"since step {last[0].first} no two ranks told digests of their weights in the same step"
        yield Odd(f"{text}; in the fault-free run they do", tellers.UNTOLD)


def batches_unseen(evidence: Analysis) -> str:
    """Returns why the harness cannot check that batches are complete, or an empty text if the harness can."""
    usual = evidence.fault_free
    also = usual is not None and ranks.samples_short(usual.steps, ranks.samples_counted(usual))
    return "the ranks of the fault-free run leave samples out, too" if also else ""


def uneven(evidence: Analysis, rows: Ints) -> Iterator[Odd]:
    """Yields a text on a rank that got no sample of a batch large enough for all ranks, or far fewer samples than
    another rank. The fault-free run shows which differences between ranks are usual at the same number of ranks. `rows`
    is a non-empty result of the function `samples_counted`."""
    run, fault_free = evidence.run, evidence.fault_free
    usual, usual_few, usual_many = np.zeros((3, 0), np.int64)  # number of ranks; least and most samples of one rank
    if fault_free is not None:
        usual, *theirs = ranks.parts(fault_free.steps, ranks.samples_counted(fault_free))
        usual_few, usual_many = (fault_free.steps.rank_samples[each] for each in theirs)
    size, least, most = ranks.parts(run.steps, rows)
    few, many = run.steps.rank_samples[least], run.steps.rank_samples[most]
    known, none, far = np.isin(size, usual), (few == 0) & (run.steps.count[least] >= size), many - few > 1
    for each in np.unique(usual).tolist():
        here, there = size == each, usual == each
        none[here] &= bool((usual_few[there] > 0).all())
        far[here] &= (many - few)[here] > (usual_many - usual_few)[there].max()
    wrong, odd = none & known, none | (known & far)
    place = int((wrong if wrong.any() else odd).argmax())
    step, one, other = run.steps.step[least[place]], run.steps.rank[least[place]], run.steps.rank[most[place]]
    text = f"at step {step} rank {one} computed with {few[place]} samples and rank {other} with {many[place]}"
    if wrong.any():
        yield Odd(f"{text}; in the fault-free run each rank has some")
    elif odd.any() and known[place]:
        yield Odd(f"{text}; in the fault-free run they have nearly as many", tellers.OWN_FIGURES)
    elif odd.any():
        yield Odd(f"{text}; no fault-free run shows whether that is usual", tellers.UNTOLD)


def samples_untold(evidence: Analysis) -> Iterator[Odd]:
    """Yields a text if a rank does not log its number of samples in a step, although ranks do so in other steps or in
    the fault-free run. A missing number of samples may hide that the rank consumed too few samples."""
    run, fault_free = evidence.run, evidence.fault_free
    here = ranks.tells_samples(run.steps)
    usual = fault_free.steps.rank[ranks.tells_samples(fault_free.steps)] if fault_free else ()
    if (run.plan.get("expect") or {}).get("rank_samples") == OFF or not (len(usual) or here.any()):
        return
    if not here.any():
        yield Odd("the ranks did not report their samples, but those of the fault-free run did", tellers.UNTOLD)
        return
    usual = usual if len(usual) else run.steps.rank  # a rank that is silent in the fault-free run may be silent
    silent = np.flatnonzero(run.steps.survives & run.steps.complete & ~here & np.isin(run.steps.rank, usual))
    if len(silent):
        row = silent[np.lexsort((run.steps.rank[silent], run.steps.step[silent]))[0]]
        who = f"at step {run.steps.step[row]} rank {run.steps.rank[row]}"
        yield Odd(f"{who} did not report its samples, but others were reported", tellers.UNTOLD)
