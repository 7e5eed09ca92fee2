"""The log shows how each node's command and each worker process ended.

If no log shows how a worker exited, the worker counts as dead once other workers do steps without this worker. A worker
also counts as dead once a new worker takes over the same rank on the same node.
"""

from harness.judge.assumption import Analysis, Assumption, Reasons


def _broken(evidence: Analysis) -> Reasons:
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
