"""Each node that the job had from start to end took part in its steps.

A node may be idle throughout only if it can be a spare: the scenario has more nodes than `max_nodes`.
"""

from harness.judge.facts import tellers
from harness.judge.guarantee import RUN, SECOND_RESTART, Analysis, Breaches, Guarantee, breach


def breaches(evidence: Analysis) -> Breaches:
    run = evidence.run
    aimed = {target.get("node") for fault in run.faults for target in fault.targets}
    worked = {run.processes[index].node for epoch in run.epochs for index in epoch.processes}
    kept = {slot.node for slot in run.slots if slot.kept and slot.incarnation == 1}
    idle = kept - worked - aimed if run.finished and worked <= {slot.node for slot in run.slots} else set[str]()
    for node in sorted(idle) if len(idle) > run.planned_size.spares else ():
        yield breach(f"{node} was allocated from start to end, but took part in no step", tellers.IDLE_NODES)


GUARANTEE = Guarantee(breaches, holds_for=(RUN, SECOND_RESTART), needs_steps=False)
