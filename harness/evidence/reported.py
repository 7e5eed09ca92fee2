"""Tells which kinds of evidence, such as losses or exits, a run's log holds, and which kinds the log should hold.

A kind of evidence is *told* if the log holds some evidence of this kind. A kind of evidence is *promised* if the header
of a process's log (`tells`) or the plan declares this kind, or if a rank logs this kind in some steps. If the log lacks
a kind of evidence that the log should hold, the verdict is inconclusive. A kind of evidence that the log neither holds
nor should hold is not judged.
"""

import bisect
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness.evidence.logs import Evidence
from harness.judge.thresholds import IRREGULAR, REGULAR
from harness.node.emitter import TELLS
from harness.timeline.lookups import grouped
from harness.timeline.save_events import COMMITTED, FAILED, STARTED, family
from harness.timeline.sorted_events import CLEAN_CODES
from harness.timeline.timeline import KINDS_OF_STEPS, Stretch, Timeline

# The item that each kind of evidence lets us judge. Kinds of the same item can replace each other.
ITEMS: Mapping[str, str] = {
    "steps": "steps",
    "loss": "loss",
    "positions": "sample order",
    "samples": "sample order",
    "digests": "sample contents",
    "weights": "agreement of replicas",
    "checkpoints": "checkpoints",
    "restores": "what was restored",
    "phases": "phases of recoveries",
    "exits": "causes of exits",
    "clocks": "clocks of the hosts",
}
BY_FAULT = ("weights",)  # required only if a fault made ranks differ: `guarantees/result_replicas_together.py`
BY_BOUND = dict.fromkeys(("loss", "positions", "samples", "digests"), "loss_continuity")
# The reference trainer reports positions in the shuffled order instead of samples, and weights only on request.
NOT_OF_REFERENCE = frozenset({"samples", "weights"})
EVENTS = {
    "checkpoints": (STARTED, COMMITTED, FAILED),
    "restores": ("restored",),
    "phases": ("rendezvous", "phase", "agent.rendezvous"),
    "exits": ("exiting", "worker.exit"),
}
NO_STEPS = "the log holds no step of the job, so its progress is not known"
APART = "the steps cannot be followed: a process resumed from an unknown step, or is not observed any more"
# The kinds that are needed to measure each phase of a recovery.
PHASE_NEEDS = {
    "interrupted_step": {"exits"},
    "detect": {"exits"},
    "drain": {"exits"},
    "teardown": {"exits"},
    "startup": {"phases"},
    "rendezvous": {"phases"},
    "restore": {"phases", "restores"},
    "first_step": {"restores"},
}


def declared(plan: Mapping[str, Any]) -> frozenset[str] | None:
    """Returns the kinds of evidence that the plan promises, or `None` if the plan has no such list. The reference
    trainer promises all kinds of evidence but those in `NOT_OF_REFERENCE`."""
    trainer = (plan.get("workload") or {}).get("trainer", "reference")
    if trainer == "reference":
        return frozenset(TELLS) - NOT_OF_REFERENCE
    tells = trainer.get("tells") if isinstance(trainer, dict) else None
    return None if tells is None else frozenset(tells)


def told(run: Timeline) -> frozenset[str]:
    """Returns the kinds of evidence in the log. Leaves out the kind `clocks` if a host's clock was never checked."""
    found = run.steps.kinds | {kind for kind, names in EVENTS.items() if not run.told_events.keys().isdisjoint(names)}
    found |= {"steps"} if len(run.steps) else set()
    found |= set() if any("was never compared" in problem for problem in run.problems) else {"clocks"}
    return frozenset(found)


def missing(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yields (kind, reason) for each kind of evidence that is missing from the log although the log should hold it."""
    run, here = evidence.run, told(evidence.run)
    trainer = (run.plan.get("workload") or {}).get("trainer")
    promised = (declared(run.plan) if trainer is not None else None) or frozenset[str]()
    if trainer == "reference" and evidence.fault_free is not None:
        promised &= told(evidence.fault_free)  # another trainer may use that name
    promised = promised.union(*(process.tells or () for process in run.processes))
    for kind in TELLS if len(run.steps) else ():
        if kind in here and kind in KINDS_OF_STEPS:
            if text := _ceased(evidence, kind):
                yield kind, text
        elif kind in here or kind in stood_in_for(here):
            continue
        elif kind in promised and _was_due(run, kind):
            yield kind, "the trainer declares that it reports this, but the log holds none"
        elif kind == "checkpoints" and _never_saved(evidence):
            yield kind, "the fault-free run saves checkpoints, but nothing shows that this run did"


def stood_in_for(tells: frozenset[str]) -> frozenset[str]:
    """Returns the kinds of evidence in `tells`, and all kinds that can replace one of them (see `ITEMS`)."""
    items = {ITEMS[kind] for kind in tells}
    return frozenset(kind for kind, item in ITEMS.items() if item in items)


def _never_saved(evidence: Evidence) -> bool:
    run, fault_free = evidence.run, evidence.fault_free
    if fault_free is None or "checkpoints" not in told(fault_free):
        return False
    first = min((event.get("step") or 0 for event in fault_free.checkpoints), default=0)
    return run.reached_step > first and not any(process.restored_step for process in run.processes)


def _was_due(run: Timeline, kind: str) -> bool:
    if kind == "weights":
        firsts = np.array([process.first_step or 0 for process in run.processes])
        return bool((run.steps.step == firsts[run.steps.process]).any())
    if kind == "checkpoints":
        return run.saves_every is not None and run.reached_step > run.saves_every
    ended = any(exit_["rank"] is None and exit_["code"] in CLEAN_CODES for exit_ in run.exits)
    return kind != "exits" or ended or (run.outcome == "completed" and not run.beside.job_goes_on)


class _Lives:
    def __init__(self, run: Timeline, kind: str):
        rows, counts = KINDS_OF_STEPS[kind](run.steps), run.steps.survives
        self.mute = np.bincount(run.steps.process, minlength=len(run.processes))  # by process; 0 if it reports any
        self.mute[run.steps.process[rows]] = 0
        if kind == "loss":  # steps without any finite loss do not count; other checks judge them
            counts = counts & np.isin(run.steps.step, run.steps.step[rows])
        order, begins = run.rows_by_process
        self.begins = np.concatenate([[0], np.cumsum(counts[order])])[begins]  # by process: first surviving row
        self.told = np.flatnonzero(rows[order[counts[order]]])
        self.cuts = np.searchsorted(self.told, self.begins)
        self.of_rank = grouped((run.processes[row].rank, row) for row in np.flatnonzero(np.diff(self.cuts)).tolist())

    def gaps(self, lives: Sequence[int]) -> list[int]:
        """Returns the number of steps from each logged value to the next one, for the processes `lives`. The first gap
        of a process counts only if there is no other gap, because many trainers log the first step and then every n-th
        step. If no process logs two values, the number of steps that each process did is returned."""
        told = [self.told[self.cuts[row] : self.cuts[row + 1]] for row in lives]
        first, later = ([gap for each in told for gap in np.diff(each[skip:]).tolist()] for skip in (0, 1))
        return later or first or [int(self.begins[row + 1] - self.begins[row]) for row in lives]


def _ceased(evidence: Evidence, kind: str) -> str:
    run, lives = evidence.run, _Lives(evidence.run, kind)
    usual = None if evidence.fault_free is None else _Lives(evidence.fault_free, kind)
    told = np.diff(lives.cuts)
    silent = np.where(told > 0, lives.begins[1:] - 1 - np.append(lives.told, -1)[lives.cuts[1:] - 1], lives.mute)

    @functools.cache
    def too_long_for(rank: int) -> float:
        theirs = usual.gaps(usual.of_rank.get(rank, [])) if usual else []
        return _too_long(lives.gaps(lives.of_rank.get(rank, [])) + theirs)

    rows = np.flatnonzero(silent > 2).tolist()  # two steps without a report are never too many
    for rank, row in sorted((run.processes[row].rank, row) for row in rows):
        if silent[row] > (_too_long(lives.gaps([row])) if told[row] > 2 else too_long_for(rank)):
            if told[row]:
                return f"rank {rank} stopped reporting this {silent[row]} steps before the last step of its process"
            if rank in lives.of_rank:
                return f"rank {rank} reported this in one of its processes, but not in a later one"
            return f"rank {rank} never reported this, and does so in the fault-free run"
    return ""


def _too_long(gaps: Sequence[int]) -> float:
    if not gaps:
        return np.inf
    usual = int(np.median(gaps))
    return 2 * usual if np.equal(gaps, usual).mean() >= REGULAR else 5 * max(gaps)


def not_judged(evidence: Evidence, expect: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (item, reason) for each item that is not judged: the log lacks it, the scenario has no bound on it, or the
    harness did not see it."""
    if why := next(iter(evidence.run.unseen), "") or unseen_store(evidence.run):
        yield "checkpoints in their store", why
    here = stood_in_for(told(evidence.run))
    for kind, item in ITEMS.items():
        if kind in BY_FAULT:
            continue
        score = BY_BOUND.get(kind)
        if kind not in here:
            yield item, "the log does not report it"
        elif score is not None and not isinstance(expect.get(score), Mapping):
            yield item, f"the scenario has no bound on {score}"


def unseen_store(run: Timeline) -> str:
    """Returns a text that says that the harness saw no checkpoint in the store, or no checkpoint whose name a worker
    logged. Returns an empty text if the harness saw a logged checkpoint."""
    saw = {family(each.get("path")) for each in (*run.published, *((run.left or {}).get("checkpoints") or ()))}
    paths = (str(event.get("path") or "") for event in run.checkpoints if event["event"] == COMMITTED)
    other = next((path for path in paths if path and saw.isdisjoint(map(family, path.split("/")))), "")
    none = "the harness saw none there" if run.checkpoints and not saw else ""
    return none or (other and f"the harness saw none like {other.rpartition('/')[2]} there")


def unmeasured_phase(run: Timeline, phase: str) -> str:
    """Returns why the duration of a recovery phase cannot be measured, or "" if the duration can be measured."""
    lacking = PHASE_NEEDS.get(phase, set()) - told(run)
    names = ", ".join(sorted(ITEMS[kind] for kind in lacking))
    return f"{phase} cannot be measured: the log does not report {names}" if names else ""


def from_scratch(run: Timeline) -> str:
    """Returns a text that says that the job restarted from its first step without any logged checkpoint. Returns an
    empty text if the job did not, or if no checkpoint was planned before the restart."""
    every = run.saves_every
    kept = any(event["event"] == COMMITTED for event in run.checkpoints)
    kept |= any(process.restored_step for process in run.processes)
    if kept or every is None or not len(run.epochs):
        return ""
    lowest = min(epoch.first for epoch in run.epochs)
    starts = sorted(epoch.begin for epoch in run.epochs if epoch.first == lowest)
    for episode in run.episodes:
        again = bisect.bisect(starts, episode.t_stop) < bisect.bisect(starts, episode.end)
        if episode.furthest_step > every and again:
            text = f"after step {episode.furthest_step} the job started again from step {lowest}"
            return f"{text}, and did not report whether it had a checkpoint"
    return ""


def usual_strides(run: Timeline, fault_free: Timeline | None) -> Mapping[int, int]:
    """Maps each rank that logs steps at a regular interval to this interval, as a number of steps."""
    told: dict[int, list[Stretch]] = {}
    for timeline in (run, fault_free or run):  # the fault-free run takes precedence
        told |= grouped((timeline.processes[each.process].rank, each) for each in timeline.stretches)
    found = dict[int, int]()
    for rank, mine in told.items():
        strides = [each.stride for each in mine if each.stride]
        if strides and sum(len(each.jumps) for each in mine) <= IRREGULAR * sum(each.rows for each in mine):
            found[rank] = min(strides)
    return found


def blindness(run: Timeline, fault_free: Timeline | None) -> str:
    """Returns why no steps can be judged, or an empty text if steps can be judged. A job without steps can be judged if
    the fault-free run has steps."""
    if not len(run.steps) and (fault_free is None or not len(fault_free.steps)):
        return NO_STEPS
    return APART if run.apart else ""
