"""All ranks do their steps together, as one group."""

import itertools
from collections import Counter

import numpy as np

from harness.evidence.ranks import of_ranks
from harness.judge.facts.tellers import GROUP_SIZE, SILENT_RANKS
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.verdict import Ground, Kind
from harness.timeline.lookups import grouped
from harness.timeline.timeline import Timeline


def breaches(evidence: Analysis) -> Breaches:
    yield from _went_ahead(evidence.run)
    if evidence.fault_free is not None and not any(True for _ in _parts(evidence.fault_free)):
        yield from itertools.islice(_parts(evidence.run), 1)


def _went_ahead(run: Timeline) -> Breaches:
    steps = run.steps
    last = np.array([epoch.first - 1 for epoch in run.epochs], np.int64)
    np.maximum.at(last, run.progress.epoch, run.progress.step)
    rows = np.flatnonzero(steps.step > last[steps.epoch] + 1) if run.epochs else np.zeros(0, np.int64)
    seen = grouped((each.epoch, each.process) for each in run.stretches if each.last > last[each.epoch])
    rows, heard = rows[np.argsort(steps.epoch[rows], kind="stable")], np.unique(steps.rank)
    for mine in np.split(rows, np.flatnonzero(np.diff(steps.epoch[rows])) + 1) if len(rows) else ():
        number = int(steps.epoch[mine[0]])
        epoch, since = run.epochs[number], int(steps.begin[mine].max())
        absent = tuple(sorted(set(epoch.processes) - set(seen[number])))
        grounds = [Ground(Kind.ABSENCE, processes=who, since=since) for who in dict.fromkeys((absent, ()))]
        text = f"{of_ranks(np.unique(steps.rank[mine]).tolist(), epoch.size)} went on to step {epoch.last} alone"
        told = np.isin([run.processes[row].rank for row in absent], heard).any()
        text += f"; the others stopped at step {last[number]}" if told else "; the others told no step"
        yield breach(text, grounds=grounds, idle=bool(epoch.kept <= last[number]))


def _parts(run: Timeline) -> Breaches:
    stayed = Counter(each.process for each in run.stretches)
    for each in run.stretches:
        process, size = run.processes[each.process], run.epochs[each.epoch].size
        if stayed[each.process] == 1 and process.world_size != size:
            text = f"rank {process.rank} began step {each.first} in a group of {process.world_size}"
            yield breach(f"{text}, and others did it in a group of {size}", GROUP_SIZE)
    for epoch in run.epochs:
        absent = epoch.size - len(epoch.processes) - epoch.unheard
        if absent > 0 and epoch.kept - epoch.first >= epoch.size and not run.lost:
            text = f"{absent} of {epoch.size} ranks did none of the steps {epoch.first} to {epoch.kept}"
            yield breach(f"{text}, though they have logs: the group was not one", SILENT_RANKS)


GUARANTEE = Guarantee(breaches)
