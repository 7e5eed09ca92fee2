"""Deaths: for which of them does an injected fault account?

The rules name who may die of what; everything else is unexplained:

* A *target* of a fault that kills may die of it, in whatever way.
* Its *peers* may, when it was taken: a collective that fails, fails for all of its ranks. The same goes for those
  at work when a node came (back), as the job is formed anew; and for everybody while a fault is at work over which a
  healthy job may have to stop (`stops`: a partition, a full store). But only until they take part in a new world's
  steps, and not by a crash of their own: no peer's end causes a segmentation fault.
* Those leave in peace who were drained after a notice, or regrouped for a larger world that then came.

A fault that only slows a job explains no death at all.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from harness.timeline import CLEAN_CODES, FaultRecord, Timeline
from harness.units import format_duration

_OWN_CRASHES = {-number for number in (signal.SIGSEGV, signal.SIGILL, signal.SIGFPE)}


@dataclass(frozen=True)
class Death:
    """A process that ended with another code than 0. `rank` `None`: a node's command, for all that ran under it."""

    node: str
    incarnation: int
    rank: int | None
    code: int
    at: int
    started: int
    processes: tuple[int, ...]  # rows in Timeline.processes

    def was_alive(self, run: Timeline, moment: int) -> bool:
        """As far as the clocks of its host and of the harness can be compared."""
        return self.started - run.uncertainty_ns <= moment <= self.at + run.uncertainty_ns

    def last_word(self, run: Timeline) -> int:
        """When it was still there for certain: exits are seen later than they happen."""
        if self.rank is None:
            return self.at
        return max((run.processes[i].last_seen for i in self.processes), default=self.started)

    def describe(self, since: int) -> str:
        who = "the command" if self.rank is None else f"rank {self.rank}"
        return f"{who} on {self.node} ended with {self.code} at {format_duration(self.at - since)}"


def deaths(run: Timeline) -> list[Death]:
    return [_death(run, exit_) for exit_ in (*run.exits, *_last_words(run)) if exit_["code"] != 0]


def _last_words(run: Timeline) -> Iterator[dict[str, Any]]:
    """Exits that only the worker itself told of: not all launchers write into the log."""
    seen = {(exit_["node"], exit_["incarnation"], exit_["at"]) for exit_ in run.exits if exit_["rank"] is not None}
    for worker in run.processes:
        place = {"node": worker.node, "incarnation": worker.incarnation, "rank": worker.rank}
        if worker.exit_code is not None and (worker.node, worker.incarnation, worker.exited) not in seen:
            yield place | {"code": worker.exit_code, "at": worker.exited}


def quits(run: Timeline) -> list[Death]:
    """Workers that ended with 0 before the last step had begun."""
    last = int(run.progress.begin[-1]) - run.uncertainty_ns if len(run.progress) else 0
    exits = (*run.exits, *_last_words(run))
    well = (exit_ for exit_ in exits if exit_["code"] == 0 and exit_["rank"] is not None)
    return [_death(run, exit_) for exit_ in well if exit_["at"] < last]


def unexplained(run: Timeline) -> Iterator[Death]:
    """Deaths that no injected fault accounts for, while the run was going on; and workers that quit as little."""
    over = max((slot.released for slot in run.slots), default=run.end)  # later ones are the harness's own doing
    if run.aborted is not None:
        over = min(over, run.aborted)
    all_of_them = deaths(run)
    for death in (*all_of_them, *quits(run)):
        if death.at <= over and not (_left_in_peace(run, death) or _explained(run, death, all_of_them)):
            yield death


def _death(run: Timeline, exit_: dict[str, Any]) -> Death:
    """When what died had been started, and which workers went with it."""
    node, incarnation, rank, at = exit_["node"], exit_["incarnation"], exit_["rank"], exit_["at"]
    there = [i for i, p in enumerate(run.processes) if (p.node, p.incarnation) == (node, incarnation)]
    if rank is None:
        started = next((s.allocated for s in run.slots if (s.node, s.incarnation) == (node, incarnation)), at)
        rows = [i for i in there if run.processes[i].started <= at]
    else:
        rows = [i for i in there if run.processes[i].exited == at]
        started = min((run.processes[i].started for i in rows), default=run.begin)  # one that never said a word
    return Death(node, incarnation, rank, int(exit_["code"]), at, started, tuple(rows))


def _left_in_peace(run: Timeline, death: Death) -> bool:
    if death.code not in CLEAN_CODES:
        return False
    if any(death.started <= notice["at"] <= death.at for notice in run.notices):
        return True
    later = [p for p in run.processes if p.started > death.at]
    mine = [run.processes[i] for i in death.processes if death.rank is not None]
    return any(p.world_size > own.world_size for own in mine for p in later)


def _explained(run: Timeline, death: Death, everyone: Collection[Death]) -> bool:
    killers = [fault for fault in run.faults if fault.kills and fault.injected is not None]
    if any(_is_target(run, fault, death) for fault in killers):
        return True
    if death.code in _OWN_CRASHES:
        return False
    if any(_is_peer(run, fault, death, everyone) for fault in killers):
        return True
    own = (death.node, death.incarnation)  # whose own arrival excuses nothing
    arrivals = [slot.allocated for slot in run.slots if slot.incarnation > 1 and (slot.node, slot.incarnation) != own]
    if any(_went_with(run, death, at, ()) for at in arrivals):
        return True
    return any(_stopped_by(run, fault, death) for fault in run.faults if fault.stops and fault.injected is not None)


def _is_target(run: Timeline, fault: FaultRecord, death: Death) -> bool:
    """Alive at one of the moments at which the fault acted, in a place it was aimed at."""
    assert fault.injected is not None
    aimed = any(
        (target.get("node"), target.get("incarnation")) == (death.node, death.incarnation)
        and target.get("rank") in (None, death.rank)
        for target in fault.targets
    )
    return aimed and any(death.was_alive(run, moment) for moment in (fault.injected, *fault.strikes))


def _is_peer(run: Timeline, fault: FaultRecord, death: Death, everyone: Collection[Death]) -> bool:
    """Gone after the targets were taken, or after the first of them had left on the notice before that."""
    assert fault.injected is not None
    targets = [other for other in everyone if _is_target(run, fault, other)]
    victims = {row for other in targets for row in other.processes}
    first = min(fault.strikes, default=fault.injected)
    left = [max(fault.injected, other.last_word(run)) for other in targets if other.at < first]
    return any(_went_with(run, death, root, victims) for root in (*fault.strikes, *left))


def _went_with(run: Timeline, death: Death, root: int, victims: Collection[int]) -> bool:
    """Alive at `root`, and dead without having stepped in a world that began after it and was without the victims."""
    if not death.was_alive(run, root):
        return False
    for epoch in run.epochs:
        again = not set(death.processes).isdisjoint(epoch.processes)
        if again and root < epoch.begin <= death.at and set(victims).isdisjoint(epoch.processes):
            return False
    return True


def _stopped_by(run: Timeline, fault: FaultRecord, death: Death) -> bool:
    """While the fault was at work; or at work still when it was healed, and in no new world since."""
    assert fault.injected is not None
    healed = run.end if fault.healed is None else fault.healed
    return fault.injected <= death.at <= healed or _went_with(run, death, healed, ())
