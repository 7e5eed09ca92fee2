"""The log holds the last lines of each process, except of a process that a fault killed."""

from harness.judge.assumption import Analysis, Assumption, Ground, Kind, Spoils


def _lost_with_their_process(evidence: Analysis, ground: Ground) -> str:
    run = evidence.run
    if ground.since is not None and ground.processes:
        taken = (evidence.taken[row] + run.uncertainty_ns for row in ground.processes)
        return "the log of a killed rank ends before it" if all(ground.since <= at for at in taken) else ""
    absent = set() if ground.processes else set(ground.steps)
    last = absent and all(step in evidence.seams and step - 1 not in absent for step in absent)
    return "its event was lost when its workers died" if last else ""


ASSUMPTION = Assumption(spoils=(Spoils(Kind.ABSENCE, _lost_with_their_process, "Run it again: {run}"),), order=1)
