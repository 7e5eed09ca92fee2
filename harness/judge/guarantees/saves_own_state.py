"""Each checkpoint holds the whole state of its own step, before and after a restart.

If all losses and at least one save equal those of the fault-free run bit for bit, no save may differ in more than 10 %
of its tensor bytes from the fault-free save of the same step. If all losses, and all saves before the first restart,
equal those of the fault-free run, all saves after the restart must equal the fault-free run's, too, and no save may
hold the tensors of another step. If the fault-free run's export holds only tensors of the last save, this run's export
must do so, too. If all losses are equal but tensors differ, averaged weights or running statistics were perhaps not
restored. After a change of the job's command, the contents of saves are not compared. After a change of more than
optimizer settings, the sizes of saves are not compared.
"""

import itertools
import statistics
from collections.abc import Iterator, Mapping

from harness.judge.facts.missing_or_bad_saves import unlike_usual, without_what_all_share
from harness.judge.facts.saves import Saves
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.thresholds import SIZES_MIN, SIZES_SPREAD
from harness.timeline.lookups import NEVER, grouped
from harness.timeline.timeline import Timeline

OF_TENSORS = ("tensors", "bytes of tensors")


def breaches(evidence: Analysis) -> Breaches:
    usual, compared, last = evidence.fault_free_saves, evidence.comparison, evidence.run.changed_after
    if usual is not None and compared is not None and compared.identical and not evidence.other_layout:
        for save in (save for save in unlike_usual(evidence.saves.store, usual.store) if save.step <= last):
            text = f"the checkpoint of step {save.step} holds other tensors than in the fault-free run"
            yield breach(f"{text}, though all losses are the same, and so are other checkpoints", usual)
    if usual is not None and len(evidence.run.epochs) > 1:
        for where in _other_tensors(evidence, usual):
            why = "though all losses are the same: some state may not have been restored"
            text = f"{where} than in the fault-free run, {why} (averaged weights, running statistics)"
            yield breach(text, usual)
        yield from _same_size(evidence, usual) if not evidence.new_work() else ()
        yield from _other_amount(evidence, usual) if not evidence.new_work() else ()


def _other_tensors(evidence: Analysis, usual: Saves) -> Iterator[str]:
    if evidence.comparison is None or not evidence.comparison.identical:
        return
    saves, restart, last = evidence.saves, evidence.run.epochs[1].begin, evidence.run.changed_after
    told, usual_told = _tensors(saves, last), _tensors(usual, last)
    for kind, mine, theirs in ((kind, told[kind], usual_told[kind]) for kind in told if kind in usual_told):
        common = sorted((mine[key][0], key) for key in mine.keys() & theirs.keys())
        differ = [(at, key[0]) for at, key in common if mine[key][1] != theirs[key][1]]
        known = grouped((digest, where) for (where, _), (_, digest) in theirs.items()) if kind == "seen" else {}
        for (where, _), (at, digest) in mine.items():
            if len({*known.get(digest, ())}) == 1 and where not in known[digest]:  # tensors that change with the step
                differ.append((at, where.replace("other tensors", "the tensors of another step")))
        if differ and common and common[0][0] < restart <= min(differ)[0]:
            yield from (where for _, where in sorted(differ))
    held, theirs_held = _exports(saves), _exports(usual)
    for path in sorted(held.keys() & theirs_held.keys()) if last == NEVER else ():
        if theirs_held[path] and not held[path]:
            yield f"at the end {path} holds other tensors"


def _tensors(saves: Saves, last: int) -> Mapping[str, Mapping[tuple[str, str], tuple[int, str]]]:
    """Returns for each save up to step `last` its time and the digest of its tensors: under "told" as ranks logged the
    digest, and under "seen" as the harness saw the digest."""
    ranks, sights, ended = saves.run.processes, saves.store.undamaged.items(), saves.run.steps.end.max(initial=0)
    mine = ((f"rank {ranks[save.process].rank} saved", save) for save in saves.whole if save.process >= 0)
    told = [(f"{who} other tensors at step {s.step}", s, s.tensors) for who, s in mine if s.step <= last]
    seen = [
        (f"the checkpoint of step {s.step} holds other tensors", s, e.digests[1]) for s, e in sights if s.step <= last
    ]
    kinds = {"told": told, "seen": seen}.items()
    found = {kind: {(where, s.series): (s.last_at, held) for where, s, held in each if held} for kind, each in kinds}
    anew = grouped((each.path, each) for each in saves.store.seen if each.step is None and each.digests[1])
    for path, looks in anew.items() if last == NEVER else ():
        if looks[-1].at > ended:
            ends = {"at first": looks[0], f"at the end {path} holds other tensors": looks[-1]}.items()
            found[f"file {path}"] = {(where, ""): (each.at, each.digests[1]) for where, each in ends}
    return found


def _exports(saves: Saves) -> Mapping[str, bool]:
    last = max(saves.store.seen, key=lambda seen: (seen.step or 0, seen.at), default=None)
    tensors = set(last.tensors) if last is not None else set()
    held = (saves.run.files_left or {}).get("holding_tensors") or ()
    return {each["file"]: tensors.issuperset(each.get("tensor_digests") or ()) for each in held if last is not None}


def _same_size(evidence: Analysis, usual: Saves) -> Breaches:
    """Yields a breach if sizes of saves vary in the fault-free run, but not in this run. Saves of equal size may all
    hold the same state."""
    run, saves = evidence.run, evidence.saves
    theirs = {(save.series, save.step): usual.store.size_of(save) for save in usual.whole}
    mine = [save for save in saves.whole if save.last_at >= run.epochs[-1].begin]
    both = ((saves.store.size_of(save), theirs.get((save.series, save.step))) for save in mine)
    common = [(size, usual_size) for size, usual_size in both if size is not None and usual_size is not None]
    if len(common) < SIZES_MIN or len(_sizes(run)) > 1:
        return
    (least, most), (low, high) = ((min(sizes), max(sizes)) for sizes in zip(*common, strict=True))
    change = statistics.median(abs(later - sooner) for (_, sooner), (_, later) in itertools.pairwise(common))
    if change * (len(common) - 1) > SIZES_SPREAD * max(most - least, SIZES_SPREAD):
        text = f"the checkpoints after step {run.epochs[-1].first - 1} have {least:,} to {most:,} bytes"
        text = f"{text}, in the fault-free run {low:,} to {high:,}: they may hold one state"
        yield breach(text, evidence.restarts[-1])


def _other_amount(evidence: Analysis, usual: Saves) -> Breaches:
    others = [each for each in evidence.calibration if not evidence.flaw(each)]
    if len(_sizes(evidence.run)) < 2 or all(_sizes(each) == _sizes(usual.run) for each in others):
        return
    stores = [usual.store, *(Saves(each).store for each in others)]
    for save, has, words, due in without_what_all_share(evidence.saves.store, stores):
        if words in OF_TENSORS:
            text = f"the checkpoint of step {save.step} has {has} {words}, and {due} without a fault"
            yield breach(f"{text}, on whatever number of ranks", usual)


def _sizes(run: Timeline) -> set[int]:
    return {int(epoch.size) for epoch in run.epochs}


def nothing(evidence: Analysis) -> str:
    alone = evidence.changed() if evidence.fault_free is not None else "there is no fault-free run to compare with"
    return evidence.no_restart() or alone


CAUSES = ("saves.whole", "saves.written_when_told")
GUARANTEE = Guarantee(breaches, ("checkpoints",), CAUSES, nothing=nothing)
