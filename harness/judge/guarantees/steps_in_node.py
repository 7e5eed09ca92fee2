"""Each step is done on a node that belongs to the job at that time.

The run fails if a step lies more than 3 s outside of the time in which the job had the node. The run is inconclusive if
the step lies at most 3 s outside of this time, if times come from several clocks, or if the log has problems.
"""

from harness.judge.facts import times
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.verdict import UNTRUE


def breaches(evidence: Analysis) -> Breaches:
    for each in times.outside_node(evidence.run):
        yield breach(f"{each.words}: {UNTRUE}", each)


GUARANTEE = Guarantee(breaches)
