"""Each checkpoint that is reported as committed is complete, is of the reported step, and is in the store.

A checkpoint is bad if it has less than half the bytes of the smallest fault-free checkpoint. If at least three
fault-free checkpoints differ by at most 3 %, a checkpoint is bad if it has less than 90 % of the smallest one's bytes.
A checkpoint is bad if the share of its bytes in all-zero tensors is over 5 percentage points larger than in the
fault-free run. A checkpoint is bad if it has less than 64 KiB and no tensor, or if a fault damaged its files and no new
files replaced them. A checkpoint is bad if it disappeared before the job began a newer one, or was missing or
incomplete when all nodes had ended. A checkpoint is bad if it lost over 10 % of its bytes, but no fault-free checkpoint
did so. A checkpoint is bad if it was in the store longer than the harness takes at most to see a checkpoint, but was
never seen. Successive unseen checkpoints are bad only if they were in the store for at least 5 s in all, and for 5
times as long as the harness took to see a checkpoint. A checkpoint must not hold the content of an earlier step if
updates were made in between. The share of a checkpoint's tensor bytes that an earlier checkpoint also has may be at
most 10 percentage points larger than in the fault-free run. If all fault-free saves after the first share a property,
each save of the run after the first must have the same property: number or bytes of tensors, kinds of state, folder, or
micro-batches per step. A process begins a save at most 5 steps after the saved step. The run is inconclusive if a
checkpoint was committed while a fault acted, and the harness did not see it after the fault. The other rules for
checkpoints do not apply while a fault acts that does more than kill processes, or if the harness did not see the
fault-free checkpoints. After a fault changed more than optimizer settings, a checkpoint that is bad only by comparison
with others, such as by its size, makes the run inconclusive. The tensors of a checkpoint must be readable also after a
change of more than optimizer settings.
"""

from harness.evidence.reported import unseen_store
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach


def breaches(evidence: Analysis) -> Breaches:
    for none in sorted(evidence.saves.none.values(), key=lambda each: each.save.last_at):
        yield breach(f"the checkpoint of step {none.save.step} is none: {none.why}", none)


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints",), nothing=lambda evidence: unseen_store(evidence.run))
