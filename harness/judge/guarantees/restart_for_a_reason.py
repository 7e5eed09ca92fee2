"""A job decides to go back to an earlier step only if a fault acts, or if the job reports what is wrong.

The logged steps must show the anomaly that the job reports (`nonfinite`, `divergence`).
"""

import itertools

from harness.evidence.by_time import touches, union
from harness.judge.facts import alarms
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach


def breaches(evidence: Analysis) -> Breaches:
    run, margin = evidence.run, evidence.run.uncertainty_ns
    if not any(restart.own_decision for restart in evidence.restarts[1:]):
        return
    contradicted = {id(alarm) for alarm in alarms.contradicted(run, evidence.spikes)}
    said = [(alarm["at"], alarm["at"]) for alarm in run.anomalies if id(alarm) not in contradicted]
    faults = (*run.beside.earlier, *run.faults)
    at_work = [(fault.injected, fault.healed or run.end) for fault in faults if fault.may and fault.injected]
    reasons = union((begin - margin, end + margin) for begin, end in (*said, *at_work))
    why = "its steps do not show what it said" if contradicted else "nobody told why"
    for before, restart in itertools.pairwise(evidence.restarts):
        if restart.own_decision and not touches(reasons, before.epoch.begin, restart.moment):
            text = f"the job went back from step {before.epoch.last} to step {restart.epoch.first - 1}"
            yield breach(f"{text} by its own decision, and {why}", restart)


GUARANTEE = Guarantee(breaches, nothing=Analysis.no_restart)
