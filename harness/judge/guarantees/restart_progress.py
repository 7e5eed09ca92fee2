"""A job that restarts by itself again and again gets further, or gives up.

A restart makes progress if it goes on from a later step than each start before it. A restart is ignored if a fault
acted since the previous start. The bound `max_restarts_without_progress` counts all restarts without progress.
"""

from harness.judge.facts.restarts import in_vain
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.thresholds import RESTARTS_IN_VAIN


def breaches(evidence: Analysis) -> Breaches:
    found = in_vain(evidence.run, evidence.work.furthest, evidence.faults_at_work)
    if found.restarts > RESTARTS_IN_VAIN:
        yield breach(f"{found.words}; no fault was at work")


GUARANTEE = Guarantee(breaches, nothing=Analysis.no_restart)
