"""Each restart takes the newest sound checkpoint, and passes over only damaged checkpoints.

The newest checkpoint is the one with the highest step that was committed before the restart began to load. If each rank
saves a part, the last rank commits. A restart may take an older checkpoint if the job decided to roll back, if a fault
may have damaged all newer ones, or if the restart reports each newer one as passed over. The run fails if a restart
passes over a checkpoint that the harness saw complete and no fault can have damaged, or restarts from scratch although
a checkpoint was committed. Exported weights, and the dump of a worker that ends by an error, count as checkpoints only
if there are no others. The run is inconclusive if a checkpoint was committed while a fault hid the store, the harness
never saw it, and a later restart took an older one silently.
"""

from harness.judge.facts.restarts import Choice, Restart, choices
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.thresholds import IN_FLIGHT
from harness.judge.verdict import Ground, Kind
from harness.timeline.sorted_events import first_strike

S = 10**9


def breaches(evidence: Analysis) -> Breaches:
    for choice in choices(evidence.run, evidence.saves, evidence.restarts):
        yield from older(choice)
        newest, item = choice.newest, choice.named
        yield from hidden(evidence, choice.restart)
        if newest is None or item is None or choice.may_be_bad:
            continue
        sight = next(iter(evidence.saves.store.sights.get(newest, ())), None)
        for each in (each for each, step in choice.restart.states if 0 < step < newest.step):
            text = f"rank {each.rank} passed over the checkpoint of step {newest.step}, which nothing had damaged"
            yield breach(text + "; the harness had seen it whole" * (sight is not None), sight or item)
    yield from further_back(evidence)


def hidden(evidence: Analysis, restart: Restart) -> Breaches:
    """Yields a breach if a rank restored an old save, though a newer one was committed while a fault hid the store."""
    store = evidence.saves.store
    for save in reversed(evidence.saves.hidden) if restart.number else ():
        over = save.last_at < restart.moment > store.shown_since(save, restart.moment)
        behind = [each for each, step in restart.states if step < save.step]
        if over and behind and restart.did_not_pass(save):
            text = f"rank {behind[0].rank} resumed from step {behind[0].step} and gave no reason, though {save.said}"
            yield breach(f"{text} during a fault; the harness never saw it", save.word)


def older(choice: Choice) -> Breaches:
    """Yields a breach for each rank that restored an older save than the newest one not reported as passed over."""
    restart, newer = choice.restart, choice.unnamed
    for each, step in restart.states:
        save = newer if step else choice.newest
        if save is not None and step < save.step and (restart.number or save.told):
            why = "and named no newer one that is damaged" if step else "and skipped all saved checkpoints"
            why = why if restart.passed_over else "and gave no reason"
            text = f"rank {each.rank} resumed from step {step} {why}, though {save.said}"
            yield breach(text, save, grounds=[Ground(Kind.LISTED, since=save.last_at)])
    first = restart.epoch.first
    silent = restart.number and restart.newcomers and not restart.restores  # a reported restore may lack its step
    if silent and newer is not None and restart.from_a_member + 1 < first <= newer.step:
        text = f"rank {restart.newcomers[0].rank} began with step {first} and did not report what it restored"
        yield breach(f"{text}, though {newer.said}", newer)


def further_back(evidence: Analysis) -> Breaches:
    """Yields restarts that lost too many steps for the planned saves, if the trainer logs no saves and no restores."""
    run, every = evidence.run, evidence.run.saves_every
    if run.checkpoints or any(restart.states for restart in evidence.restarts):
        return
    spoilt = first_strike(fault for fault in run.faults if fault.spoils)
    furthest, begin = 0, int(run.progress.begin[0]) if len(run.progress) else 0
    for restart in evidence.restarts:
        first, lost = restart.epoch.first, furthest - restart.epoch.first + 1
        furthest, from_scratch = max(furthest, restart.epoch.last), first <= run.stride
        if every is not None:
            far = lost > (every if from_scratch else IN_FLIGHT * every)
        else:
            far = lost > 0 and from_scratch and restart.epoch.begin - begin > IN_FLIGHT * S * (run.saves_every_s or 0)
        if restart.number and restart.newcomers and far and restart.epoch.begin < spoilt:
            planned = f", though it should save every {every} steps" if every is not None else ""
            text = f"the job restarted at step {first} and lost {lost} steps{planned}"
            yield breach(f"{text}; it reported no saves and no restores", restart)


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints", "restores"), nothing=Analysis.no_restart)
