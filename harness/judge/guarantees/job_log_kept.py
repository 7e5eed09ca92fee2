"""A process that ends in order leaves a log with each line that it wrote.

If a worker or launcher logged its exit or ended with code 0, lines missing from its log were lost in transfer or
removed. The log of a killed process may lack its last lines.
"""

from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach


def breaches(evidence: Analysis) -> Breaches:
    for each in evidence.lost_lines:
        if not each.killed:
            yield breach(f"{each.words}, though its process lived: they were lost or removed")


GUARANTEE = Guarantee(breaches, needs_steps=False)
