"""From the first checkpoint on, there is always one in the store.

The run fails if the store was without any checkpoint at least twice.
"""

import itertools

from harness.judge.facts.store import Save, Store, last_name
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.thresholds import BARE_MIN


def breaches(evidence: Analysis) -> Breaches:
    saves, store, margin_ns = evidence.saves, evidence.saves.store, evidence.run.uncertainty_ns
    emptied, bare = _emptied(store), list[Save]()
    for save, after in itertools.pairwise(() if evidence.run.unseen else store.whole):
        gone = store.went(save)
        later = gone < after.last_at - margin_ns or after in store.sights
        if gone in emptied and later and saves.sound_at(gone)(save) and not store.is_hidden(save.last_at, gone):
            bare.append(save)
    if len(bare) >= BARE_MIN:
        often = f"{len(bare)} times, first that of step {bare[0].step}"
        text = f"the only checkpoint in the store was removed before the next one was committed ({often})"
        yield breach(f"{text}: a job that dies in between has lost all", *bare)


def _emptied(store: Store) -> set[int]:
    """Returns the times at which the only checkpoint in the store was removed."""
    there, emptied = set[str](), set[int]()
    gone = [(at, True, name) for name, moments in store.removed.items() for at in moments]
    for at, is_gone, name in sorted([*gone, *((each.at, False, last_name(each.path)) for each in store.seen)]):
        (there.discard if is_gone else there.add)(name)
        if is_gone and not there:
            emptied.add(at)
    return emptied


CAUSES = ("saves.whole", "saves.written_when_told")
GUARANTEE = Guarantee(breaches, ("checkpoints",), CAUSES, nothing=lambda evidence: next(iter(evidence.run.unseen), ""))
