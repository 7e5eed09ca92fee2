"""Ranks report each checkpoint that appears in the store, except during faults and recoveries.

If no rank reports a checkpoint in the store, a program other than the job may be saving into the same store.
"""

from harness.evidence import by_time
from harness.judge.assumption import Analysis, Assumption, Reasons
from harness.timeline.save_events import family


def _broken(evidence: Analysis) -> Reasons:
    run, saves, usual = evidence.run, evidence.saves, evidence.fault_free_saves
    if run.finished and run.outcome == "completed" and saves.left_untold:
        text = f"the harness found a checkpoint of step {saves.left_untold} at the end"
        yield f"{text}, and nobody said that it was committed"
    if run.lost or run.torn or not saves.store.sights:
        return
    told = {save.step for save in saves.all}
    names = {family(part) for save in saves.all for part in save.path.split("/")}
    if usual is not None:  # saves that no rank of the fault-free run reports either
        told |= {save.step for save in usual.seen} - {save.step for save in usual.all}
        names |= {save.series for save in usual.seen}
    known = usual is not None and usual.seen  # how saves are named
    there = next((each.restored_step or 0 for each in run.processes if each.restored is not None), 0)  # before the job
    for save in (save for save in saves.seen if save.step > there and save.at > run.begin):
        one = "one" if save.step not in told else save.path if known and save.series not in names else ""
        if one and not by_time.touches(evidence.disturbed, save.at, save.at):
            yield f"the harness saw a checkpoint of step {save.step} in the store, and no rank told of {one}"


ASSUMPTION = Assumption(_broken, family="saves")
