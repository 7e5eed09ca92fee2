"""The job's last checkpoint is as close to the job's last step as the last checkpoint of the fault-free run."""

import numpy as np

from harness.evidence import by_time
from harness.judge.guarantee import RUN, Analysis, Breaches, Guarantee, breach
from harness.judge.verdict import Ground, Kind
from harness.timeline.save_events import FAILED
from harness.timeline.sorted_events import CLEAN_CODES


def breaches(evidence: Analysis) -> Breaches:
    run, saves = evidence.run, evidence.saves
    last = saves.good[-1].last_at if saves.good else run.begin
    if not run.finished or run.outcome != "completed" or (run.torn and not saves.good):
        return
    after = [save for save in saves.all if save.last_at > last and not _is_disturbed(evidence, save.last_at)]
    ended = max((save.step for save in saves.all if save.how), default=0)  # one rank is enough: others may report less
    words, newest, wanted = "", max(saves.steps, default=0), 0 if evidence.new_work() else _wanted(evidence)
    if none := [saves.none[save] for save in after if save in saves.none]:
        yield breach(f"the last checkpoint, of step {none[-1].save.step}, is none: {none[-1].why}", none[-1])
        return
    for save in after:
        if save.how == FAILED:
            words = f"the last checkpoint, of step {save.step}, failed"
        elif save.step > ended and run.processes[save.process].exit_code in CLEAN_CODES:
            words = f"the last checkpoint, of step {save.step}, was started but never committed"
    if not words and newest < wanted and not _is_disturbed(evidence, int(run.progress.end[-1])):
        words = f"the job ended at step {run.reached_step}, and its last checkpoint is of step {newest}"
        words += f": without a fault it is of step {wanted} or later"
    if words and not saves.left_untold:
        yield breach(words, grounds=[Ground(Kind.ABSENCE)])


def _is_disturbed(evidence: Analysis, at: int) -> bool:
    return by_time.touches(evidence.disturbed, at, at)


def _wanted(evidence: Analysis) -> int:
    """Returns the earliest allowed step of the last checkpoint, or 0 if unknown. If the fault-free run did not save at
    its end, the last checkpoint may be older by almost one save interval, or by almost two if the job saves by time."""
    run, usual, fault_free = evidence.run, evidence.fault_free_saves, evidence.fault_free
    last = [run.processes[row] for epoch in run.epochs[-1:] for row in epoch.processes]
    if usual is None or fault_free is None or not usual.whole or not len(usual.steps) or evidence.flaw(fault_free):
        return 0
    if not last or not run.checkpoints or run.beside.job_goes_on or any(each.cut or each.torn for each in last):
        return 0
    apart = np.diff(usual.steps, prepend=0)
    final = usual.whole[-1].kind == "final" or (len(apart) > 2 and len(set(apart[1:-1])) == 1 and apart[-1] < apart[-2])
    further = 0 if final else int(apart.max()) * (1 if run.saves_every_s is None else 2) - 1
    return run.reached_step - (fault_free.reached_step - int(usual.steps[-1])) - further


GUARANTEE = Guarantee(breaches, ("checkpoints",), (), (RUN,), Analysis.new_work, "last_checkpoint", until_the_end=True)
