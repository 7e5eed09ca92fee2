"""Each step is done while the job has the node that did it.

The run fails if a step is more than 3 s outside, all times are of one clock, and the log has no problems; else the run
is inconclusive.
"""

from harness.judge.facts import times
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.verdict import UNTRUE


def breaches(evidence: Analysis) -> Breaches:
    for each in times.outside_node(evidence.run):
        yield breach(f"{each.words}: {UNTRUE}", each)


GUARANTEE = Guarantee(breaches)
