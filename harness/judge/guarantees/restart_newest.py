"""Each restart takes the newest sound checkpoint, and passes over only damaged checkpoints.

The newest checkpoint is the one with the highest step that was committed before the restart began to load. If each rank
saves a part, the last rank commits. A restart may take an older checkpoint if the job decided to roll back, if a fault
may have damaged all newer ones, or if the restart reports each newer one as passed over. The run fails if a restart
passes over a checkpoint that the harness saw complete and no fault can have damaged, or restarts from scratch although
a checkpoint was committed. A fault that only disturbs the store can damage only checkpoints made during the fault.
Exported weights, and the dump of a worker that ends by an error, count as checkpoints only if there are no other
checkpoints. The run is inconclusive if a checkpoint was committed while a fault disturbed the store, and a later
restart took an older one silently.
"""

from harness.judge.facts.restarts import Choice, choices
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.thresholds import IN_FLIGHT
from harness.judge.verdict import Ground, Kind
from harness.timeline.sorted_events import first_strike


def breaches(evidence: Analysis) -> Breaches:
    for choice in choices(evidence.run, evidence.saves, evidence.restarts):
        yield from older(choice)
        newest, item = choice.newest, choice.named
        if newest is None or item is None or choice.may_be_bad:
            continue
        sight = next(iter(evidence.saves.store.sights.get(newest, ())), None)
        by = item if choice.disturbed else sight or item
        text = f"passed over the checkpoint of step {newest.step}, which nothing had damaged"
        for each, step in choice.restart.states:
            if step < newest.step and (step or choice.disturbed):
                yield breach(f"rank {each.rank} {text}" + "; the harness had seen it whole" * (sight is not None), by)
    yield from further_back(evidence)


def older(choice: Choice) -> Breaches:
    restart, newer, unsure, looks = choice.restart, choice.unnamed, choice.unsure, choice.restart.looks
    for each, step in restart.states:
        why = "and named no newer one that is damaged" if step else "and skipped all saved checkpoints"
        why = why if restart.passed_over else "and gave no reason"
        text = f"rank {each.rank} resumed from step {step} {why}, though"
        save = newer if step or choice.disturbed else choice.newest
        if save is not None and step < save.step and (restart.number or save.told):
            yield breach(f"{text} {save.said}", save, grounds=[Ground(Kind.LISTED, since=save.last_at, of=looks)])
        elif unsure is not None and step < unsure.step and restart.number:
            yield breach(f"{text} {unsure.said} during a fault", unsure.word)
    first = restart.epoch.first
    silent = restart.number and restart.newcomers and not restart.restores  # a reported restore may lack its step
    if silent and newer is not None and restart.from_a_member + 1 < first <= newer.step:
        text = f"rank {restart.newcomers[0].rank} began with step {first} and did not report what it restored"
        yield breach(f"{text}, though {newer.said}", newer, grounds=[Ground(Kind.LISTED, of=looks)])


def further_back(evidence: Analysis) -> Breaches:
    """Yields a breach for each restart that lost more steps than the planned saves allow. Only runs without logged
    saves and restores are checked."""
    run, every = evidence.run, evidence.run.saves_every
    if run.checkpoints or any(restart.states for restart in evidence.restarts):
        return
    damaged = first_strike(fault for fault in run.faults if fault.damaged)
    outage = first_strike(fault for fault in run.faults if fault.spoils)  # later steps were perhaps not saved
    saved, furthest = evidence.work.furthest(outage), 0
    begin = int(run.progress.begin[0]) if len(run.progress) else 0
    due_ns = begin + IN_FLIGHT * 10**9 * (run.saves_every_s or 0)
    for restart in evidence.restarts:
        first, lost = restart.epoch.first, furthest - restart.epoch.first + 1
        furthest, from_scratch = max(furthest, min(restart.epoch.last, saved)), first <= run.stride
        far = lost > 0 and from_scratch and min(restart.epoch.begin, outage) > due_ns
        if every is not None:
            far = lost > (every if from_scratch else IN_FLIGHT * every)
        if restart.number and restart.newcomers and far and restart.epoch.begin < damaged:
            planned = f", though it should save every {every} steps" if every is not None else ""
            text = f"the job restarted at step {first} and lost {lost} steps{planned}"
            yield breach(f"{text}; it reported no saves and no restores", restart)


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints", "restores"), nothing=Analysis.no_restart)
