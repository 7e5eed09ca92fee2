"""From the first checkpoint on, there is always one in the store.

The run fails if the store was without any checkpoint at least twice, or once for at least 5 s. A removed checkpoint is
ignored if a fault had damaged it, if the harness saw it there again, or if the job went back to before its step.
"""

import itertools

from harness.judge.facts.store import Save, Store, last_name
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.thresholds import BARE_MIN, UNSEEN_LEAST_NS
from harness.timeline.lookups import first_from
from harness.units import counted, format_duration


def breaches(evidence: Analysis) -> Breaches:
    saves, store, margin_ns = evidence.saves, evidence.saves.store, evidence.run.uncertainty_ns
    emptied, bare, seen = _emptied(store), dict[Save, int](), [each.at for each in store.seen]
    for save, after in itertools.pairwise(() if evidence.run.unseen else store.whole):
        gone = store.went(save)
        told_ns, seen_ns = after.last_at - gone, first_from(seen, gone) - gone
        bare_ns = min(told_ns, seen_ns)
        if told_ns <= 0 and after in store.sights and seen_ns >= UNSEEN_LEAST_NS:
            bare_ns = seen_ns  # the harness sees a checkpoint later than it is committed, but not so late
        again = after.step <= save.step or any(look.at > gone for look in store.sights.get(save, ()))
        if gone in emptied and bare_ns > margin_ns and not again and saves.sound_at(gone)(save):
            bare[save] = bare_ns
    longest_ns, count = max(bare.values(), default=0), counted(len(bare), "time")
    if len(bare) >= BARE_MIN or longest_ns >= UNSEEN_LEAST_NS:
        often = f"{count}, first that of step {next(iter(bare)).step}, for up to {format_duration(longest_ns)}"
        text = f"the only checkpoint in the store was removed before the next one was committed ({often})"
        yield breach(f"{text}: a job that dies in between has lost all", *bare)


def _emptied(store: Store) -> set[int]:
    there, emptied = set[str](), set[int]()
    gone = [(at, True, name) for name, moments in store.removed.items() for at in moments]
    for at, is_gone, name in sorted([*gone, *((each.at, False, last_name(each.path)) for each in store.seen)]):
        (there.discard if is_gone else there.add)(name)
        if is_gone and not there:
            emptied.add(at)
    return emptied


CAUSES = ("saves.whole", "saves.written_when_told")
GUARANTEE = Guarantee(breaches, ("checkpoints",), CAUSES, nothing=lambda evidence: next(iter(evidence.run.unseen), ""))
