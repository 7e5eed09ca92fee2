"""Fault-free runs that stop at a save and go on from it: beside them stands a run whose world changed its size.

A run that has another size from its first step on is as far from the fault-free run as rounding has come by then, which
is far more than a run differs by that changes its size late. A wrong optimizer hides in between. So these are made
after the run, once it is known which save its restart took, and kept as other fault-free runs are:

    resumed-before    as many nodes as planned, up to that save
    resumed-same      goes on from a copy of it with as many nodes: the resume by itself must change nothing
    resumed-1 … 3     go on from a copy of it with as many nodes as the run had then: how far rounding takes it

`resumed-same` is what is judged first: the others resume too, so a resume that goes wrong would widen the band it has
to be in. There is one of the last kind where the steps before the save are those of the fault-free run bit for bit,
else three. They cost the steps up to the save once, and those after it two or four times; a drill's cost is less, but
it looks at no step. That the world grows again is not repeated: it would need a save that only a notice leaves.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from harness.backends.contract import Backend
from harness.campaign import seal
from harness.campaign.campaign_observers import CampaignObserver, Stage, staged
from harness.campaign.fault_free import cache, expects_band, keep, own_folder, release
from harness.errors import ChaosError, FaultError
from harness.judge.facts.evidence import BEFORE, RESUMED, SAME
from harness.judge.facts.losses import compare, surviving
from harness.log import untrusted_files
from harness.plan.run_plan import Plan
from harness.run import drill
from harness.run.job import execute
from harness.run.stop import StopRequest
from harness.timeline import timeline
from harness.timeline.timeline import Timeline

REPEATS = 3  # where one and the same job does not compute the same twice


class Resize(NamedTuple):
    """The world goes on from the save of `step` with `nodes` nodes."""

    step: int
    nodes: int


def resize(plan: Plan, run: Timeline) -> Resize | None:
    """Where the run first went on with another number of nodes, if that is to be judged and can be repeated: from the
    newest periodic save, as no fault-free run makes another one."""
    reached = plan.backend in drill.REACHED and plan.workload.checkpoint.store != "s3"  # a store that ends with the job
    if not (reached and expects_band(plan)):
        return None
    for epoch in run.epochs[1:]:
        nodes, rest = divmod(epoch.size, plan.workload.ranks_per_node)
        if epoch.kept >= epoch.first > 1 and epoch.size != plan.workload.world_size and not rest:
            every, step = plan.workload.checkpoint.every_steps, epoch.first - 1
            return Resize(step - step % every or step, nodes)
    return None


@dataclass
class Resumed:
    """Makes these runs, or takes those that are kept."""

    plan: Plan
    at: Resize
    reports: pathlib.Path
    backend: Backend
    observer: CampaignObserver
    stop: StopRequest

    def runs(self, fault_free: pathlib.Path) -> dict[str, pathlib.Path]:
        """The folder of each by its name. Raises `ChaosError` where one cannot be made."""
        before = self._kept(BEFORE)
        names = self._names(before, fault_free) if seal.holds(before) else []
        if not names or not all(seal.holds(self._kept(name)) for name in names):
            names = self._make(fault_free)
        return {name: self._kept(name) for name in (BEFORE, *names)}

    def _kept(self, name: str) -> pathlib.Path:
        digest = self.plan.without_faults("").outcome_digest()
        size = "" if name in (BEFORE, SAME) else f"-on-{self.at.nodes}"
        return cache(self.reports) / f"{digest}-at-{self.at.step}{size}-{name}"

    def _names(self, before: pathlib.Path, fault_free: pathlib.Path) -> list[str]:
        alike = compare(*(surviving(timeline.load(folder).steps) for folder in (before, fault_free))).identical
        return [SAME, *(f"{RESUMED}{n}" for n in range(1, 1 + (1 if alike else REPEATS)))]

    def _make(self, fault_free: pathlib.Path) -> list[str]:
        with self._folder(BEFORE) as before:
            self._execute(self._plan(BEFORE), before, until_saved=self.at.step)
            names = self._names(before, fault_free)
            for name in names:
                plan = self._plan(name)
                with self._folder(name) as folder:
                    drill.copy_saved(plan.launch(), before, folder)
                    untrusted_files.remove_tree(folder, "data")  # it is written anew
                    self._execute(plan, folder)
                    keep(folder, self._kept(name))
            keep(before, self._kept(BEFORE))
        return names

    def _plan(self, name: str) -> Plan:
        nodes = None if name in (BEFORE, SAME) else self.at.nodes
        return self.plan.without_faults(f"{self.plan.run_id}-{name}", nodes)

    @contextlib.contextmanager
    def _folder(self, name: str) -> Iterator[pathlib.Path]:
        """A folder for one run; what is not kept in the end is removed."""
        folder = own_folder(self.reports, self._kept(name).name)
        try:
            yield folder
        finally:
            with contextlib.suppress(FaultError):
                untrusted_files.remove_tree(folder.parent, folder.name)
            release(folder)

    def _execute(self, plan: Plan, folder: pathlib.Path, until_saved: int | None = None) -> None:
        stage = Stage("fault-free run", plan.workload.nodes, at=self.at.step, until_there=until_saved is not None)
        given = (plan, folder, self.backend, self.observer, self.stop, until_saved)
        outcome = staged(self.observer, stage, lambda: execute(*given))
        if outcome.outcome != ("completed" if until_saved is None else "saved"):
            raise ChaosError(f"{stage.in_words}: {outcome.outcome}: {outcome.reason}")
