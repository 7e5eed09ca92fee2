"""Each checkpoint that was told as committed is one: whole, of its step, and where the harness looks for it.

A checkpoint is not valid in any of these cases. The checkpoint has less than half the bytes of the smallest fault-free
one, or less than 90 % if three or more fault-free ones differ by 3 % at most. Tensors of zeros take 5 % more of its
bytes than without a fault. The checkpoint has less than 64 KiB and no tensor. A fault damaged the files there, and
nothing new replaced them. The checkpoint disappeared before a newer one was begun. The checkpoint was missing or
incomplete when all nodes had ended. The harness never saw the checkpoint, though it stayed longer than the harness ever
took to see one; all unseen ones in a row must have stayed 5 times as long, and at least 5 s. Nothing is judged if the
harness did not see the store in the fault-free run, or while a fault acts that does more than kill.
"""

from harness.judge.facts.reported import unseen_store
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach


def breaches(evidence: Analysis) -> Breaches:
    for none in sorted(evidence.saves.none.values(), key=lambda each: each.save.last_at):
        yield breach(f"the checkpoint of step {none.save.step} is none: {none.why}", none)


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints",), nothing=lambda evidence: unseen_store(evidence.run))
