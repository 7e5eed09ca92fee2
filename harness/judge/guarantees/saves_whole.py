"""Each checkpoint that was told as committed is one: whole, of its step, and where the harness looks for it.

A checkpoint is none if it has less than half the bytes of the smallest without a fault (less than 90 % where three or
more without a fault differ by 3 % at most); if tensors of zeros take 5 % more of it; if it has less than 64 KiB and no
tensor; if a fault had damaged what was there and nothing new came in its place; if it went away before a newer one was
begun; or if it was not there, or not whole, when all nodes had ended; or if it was never seen though it lay there for
longer than it took to see any other one, 5 times as long together, and 5 s. Nothing is held against a store that was
not seen without a fault, or while a fault is at work that does not just kill.
"""

from harness.judge.facts.reported import unseen_store
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach


def breaches(evidence: Analysis) -> Breaches:
    for none in sorted(evidence.saves.none.values(), key=lambda each: each.save.last_at):
        yield breach(f"the checkpoint of step {none.save.step} is none: {none.why}", none)


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints",), nothing=lambda evidence: unseen_store(evidence.run))
