"""The log shows how each node's command and each worker process ended.

A worker without a logged exit counts as dead if other workers go on to do steps without it. A worker also counts as
dead if another worker takes over its rank on its node.
"""

from harness.judge.assumption import Analysis, Assumption, Reasons


def _broken(evidence: Analysis) -> Reasons:
    """Yields nodes that worked until the job ended, but have no logged end of their command. Also yields nodes without
    a launcher log if launchers on other nodes left logs. A node that the job lost earlier may lack a launcher log, and
    so may a node without one in the fault-free run."""
    run, fault_free, kept = evidence.run, evidence.fault_free, evidence.places.kept
    worked = {p.key for p in run.processes if p.first_step is not None}
    over = run.outcome == "completed" and not run.beside.job_goes_on
    for node, _ in sorted((kept & worked) - evidence.places.ended.keys()) if over else ():
        yield f"how the command on {node} ended is not known"
    heard = {launcher.key for launcher in run.launchers}
    usual = {p.node for p in fault_free.processes} if fault_free else set()
    usual -= {launcher.key[0] for launcher in fault_free.launchers} if fault_free else set()
    taken = {slot.key for slot in run.slots if not slot.kept}
    for node, _ in sorted(worked - heard - taken) if heard else ():
        if node not in usual:
            yield f"the launcher on {node} left no log: how its workers ended is not known"


ASSUMPTION = Assumption(_broken, family="job")
