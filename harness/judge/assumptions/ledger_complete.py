"""Each GPU is allocated to the job during all steps that a worker does on this GPU.

Steps after the harness stopped the job are ignored, because some engines let a stopped job go on for seconds.
"""

from harness.judge.assumption import Analysis, Assumption, Reasons
from harness.timeline.lineage import NEVER


def _broken(evidence: Analysis) -> Reasons:
    run = evidence.run
    ended = run.outcome in ("aborted", "interrupted")
    slots = {(*slot.key, slot.local_rank): slot for slot in run.slots}
    released = {place: NEVER if slot.kept and ended else slot.released for place, slot in slots.items()}
    for row, process in enumerate(run.processes if released else ()):
        place = (*process.key, process.local_rank)
        if process.first_step is None:
            continue
        if place not in released:
            text = f"rank {process.rank} did steps on the unallocated GPU {process.local_rank} of {process.node}"
        elif int(evidence.places.last_begin[row]) > released[place] + run.uncertainty_ns:
            text = f"rank {process.rank} did steps on {process.node} after the node was given back"
        else:
            continue
        yield f"{text}: the ledger is incomplete"


ASSUMPTION = Assumption(_broken, family="job")
