"""The log of a process that lived holds each line that it wrote.

Any line that is missing, though its process lived to its last word or ended with code 0, was lost on its way or
removed. This holds for launchers, too. The last lines of a process that was killed count as if they had been told.
"""

from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach


def breaches(evidence: Analysis) -> Breaches:
    for each in evidence.lost_lines:
        if not each.killed:
            yield breach(f"{each.words}, though its process lived: they were lost or removed")


GUARANTEE = Guarantee(breaches, needs_steps=False)
