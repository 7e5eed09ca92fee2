"""Old checkpoints are removed, so that no more of them pile up than without a fault.

At its end, the run may have one checkpoint more than the fault-free run for each restart, and two more for each fault.
"""

from harness.judge.guarantee import RUN, Analysis, Breaches, Guarantee, breach
from harness.judge.thresholds import PILED_UP
from harness.timeline.timeline import Timeline


def breaches(evidence: Analysis) -> Breaches:
    run, usual = evidence.run, evidence.fault_free_saves
    if usual is not None and not nothing(evidence):
        count, known = _left(run), _left(evidence.fault_free)
        if count > known + max(0, len(run.epochs) - 1) + PILED_UP * len(run.faults):
            text = f"the store held {count} checkpoints at the end, and {known} without a fault"
            yield breach(f"{text}: old ones are no longer removed", usual)


def _left(run: Timeline | None) -> int:
    return 0 if run is None or run.left is None else int(run.left.get("count") or 0)


def nothing(evidence: Analysis) -> str:
    if evidence.run.beside.job_goes_on:
        return "the job goes on after this rehearsal"
    if evidence.fault_free is None:
        return "there is no fault-free run to compare with"
    known = evidence.run.left is not None and _left(evidence.fault_free)
    why = "the log does not tell how many checkpoints there were at the end, or how many without a fault"
    return evidence.new_work() if known else why


# A drill begins with a copy of what the run left.
GUARANTEE = Guarantee(breaches, (), ("saves.whole", "saves.written_when_told"), (RUN,), nothing)
