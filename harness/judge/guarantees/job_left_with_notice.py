"""No node leaves the job unless it was taken or had a notice.

A node whose command ends with code 75, or with code 0 while other nodes go on, must have been taken or had a notice. A
node may leave the job without a notice if a fault strikes the node again after each restart.
"""

from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.node.emitter import EXIT_LEFT
from harness.timeline.sorted_events import key_of
from harness.units import format_duration


def breaches(evidence: Analysis) -> Breaches:
    run = evidence.run
    last = int(run.progress.begin[-1]) - run.uncertainty_ns if len(run.progress) else 0
    kept, told = evidence.places.kept, {key_of(notice) for notice in run.notices if notice.get("source") != "peer"}
    sticky = (fault for fault in run.faults if fault.sticks and fault.injected is not None)
    lemons = {target.get("node") for fault in sticky for target in fault.targets}
    for end in run.exits:
        left = end["code"] == EXIT_LEFT or (end["code"] == 0 and end["at"] < last)
        if end["rank"] is None and left and key_of(end) in kept - told and end["node"] not in lemons:
            at = format_duration(end["at"] - run.begin)
            yield breach(f"{end['node']} left the job with exit code {end['code']} at {at}, without a notice")


GUARANTEE = Guarantee(breaches, needs_steps=False)
