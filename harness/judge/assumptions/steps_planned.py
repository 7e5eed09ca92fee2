"""The number of steps that the job has to do is known."""

from harness.judge.assumption import FRESH, Analysis, Assumption, Ground, Kind, Spoils


def _steps_of_a_restarted_run(evidence: Analysis, ground: Ground) -> str:
    usual = evidence.fault_free
    if usual is None or len(usual.epochs) < 2 or usual.reached_step != evidence.run.planned_steps:
        return ""
    return "but how many there are is known from a fault-free run that started again"


ASSUMPTION = Assumption(spoils=(Spoils(Kind.REACHED, _steps_of_a_restarted_run, FRESH),), order=2)
