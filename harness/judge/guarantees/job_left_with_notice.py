"""No node leaves the job unless it was taken or had a notice.

If a node ends with code 0 while steps are left, or leaves with code 75, it must have had a notice or been taken.
"""

from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.node.emitter import EXIT_LEFT
from harness.timeline.sorted_events import key_of
from harness.units import format_duration


def breaches(evidence: Analysis) -> Breaches:
    """Yields a breach for each node that left without a notice. A node leaves if its command ends with the exit code of
    a drained node, or with code 0 while other nodes go on."""
    run = evidence.run
    last = int(run.progress.begin[-1]) - run.uncertainty_ns if len(run.progress) else 0
    told = {key_of(notice) for notice in run.notices if notice.get("source") != "peer"}
    for end in run.exits:
        left = end["code"] == EXIT_LEFT or (end["code"] == 0 and end["at"] < last)
        if end["rank"] is None and left and key_of(end) in evidence.places.kept - told:
            at = format_duration(end["at"] - run.begin)
            yield breach(f"{end['node']} left the job with exit code {end['code']} at {at}, without a notice")


GUARANTEE = Guarantee(breaches, needs_steps=False)
