"""No file of a checkpoint is written by more than one rank."""

import itertools
from collections.abc import Sequence

from harness.judge.facts.store import Save
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.timeline.lookups import grouped
from harness.units import counted


def breaches(evidence: Analysis) -> Breaches:
    """Yields files that two ranks wrote. Ranks that write at the same time may mix their bytes in one file. Ranks that
    write one after the other are a breach only if their bytes differ."""
    pairs, margin_ns = _collisions(evidence), evidence.run.uncertainty_ns
    at_once = [(a, b) for a, b in pairs if max(a.at, b.at) + margin_ns < min(_written(a), _written(b))]
    other = [(a, b) for a, b in pairs if a.content and b.content and a.content != b.content]
    for mine, when in ((at_once, "at the same time"), (other, "for one step, and not the same bytes")):
        if mine:
            first, second = sorted(evidence.run.processes[save.process].rank for save in mine[0])
            path = mine[0][0].begun_path.rpartition(f"/{evidence.run.plan.get('run_id')}/")[2]
            often = f"{counted(len(mine), 'time')}, first in the save of step {mine[0][0].step}"
            known = mine[0] if mine is at_once else [save.word for save in mine[0]]
            yield breach(f"ranks {first} and {second} wrote {path} {when} ({often})", *known)


def _written(save: Save) -> int:
    """Returns the time at which the files of this save were completely written."""
    return (save.begun or 0) + (save.write_ns or 0)


def _collisions(evidence: Analysis) -> Sequence[tuple[Save, Save]]:
    """Returns pairs of saves of one step for which two ranks of one world wrote the same file."""
    run, saves = evidence.run, evidence.saves
    worlds = grouped((row, number) for number, epoch in enumerate(run.epochs) for row in epoch.processes)
    run_id = str(run.plan.get("run_id"))

    def is_one_file(save: Save) -> bool:
        """Returns True if the save is one file. A folder may hold a file of each rank."""
        alone = len(save.files) == 1 and save.path.rpartition("/")[2] == save.files[0]
        return save.begun is not None and save.told and alone and save.begun_path.startswith("/")

    def collide(one: Save, other: Save) -> bool:
        """Returns True if two ranks of one world wrote the same file. Ranks on two nodes count only if the harness sees
        the file in the shared store: two nodes may each have a disk of their own at the same path."""
        mine, theirs = run.processes[one.process], run.processes[other.process]
        beside = not {*worlds.get(one.process, ())}.isdisjoint(worlds.get(other.process, ()))
        if min(one.process, other.process) < 0 or mine.rank == theirs.rank or not beside:
            return False
        seen = any(one.path.endswith(f"/{each.path}") for each in saves.store.looks_at(one))
        at_home = (mine.node, mine.incarnation) == (theirs.node, theirs.incarnation)
        return at_home or (seen and run_id in one.path.split("/"))

    files = grouped(((save.step, save.begun_path), save) for save in saves.all if is_one_file(save))
    pairs = (pair for mine in files.values() for pair in itertools.pairwise(mine) if collide(*pair))
    return sorted(pairs, key=lambda pair: pair[0].at)


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints",))
