"""Makes fault-free runs that resume from a checkpoint on another number of nodes, to judge a run that did the same.

Rounding errors change training losses much if the number of nodes differs from the first step on, but less if the
number changes late. A tolerance interval from runs whose number of nodes differs from the first step on would hide a
wrong optimizer. The runs of this module change their number of nodes at the save from which the judged run restarted.

The judge first checks the run `resumed-same`, in which the number of nodes does not change: a faulty resume would widen
the tolerance interval that should reveal it. If the steps before the save equal those of the fault-free run bit for
bit, one run with the new number of nodes is enough. If the judged run increases its number of nodes again, the
fault-free runs do not repeat the increase, because only an eviction notice causes the save that they would need. A run
whose log does not agree with its plan (`harness.evidence.made_as_asked`) is made once more; if it disagrees again, the
judge reports it. The runs are stored like other fault-free runs, under these names:

  resumed-before    runs with the planned number of nodes, and stops at the save
  resumed-same      resumes from a copy of the save with the same number of nodes, which must not change the losses
  resumed-1 … 3     resume from a copy of the save with the run's new number of nodes, to measure rounding errors
  resumed-at-40     as resumed-1, but from another save, if a repeat from the first save would be equal bit for bit
"""

import pathlib
from collections.abc import Callable, Collection
from dataclasses import dataclass

from harness.backends.contract import Backend
from harness.campaign import seal
from harness.campaign.campaign_observers import CampaignObserver, Stage, staged
from harness.campaign.fault_free import borrowed, cache, expects_band, keep
from harness.errors import ChaosError
from harness.evidence import made_as_asked
from harness.evidence.losses import compare, surviving
from harness.evidence.made_as_asked import BEFORE, RESUMED, SAME, Resize, asked_of
from harness.log import untrusted_files
from harness.plan.run_plan import Plan
from harness.run import drill
from harness.run.job import Outcome, execute
from harness.run.stop import StopRequest
from harness.timeline import timeline
from harness.timeline.timeline import Timeline
from harness.trainers.shared.stores import DIRECTORY

REPEATS = 3  # runs of the third kind for a job that does not compute the same twice


def resize(plan: Plan, run: Timeline, fault_free: Timeline | None) -> Resize | None:
    """Returns the step of the save at which the run first changed its number of nodes, and the new number of nodes.
    Returns `None` if fault-free runs cannot repeat the change."""
    # Any other store ends with the job.
    reached = plan.backend in drill.REACHED and plan.workload.checkpoint.store == DIRECTORY
    return made_as_asked.resize(run, fault_free) if reached and expects_band(plan) else None


@dataclass
class Resumed:
    """Makes or finds fault-free runs that change their number of nodes at the save `at`, as `run` did."""

    plan: Plan
    at: Resize
    run: Timeline
    reports: pathlib.Path
    backend: Backend
    observer: CampaignObserver
    stop: StopRequest

    def runs(self, fault_free: pathlib.Path) -> dict[str, pathlib.Path]:
        """Returns the folders of the fault-free runs that change their number of nodes, by name. Raises `ChaosError` if
        one of the runs fails."""
        before = self._kept(BEFORE)
        names = self._names(before, fault_free) if self._holds(BEFORE) else []
        if not names or not all(map(self._holds, names)):
            names = self._make(self.at.step, lambda before: self._names(before, fault_free))
        return {name: self._kept(name) for name in (BEFORE, *names)}

    def another(self, fault_free: pathlib.Path, known: Collection[str]) -> tuple[str, pathlib.Path] | None:
        """Makes one more fault-free run that changes its number of nodes, and returns the run's name and folder.
        Returns `None` if there is no further save to resume from."""
        if self._repeats(self._kept(BEFORE), fault_free):  # from the same save it would be the same run again
            saves = made_as_asked.committed(timeline.load(fault_free)) - {self.at.step, self.plan.workload.steps}
            steps = sorted(saves, key=lambda step: (abs(step - self.at.step), step))
            names = {f"{RESUMED}at-{step}": step for step in steps}
        else:
            names = {f"{RESUMED}{len(known) + 1}": self.at.step}
        name = next((name for name in names if name not in known), None)
        if name is None:
            return None
        if not self._holds(name):
            self._make(names[name], lambda before: [name])
        return name, self._kept(name)

    def _kept(self, name: str) -> pathlib.Path:
        digest = self.plan.without_faults("").outcome_digest()
        size = "" if name in (BEFORE, SAME) else f"-on-{self.at.nodes}"
        return cache(self.reports) / f"{digest}-at-{self.at.step}{size}-{name}"

    def _holds(self, name: str) -> bool:
        return seal.holds(self._kept(name)) and not self._flaw(name, self._kept(name), self.at.step)

    def _flaw(self, name: str, folder: pathlib.Path, step: int) -> str:
        asked = asked_of(name, self.run, Resize(step, self.at.nodes))
        return asked.broken_by(timeline.load(folder))

    def _names(self, before: pathlib.Path, fault_free: pathlib.Path) -> list[str]:
        alike = self._repeats(before, fault_free)
        return [SAME, *(f"{RESUMED}{n}" for n in range(1, 1 + (1 if alike else REPEATS)))]

    def _repeats(self, before: pathlib.Path, fault_free: pathlib.Path) -> bool:
        return compare(*(surviving(timeline.load(folder).steps) for folder in (before, fault_free))).identical

    def _make(self, step: int, names_of: Callable[[pathlib.Path], list[str]]) -> list[str]:
        with borrowed(self.reports, self._kept(BEFORE).name) as before:
            self._execute(BEFORE, before, step)
            names = names_of(before)
            for name in names:
                with borrowed(self.reports, self._kept(name).name) as folder:
                    self._execute(name, folder, step, before)
                    keep(folder, self._kept(name))
            if step == self.at.step:
                keep(before, self._kept(BEFORE))
        return names

    def _execute(self, name: str, folder: pathlib.Path, step: int, before: pathlib.Path | None = None) -> None:
        nodes = None if name in (BEFORE, SAME) else self.at.nodes
        plan = self.plan.without_faults(f"{self.plan.run_id}-{name}", nodes)
        stage = Stage("fault-free run", plan.workload.nodes, at=step, until_there=before is None)
        given = (plan, folder, self.backend, self.observer, self.stop, step if before is None else None)

        def run() -> Outcome:
            return execute(*given)

        for last in (False, True):
            if before is not None:
                drill.copy_saved(plan.launch(), before, folder)
                untrusted_files.remove_tree(folder, "data")  # the run writes it anew
            outcome = staged(self.observer, stage, run)
            if outcome.outcome != ("completed" if before is not None else "saved"):
                raise ChaosError(f"{stage.in_words}: {outcome.outcome}: {outcome.reason}")
            if last or not (why := self._flaw(name, folder, step)):
                return
            self.observer.note(f"{stage.in_words}: {why}. It is made again.")
            for each in folder.iterdir():
                untrusted_files.remove_tree(folder, each.name)
