"""The job does no step beyond those that were planned."""

from harness.judge.facts.tellers import went_on
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.units import counted


def breaches(evidence: Analysis) -> Breaches:
    """Yields a breach if the job did more steps than planned or, without a planned number, than the fault-free run.
    Without a planned number of steps, a breach is inconclusive unless all losses are equal, because early stopping may
    end a job after any step."""
    fault_free, planned = evidence.fault_free, evidence.run.planned_steps
    usual = 0 if fault_free is None else fault_free.steps.step.max(initial=0)
    last = int(evidence.run.steps.step.max(initial=0))
    if planned is None or usual > planned or last <= planned:
        return
    if fault_free is None or fault_free.planned_steps is not None:
        were = "was" if planned == 1 else "were"
        yield breach(f"step {last} was done, but only {counted(planned, 'step')} {were} planned")
        return
    same = evidence.comparison is not None and evidence.comparison.identical
    yield breach(f"the job went on to step {last}; its fault-free run ended after step {planned}", went_on(same))


GUARANTEE = Guarantee(breaches)
