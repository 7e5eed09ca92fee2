"""No file of a checkpoint is written by more than one rank.

The run is inconclusive if two ranks begin or commit a checkpoint at the same path, though only one rank does so in the
fault-free run. Checkpoints of the run and the fault-free run are compared by kind and name, if world sizes and layouts
are equal. The run is also inconclusive if files of a complete checkpoint change, while no fault-free checkpoint
changes.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from harness.evidence.coordinates import new_layout
from harness.judge.facts.store import Save, Store
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.thresholds import LAST_WORDS_NS, SMALLER_STEADY
from harness.timeline.lookups import grouped
from harness.timeline.timeline import Timeline
from harness.units import counted

Pair = tuple[Save, Save]


def breaches(evidence: Analysis) -> Breaches:
    pairs, margin_ns = _collisions(evidence), evidence.run.uncertainty_ns
    at_once = [(a, b) for a, b in pairs if max(a.at, b.at) + margin_ns < min(_written(a), _written(b))]
    other = [(a, b) for a, b in pairs if a.content and b.content and a.content != b.content]
    cases = {"at the same time": at_once, "for one step, and not the same bytes": other}
    cases["though only one rank does so without a fault"] = _alone(evidence)
    for when, mine in cases.items():
        if mine:
            one, known = mine[0][0], mine[0] if mine is at_once else [save.word for save in mine[0]]
            first, second = sorted(evidence.run.processes[save.process].rank for save in mine[0])
            path = (one.begun_path or one.path).rpartition(f"/{evidence.run.plan.get('run_id')}/")[2]
            often = f"{counted(len(mine), 'time')}, first in the save of step {one.step}"
            yield breach(f"ranks {first} and {second} wrote {path} {when} ({often})", *known)
    store, usual = evidence.saves.store, None if evidence.new_work() else evidence.saves.store.usual
    for save in _rewritten(store) if usual is not None and usual.sound and not any(_rewritten(usual)) else ():
        text = f"the harness saw the files of the checkpoint of step {save.step} change after it was whole"
        yield breach(f"{text}, which none does without a fault", save.word)


def _alone(evidence: Analysis) -> list[Pair]:
    usual, run, kind = evidence.fault_free_saves, evidence.run, attrgetter("kind", "series")
    if usual is None or evidence.new_work() or evidence.flaw(usual.run) or new_layout(run, [usual.run]):
        return []
    mine, theirs = (_pairs(each.run, ((save.path, save) for save in each.all)) for each in (evidence.saves, usual))
    sizes, usual_sizes = ({epoch.size for epoch in each.epochs} for each in (run, usual.run))
    of_one = {*map(kind, usual.all)} - {kind(save) for save, _ in theirs} if sizes == usual_sizes else ()
    return [pair for pair in mine if kind(pair[0]) in of_one]


def _rewritten(store: Store) -> Iterator[Save]:
    yield from store.rewritten(0)
    for save in store.named:
        looks = [each for each in store.sound.get(save, ()) if each.digests[1]]
        if looks and SMALLER_STEADY * store.left_of(save).get("bytes", 0) > (looks[-1].size or 0):
            yield save


def _written(save: Save) -> int:
    return (save.begun or 0) + (save.write_ns or 0)


def _collisions(evidence: Analysis) -> Sequence[Pair]:
    run, saves = evidence.run, evidence.saves
    run_id = str(run.plan.get("run_id"))

    def is_one_file(save: Save) -> bool:
        alone = len(save.files) == 1 and save.path.rpartition("/")[2] == save.files[0]
        return save.begun is not None and save.told and alone and save.begun_path.startswith("/")

    def collide(pair: Pair) -> bool:
        mine, theirs = (run.processes[save.process] for save in pair)
        path = pair[0].path
        seen = any(path.endswith(f"/{each.path}") for each in saves.store.looks_at(pair[0]))
        return mine.key == theirs.key or (seen and run_id in path.split("/"))

    pairs = _pairs(run, ((save.begun_path, save) for save in saves.all if is_one_file(save)))
    return sorted(filter(collide, pairs), key=lambda pair: pair[0].at)


def _pairs(run: Timeline, saves: Iterable[tuple[str, Save]]) -> list[Pair]:
    worlds = grouped((row, number) for number, epoch in enumerate(run.epochs) for row in epoch.processes)

    def are_beside(one: Save, other: Save) -> bool:
        mine, theirs = run.processes[one.process], run.processes[other.process]
        lived = max(one.at, other.at) <= min(mine.last_seen, theirs.last_seen) + LAST_WORDS_NS
        beside = not {*worlds.get(one.process, ())}.isdisjoint(worlds.get(other.process, ()))
        return lived and beside and mine.rank != theirs.rank

    same = grouped(((save.step, path), save) for path, save in saves if path and save.process >= 0)
    return [pair for mine in same.values() for pair in itertools.pairwise(mine) if are_beside(*pair)]


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints",))
