"""The evidence about a run: its event log, and the logs of fault-free runs and of later restarts from the run's
checkpoints."""

import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from harness.errors import EventLogError
from harness.evidence import deaths, losses, made_as_asked
from harness.evidence.losses import Comparison
from harness.evidence.made_as_asked import RESUMED, Asked
from harness.judge.thresholds import BEFORE_NS, DIFFERS_FOR_GOOD
from harness.log.reading import is_told
from harness.timeline import timeline, window
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import Timeline
from harness.units import counted

CHANGED = "the configuration was changed on purpose"
FAULT_FREE = "fault-free"
_FOLDERS = (FAULT_FREE, "twin")  # "twin": the name in older versions
CALIBRATION = "calibration-"
DRILL, SECOND = "drill", "second-restart"  # restarts after the run, on copies of its saves


@dataclass(frozen=True)
class Evidence:
    """All logs by which a run is judged: of the run, of fault-free runs, and of later restarts from the run's
    checkpoints."""

    run: Timeline  # the event log of the run
    fault_free: Timeline | None = None  # the same job without a fault
    calibration: Sequence[Timeline] = ()  # further fault-free runs: other world sizes, repeats
    drill: Timeline | str = ""  # the restore drill, or why its log cannot be read
    resumed: Mapping[str, Timeline] = field(default_factory=dict)  # fault-free, by folder; stopped or resumed at a save
    second_restart: Timeline | str = ""  # the second restart, or why its log cannot be read

    def new_work(self) -> str:
        """Returns a text that says that a fault changed more than optimizer settings, or an empty text. After a change
        of more than optimizer settings, the fault-free run does not show the usual pace, files and saves."""
        return "" if self.run.work_changed_at == NEVER else CHANGED

    @cached_property
    def fault_free_runs(self) -> list[Timeline]:
        """Returns the fault-free runs that can show usual values, because the method `flaw` finds no flaw in them."""
        return [other for other in (self.fault_free, *self.calibration) if other and not self.flaw(other)]

    def flaw(self, other: Timeline, asked: Asked | None = None) -> str:
        """Returns why the fault-free run `other` is unusable, or an empty text if `other` is usable. `asked` is the
        harness's request for the run `other`: by default, to do all steps of the judged job, from the first step on."""
        if why := _unfit(self.run, other):
            return why
        if len(other.epochs) != 1:
            return "it restarted or went back to an earlier step"
        nodes = None if other is self.fault_free else other.planned_size.nodes  # a calibration run may have any size
        if why := (asked or Asked.by(self.run, nodes=nodes, resumes_at=0)).broken_by(other):
            return why
        steps, told = other.steps, is_told(other.steps.loss)
        rows = steps.rank == steps.rank[told].min(initial=np.iinfo(np.int64).max)  # the lowest rank that logs a loss
        odd = (told & ~np.isfinite(steps.loss))[rows]
        overflows = losses.by_scale(odd & (steps.applied[rows] == 0))  # a loss scale explains these rows
        return "its loss is not a number in some steps" if (odd & ~overflows).any() else ""

    @cached_property
    def resumed_elsewhere(self) -> str:
        """Returns which run in `resumed` did not run as the harness asked, and why, or an empty text if all did."""
        return made_as_asked.broken_by(self.run, self.fault_free, self.resumed)


def load_evidence(run_dir: pathlib.Path, rehearsal: str | None = None) -> Evidence:
    """Loads the evidence about the whole job, or about the given rehearsal (one of several fault tests in a job).
    Raises `EventLogError` if the run's own log cannot be read, and `UsageError` if the log lacks the rehearsal."""
    whole = beside(window.load(run_dir, rehearsal), run_dir)
    return whole if rehearsal is None else part_of(whole)


def beside(run: Timeline, folder: pathlib.Path) -> Evidence:
    """Adds to a run's log the logs of fault-free runs and of test restarts (restore drill, second restart) in `folder`.
    Raises `EventLogError` if the log of a fault-free run cannot be read."""
    held = next((folder / name for name in _FOLDERS if (folder / name / "events").is_dir()), None)
    return Evidence(
        run=run,
        fault_free=timeline.load(held) if held else None,
        calibration=[timeline.load(path) for path in sorted(folder.glob(CALIBRATION + "*"))],
        drill=_drill(folder / DRILL),
        resumed={path.name: timeline.load(path) for path in sorted(folder.glob(RESUMED + "*"))},
        second_restart=_drill(folder / SECOND),
    )


def _drill(folder: pathlib.Path) -> Timeline | str:
    try:
        return timeline.load(folder) if (folder / "events").is_dir() else ""
    except EventLogError as error:
        return str(error)


def part_of(whole: Evidence) -> Evidence:
    """Returns the evidence of one rehearsal (one of several fault tests in a job): cuts the fault-free runs to the
    rehearsal's steps, and leaves out runs that resume from a checkpoint."""
    fault_free = None if whole.fault_free is None else window.fault_free_part(whole.fault_free, whole.run)
    calibration = [window.fault_free_part(each, whole.run) for each in whole.calibration]
    return replace(whole, fault_free=fault_free, calibration=calibration, resumed={})


def _unfit(run: Timeline, other: Timeline) -> str:
    if any(fault.injected is not None for fault in other.faults):
        return "a fault struck it"
    if any(not gap.full_disk for each in other.processes for gap in each.gaps or ()):
        return "its log lacks lines"
    if other.outcome != "completed" or not other.finished:
        return "it did not finish"
    # Processes of two runs never start in the same nanosecond.
    copied = not {each.started for each in run.processes}.isdisjoint(each.started for each in other.processes)
    return "it is a copy of this run" if copied else ""


def no_comparison(run: Timeline, fault_free: Timeline | None, comparison: Comparison | None) -> str:
    """Returns why the run cannot be compared with the fault-free run step by step, or "" if the two runs can be
    compared."""
    if comparison is None or fault_free is None:
        return "there is no fault-free run to compare with"
    died = any(deaths.unexplained(fault_free, deaths.ends_of(fault_free)))
    why = "it has faults of its own" if fault_free.faults else "a process of it died" if died else ""
    if why := why or _unfit(run, fault_free) or Asked.by(run, resumes_at=0).broken_by(fault_free):
        return f"the fault-free run cannot be compared: {why}"
    if silent := set(run.steps.rank.tolist()) - set(fault_free.steps.rank.tolist()):
        return f"rank {min(silent)} tells no step in the fault-free run"
    if not len(comparison.step):
        return "no surviving step can be compared with the fault-free run"
    if len(comparison.step) < comparison.run_steps:
        missing = comparison.run_steps - len(comparison.step)
        return f"{counted(missing, 'step')} {'is' if missing == 1 else 'are'} not in the fault-free run"
    if not np.isfinite(comparison.fault_free.loss).any():
        return "the trainer reports no loss"
    told = (comparison.fault_free.loss, comparison.fault_free.grad_norm)
    finite = [values[np.isfinite(values)] for values in told]
    if all(not len(values) or (len(values) > 1 and np.ptp(values) == 0) for values in finite):
        return "the losses of the fault-free run never change, so equal losses prove nothing"
    rows = np.flatnonzero(np.isfinite(comparison.fault_free.loss))
    gap = int(np.diff(rows, prepend=-1).max())  # a trainer may report its loss only at some steps
    if len(comparison.step) - 1 - int(rows[-1]) > gap:
        return f"the fault-free run reports no finite loss after step {comparison.step[rows[-1]]}"
    return ""


def never_the_same(run: Timeline, comparison: Comparison | None) -> str:
    """Returns a text that says that the trainer is not deterministic, or an empty text. If the trainer is not
    deterministic, differences from the fault-free run are no errors. A trainer counts as not deterministic only if the
    differences begin well before the first fault (without faults and restarts: at any step), and at the first compared
    step or in nearly all steps from then on."""
    if comparison is None:
        return ""
    unknown = first_strike(run.faults) == NEVER and bool(run.plan.get("faults") or len(run.epochs) > 1)
    differ = np.logical_or.reduce(list(comparison.differs.values()))
    odd = np.flatnonzero(differ)
    if unknown or not len(odd) or (len(odd) < DIFFERS_FOR_GOOD * len(differ[odd[0] :]) and odd[0] > 0):
        return ""
    first = comparison.step[odd[0]]
    if int(run.steps.end[run.steps.step == first].max()) >= first_strike(run.faults) - BEFORE_NS:
        return ""
    if run.beside.earlier:
        why = f"step {first} differs from the fault-free run before this rehearsal's fault struck"
        return why if run.beside.other_losses else f"{why}: see the rehearsals before it"
    why = f"step {first} differs from the fault-free run before any fault struck"
    return f"{why}: the trainer is not deterministic; fix its seeds, or use mode: envelope or final"
