"""Each checkpoint that is reported as committed is complete, is of the reported step, and is in the store.

A checkpoint is bad in any of these cases. The checkpoint has less than half the bytes of the smallest fault-free
checkpoint, or less than 90 % if three or more fault-free checkpoints differ by 3 % at most. The share of bytes in
tensors of zeros is more than 5 percentage points larger than without a fault. The checkpoint has less than 64 KiB and
no tensor. A fault damaged the checkpoint's files, and no new files replaced them. The checkpoint disappeared before a
newer one was begun. The checkpoint was missing or incomplete when all nodes had ended. The checkpoint lost more than 10
% of its bytes before all nodes had ended, and no fault-free checkpoint does so. The harness never saw the checkpoint,
though the checkpoint stayed in the store for longer than the harness ever took to see one. Unseen checkpoints in a row
must have stayed at least 5 s in all, and 5 times as long as the harness took to see one. The run is
inconclusive if the checkpoint was committed while a fault acted, and the harness never saw the checkpoint after the
fault. Nothing else is judged while a fault acts that does more than kill, or if the harness did not see the fault-free
checkpoints.
"""

from harness.judge.facts.reported import unseen_store
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach


def breaches(evidence: Analysis) -> Breaches:
    for none in sorted(evidence.saves.none.values(), key=lambda each: each.save.last_at):
        yield breach(f"the checkpoint of step {none.save.step} is none: {none.why}", none)


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints",), nothing=lambda evidence: unseen_store(evidence.run))
