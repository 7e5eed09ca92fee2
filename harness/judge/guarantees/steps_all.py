"""Every rank does every step that is not rolled back later.

A trainer may log each step on one rank and only some steps on the other ranks. The fault-free run, or else the judged
run, shows how many steps lie between two logged steps of a rank. The run fails if a step is missing in a log and the
log's line numbers show no missing line there. If at least as many log lines as steps are missing, the run is
inconclusive, because a kill or a full disk may have lost the lines.
"""

from collections.abc import Iterator

import numpy as np

from harness.evidence.losses import MISSING_MAX
from harness.evidence.ranks import of_ranks
from harness.evidence.reported import usual_strides
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.verdict import Ground, Kind
from harness.timeline.timeline import Epoch, Ints, Stretch

NAMED_STEPS = 5


def breaches(evidence: Analysis) -> Breaches:
    run, told, strides = evidence.run, evidence.curve.step, usual_strides(evidence.run, evidence.fault_free)
    found: dict[tuple[int, int, int], list[int]] = {}
    for each in run.stretches:
        epoch, stride = run.epochs[each.epoch], strides.get(run.processes[each.process].rank)
        for first, last in _holes(each, epoch, stride) if stride else ():
            last = min(last, epoch.kept)
            begin, end = np.searchsorted(told, [first, last + 1])
            if begin < end:  # steps that no rank reported are yielded below
                found.setdefault((each.epoch, first, last), []).append(each.process)
    for (number, first, last), rows in found.items():
        absent = sorted({run.processes[row].rank for row in rows})
        lines = max(1, (last - first + 1) // max(strides[rank] for rank in absent))
        steps, which = ((first,), f"step {first}") if first == last else ((first, last), f"steps {first} to {last}")
        text = f"{of_ranks(absent, run.epochs[number].size)} did not do {which}, but other ranks did"
        yield breach(text, grounds=[Ground(Kind.ABSENCE, tuple(rows), steps, lines)])
    if len(missing := evidence.missing):
        text = f"{named(missing)}: never done in the surviving history, though later steps were"
        yield breach(text, grounds=[Ground(Kind.ABSENCE, steps=tuple(missing.tolist()))])


def _holes(each: Stretch, epoch: Epoch, stride: int) -> Iterator[tuple[int, int]]:
    begin = max(epoch.first - 1, -1 if each.before is None else each.before)
    if each.first > begin + stride and each.first > epoch.first + stride - 1:
        yield begin + 1, each.first - 1
    for before, after in each.jumps:
        if after - before > stride:
            yield before + 1, after - 1
    if each.stride > stride and each.rows > 1 and not each.jumps:
        yield each.first + 1, each.last - 1


def named(numbers: Ints) -> str:
    shown = ", ".join(str(number) for number in numbers[:NAMED_STEPS].tolist())
    more = ", …" if len(numbers) > NAMED_STEPS else ""
    many = " or more" if len(numbers) >= MISSING_MAX else ""
    return f"steps {shown}{more} ({len(numbers)}{many})" if len(numbers) > 1 else f"step {shown}"


GUARANTEE = Guarantee(breaches)
