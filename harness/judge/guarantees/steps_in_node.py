"""Each step is done on a node that belongs to the job at that time.

No step begins before the job has the node, and no wait for data, a checkpoint or other ranks lasts longer than the job
has the node. A violation by more than 3 s fails the run. The run is inconclusive if the violation is smaller, if times
come from the clocks of several hosts, or if the log has flaws.
"""

from harness.judge.facts import times
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.verdict import UNTRUE


def breaches(evidence: Analysis) -> Breaches:
    for each in times.outside_node(evidence.run):
        yield breach(f"{each.words}: {UNTRUE}", each)


GUARANTEE = Guarantee(breaches)
