"""From the first checkpoint on, there is always one in the store."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.saves import Saves
from harness.judge.facts.store import Save, Store, last_name
from harness.judge.guarantee import Breach, Guarantee, breach

BARE_MIN = 2  # once may be the harness's sight, which is that of two looks


def breaches(evidence: Analysis) -> Iterator[Breach]:
    bare = [] if evidence.run.unseen else _bare(evidence.saves, evidence.run.uncertainty_ns)
    if len(bare) >= BARE_MIN:
        often = f"{len(bare)} times, first that of step {bare[0].step}"
        text = f"the only checkpoint in the store was removed before the next one was committed ({often})"
        yield breach(f"{text}: a job that dies in between has lost all", *bare)


def _bare(saves: Saves, margin_ns: int) -> list[Save]:
    """Each was the only one there when it was removed, and the next one was committed, or seen, later."""
    store, emptied = saves.store, _emptied(saves.store)
    went = [(save, after, store.went(save)) for save, after in itertools.pairwise(saves.store.whole)]
    return [
        save
        for save, after, gone in went
        if gone in emptied
        and (gone < after.last_at - margin_ns or after in store.sights)
        and saves.sound_at(gone)(save)
        and not store.is_hidden(save.last_at, gone)
    ]


def _emptied(store: Store) -> set[int]:
    """When a checkpoint was removed and none was left."""
    there, emptied = set[str](), set[int]()
    gone = [(at, True, name) for name, moments in store.removed.items() for at in moments]
    for at, is_gone, name in sorted([*gone, *((each.at, False, last_name(each.path)) for each in store.seen)]):
        (there.discard if is_gone else there.add)(name)
        if is_gone and not there:
            emptied.add(at)
    return emptied


def nothing(evidence: Analysis) -> str:
    return next(iter(evidence.run.unseen), "")


GUARANTEE = Guarantee(
    breaches,
    rests_on=("checkpoints",),
    explained_by=("saves.whole", "saves.written_when_told"),
    nothing=nothing,
)
