"""Each restart takes the whole state: the optimizer's as well as the model's.

With `mode: final`, a process that rolls back without a restart and repeats a step with the same samples must get the
same loss and gradient norm, except for rounding. A repeated step is ignored if the loss of its first execution differs
from the fault-free run's loss.
"""

from dataclasses import fields, replace

import numpy as np

from harness.evidence import losses, ranks
from harness.evidence.deaths import listed
from harness.judge.facts import repeated_steps, tellers
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.thresholds import REPEAT_FACTOR
from harness.timeline.lineage import NEVER


def breaches(evidence: Analysis) -> Breaches:
    yield from _otherwise_again(evidence)
    compared, restores = evidence.comparison, [each for restart in evidence.restarts[1:] for each in restart.restores]
    alone = sorted({each.rank for each in restores if each.entered == ("model",)})
    if alone and not (compared is not None and compared.identical):
        who, their = ("ranks", "their") if len(alone) > 1 else ("rank", "its")
        text = f"{who} {listed([*map(str, alone)])} restored {their} model, and nothing shows that {their}"
        yield breach(f"{text} optimizer's state was restored", *evidence.restarts)


def _otherwise_again(evidence: Analysis) -> Breaches:
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
    pairs = replace(steps, **{each.name: getattr(steps, each.name)[both] for each in fields(steps)})
    rounding = float(losses.rounding(np.ones(1), losses.terms(run))[0])
    for each in repeated_steps.done_again(repeated_steps.executed(replace(run, steps=pairs))):
        for off in each.off.values():
            far = off.apart > REPEAT_FACTOR * np.maximum(off.digit, rounding)
            step, words = off.words(int(far.argmax())) if far.any() else (NEVER, "")
            if step < min(each.differ, default=(NEVER, ""))[0]:
                yield breach(f"at step {step} {words}, with the same samples", tellers.DONE_OTHERWISE)


def nothing(evidence: Analysis) -> str:
    told = any(each.entered for restart in evidence.restarts[1:] for each in restart.restores)
    return evidence.no_restart() or ("" if told else "no rank told whose state it restored")


GUARANTEE = Guarantee(breaches, rests_on=("restores",), nothing=nothing)
