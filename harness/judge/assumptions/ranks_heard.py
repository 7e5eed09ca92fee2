"""Each rank left a log, unless logs of ranks are also missing in the fault-free run."""

from harness.judge.assumption import Analysis, Assumption, Reasons


def _broken(evidence: Analysis) -> Reasons:
    fault_free = evidence.fault_free
    if fault_free is not None and fault_free.epochs and all(epoch.unheard for epoch in fault_free.epochs):
        return
    for epoch in evidence.run.epochs:
        if epoch.unheard:
            text = f"{epoch.unheard} of {epoch.size} ranks left no log of steps {epoch.first} to {epoch.last}"
            yield f"{text}: what they did is not known"


ASSUMPTION = Assumption(_broken, family="steps")
