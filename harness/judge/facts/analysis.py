"""Computes facts about a run once, for all guarantees, charts and forecasts that use these facts."""

import contextlib
import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
from pydantic import ValidationError

from harness.evidence import by_time, deaths, envelope, ledger, losses, ranks, samples, usual
from harness.evidence.coordinates import new_layout
from harness.evidence.envelope import Envelope
from harness.evidence.ledger import Ledger
from harness.evidence.logs import CHANGED, Evidence, never_the_same, no_comparison
from harness.evidence.lost_lines import Lost, lost_lines
from harness.evidence.ranks import Abnormal
from harness.evidence.usual import Pace, Slowed, Usual
from harness.evidence.work import Work
from harness.judge.bounds import BOUNDS, Bounds, ContinuityBounds
from harness.judge.facts import alarms, restarts
from harness.judge.facts.known import Odd
from harness.judge.facts.restarts import Restart
from harness.judge.facts.saves import Saves
from harness.judge.facts.times import impossible
from harness.timeline.lookups import NEVER, first_from, grouped
from harness.timeline.sorted_events import key_of
from harness.timeline.timeline import Floats, Ints, Process, saving_like

B = TypeVar("B", bound=Bounds)
F = TypeVar("F")
NO_BOUND = "the scenario sets no bound on it"


def fact(work: Callable[["Analysis"], F]) -> F:
    """Returns a property that calls `work` when it is first read, and keeps the result."""
    return cached_property(work)  # type: ignore[return-value]


class Analysis(Evidence):
    """The evidence about a run, and all facts derived from the evidence. Each fact is computed when first needed."""

    @classmethod
    def of(cls, evidence: Evidence) -> Self:
        told = {each.name: getattr(evidence, each.name) for each in dataclasses.fields(evidence)}
        return cls(**told | {"run": saving_like(evidence.run, evidence.fault_free)})

    usual: Usual = fact(lambda self: Usual(self.fault_free_runs, self.run))
    slowed: Slowed = fact(lambda self: Slowed(self.run, self.usual))
    disturbed: Sequence[by_time.Window] = fact(lambda self: by_time.disturbed(self.run))

    @cached_property
    def faults_at_work(self) -> Sequence[by_time.Window]:
        """Returns the merged time windows in which faults acted. Each window lasts from the begin of an injection until
        the fault is undone, and does not include the outage after the fault. A kill counts as undone once its targets
        are dead and replaced."""
        begun = [(each, at) for each in self.run.faults if (at := each.injecting or each.injected) is not None]
        killed = {each.id: max(at, *each.strikes, each.injected or 0) for each, at in begun if each.kills}
        return by_time.union((at, each.healed or killed.get(each.id, self.run.end)) for each, at in begun)

    impossible_times: Sequence[Odd] = fact(
        lambda self: list(impossible(self.run, self.fault_free_runs, self.disturbed, self.resumed.values()))
    )
    pace: Pace | str = fact(lambda self: usual.pace(self.run, self.usual, self.disturbed))

    @cached_property
    def windows(self) -> Sequence[by_time.Window]:
        """Returns the time windows of outages, slowdowns and, if there is no fault-free run, frozen processes."""
        return self._windows(frozenset())

    @property
    def disturbances(self) -> Sequence[by_time.Window]:
        """Returns the time windows of outages, slowdowns and active faults, except those of benign faults."""
        struck = [fault for fault in self.run.faults if fault.injected is not None]
        acted = [(each.injected or 0, by_time.healed_at(self.run, each)) for each in struck if not each.benign]
        return [*self._windows(frozenset(each.id for each in struck if each.benign)), *acted]

    def _windows(self, but: frozenset[str]) -> Sequence[by_time.Window]:
        episodes = [(e.t_stop, e.end) for e in self.run.episodes if not e.faults or not but.issuperset(e.faults)]
        slow = [(interval.begin, interval.end) for interval in self.slowed.degraded if interval.fault not in but]
        return [*episodes, *slow, *([] if self.fault_free_runs else usual.stood_frozen(self.run))]

    ledger: Ledger = fact(lambda self: ledger.settle(self.run, self.usual.bands, self.windows, self.usual.own_steps))
    curve: losses.Curve = fact(lambda self: losses.surviving(self.run.steps, self.of_all))
    fault_free_curve: losses.Curve | None = fact(
        lambda self: losses.surviving(self.fault_free.steps, self.of_all) if self.fault_free else None
    )
    other_layout: str = fact(lambda self: new_layout(self.run, self.fault_free_runs))

    @cached_property
    def of_all(self) -> bool:
        """Returns True if losses are compared as means over all ranks, because each rank may log its own."""
        band = self.fault_free is not None and getattr(self.continuity, "mode", "") in ("final", "envelope")
        return bool(self.other_layout) or (band and self.own_losses)

    comparison: losses.Comparison | None = fact(lambda self: self.compare(self.run.changed_after))
    same_work: losses.Comparison | None = fact(
        lambda self: self.compare(self.run.step_before(self.run.work_changed_at)) if self.changed() else self.comparison
    )

    def compare(self, last: int) -> losses.Comparison | None:
        """Compares the steps up to `last` with the same steps of the fault-free run."""
        mine = self.curve.at(np.flatnonzero(self.curve.step <= last))
        return losses.compare(mine, self.fault_free_curve) if self.fault_free_curve else None

    @cached_property
    def compared(self) -> Mapping[str, losses.Comparison]:
        """Maps an empty text to the comparison with the fault-free run, and each rank that logs its own loss to the
        comparison of this rank."""
        own = self.fault_free if self.of_all and not self.other_layout else None
        each = dict(losses.of_each_rank(self.run.steps, own.steps, self.run.changed_after)) if own else {}
        return {"": self.comparison, **each} if self.comparison else {}

    resumed_runs: envelope.Resumed | None = fact(lambda self: envelope.resumed(self, self.of_all))
    calibrated: Envelope | str = fact(lambda self: envelope.calibrated(self, self.fault_free_curve, self.of_all))

    @cached_property
    def envelope(self) -> Envelope | str:
        """Returns the tolerance interval around the fault-free run's losses, or the reason why it is not known."""
        if self.resumed_runs is None or not self.fault_free_curve:
            return self.calibrated
        return self.resumed_runs.around(self.fault_free_curve)

    resume_alone: tuple[str, str] = fact(
        lambda self: envelope.resume_alone(self.resumed_runs, self.calibrated, self.fault_free_curve)
    )
    left_band_early: str = fact(lambda self: envelope.left_early(self.run, self.envelope, self.comparison))
    incomparable: str = fact(lambda self: no_comparison(self.run, self.fault_free, self.comparison))
    never_the_same: str = fact(lambda self: never_the_same(self.run, self.comparison))

    def bounds(self, of: type[B]) -> B | None:
        """Returns the scenario's limits for one criterion, or `None` if the scenario sets no valid limits."""
        written = (self.run.plan.get("expect") or {}).get(next(name for name, each in BOUNDS.items() if each is of))
        with contextlib.suppress(ValidationError):
            return of.model_validate(written) if isinstance(written, Mapping) else None
        return None

    @cached_property
    def continuity(self) -> ContinuityBounds | None:
        """Returns the limits on differences from the fault-free run's losses, or `None` if there are no such limits."""
        bounds = self.bounds(ContinuityBounds)
        return bounds if bounds and bounds.against == "fault-free" else None

    consumed: samples.Consumed | None = fact(lambda self: samples.consumed(self))
    spikes: Sequence[alarms.Spike] = fact(lambda self: alarms.spikes(self.run))
    left_out: alarms.LeftOut = fact(lambda self: alarms.left_out(self.run, self.spikes))
    apart: tuple[Floats, Floats] | None = fact(
        lambda self: losses.apart(self.run.steps, self.fault_free.steps) if self.fault_free else None
    )
    weights_apart: tuple[int, list[Abnormal]] = fact(lambda self: ranks.weights_apart(self.run))

    @cached_property
    def own_weights(self) -> bool:
        """Returns True if, in the fault-free run, each rank holds its own part of the model's weights."""
        return self.fault_free is not None and bool(ranks.weights_apart(self.fault_free)[1])

    @cached_property
    def own_losses(self) -> bool:
        """Returns True if each rank of the fault-free run logs its own loss, so that losses differ between ranks."""
        usual = getattr(self.fault_free, "steps", None)
        return usual is not None and ranks.is_local(usual, "loss", ranks.telling(usual, "loss"))

    @cached_property
    def jumps(self) -> Ints:
        """Counts for each process the pairs of consecutive logged steps whose numbers do not grow by exactly one."""
        order, begins = self.run.rows_by_process
        far = np.append(np.diff(self.run.steps.step[order]) != 1, False)
        before = np.append(0, np.cumsum(far))
        found: Ints = before[np.maximum(begins[1:] - 1, begins[:-1])] - before[begins[:-1]]
        return found

    @cached_property
    def rows_by_step(self) -> tuple[Ints, Ints]:
        """Returns two arrays: the row numbers of `run.steps`, sorted by step, and the step of each of these rows."""
        order = np.argsort(self.run.steps.step, kind="stable")
        return order, self.run.steps.step[order]

    @cached_property
    def seams(self) -> frozenset[int]:
        """Returns the step before the first step of each start or restart of the job. A start whose steps were all
        rolled back is left out."""
        return frozenset(int(epoch.first) - 1 for epoch in self.run.epochs if epoch.kept >= 0)

    @cached_property
    def missing(self) -> Ints:
        """Returns the expected steps that the run never did, or did only in executions that were rolled back."""
        told = self.fault_free_curve.step if self.fault_free_curve and not self.new_work() else None
        return losses.missing(self.curve, told, self.run.stride, self.run.steps_before)

    places: by_time.Places = fact(lambda self: by_time.Places(self.run))
    work: Work = fact(lambda self: Work(self.run))

    @cached_property
    def planned_faults(self) -> Mapping[str, Mapping[str, Any]]:
        """Maps the id of each planned fault to its part of the plan."""
        return {str(fault["id"]): fault for fault in self.run.plan.get("faults") or ()}

    ends: Sequence[deaths.End] = fact(lambda self: deaths.ends_of(self.run))
    deaths_unexplained: Sequence[deaths.End] = fact(lambda self: list(deaths.unexplained(self.run, self.ends)))

    @cached_property
    def last_notices(self) -> Mapping[str, int]:
        """Maps each node to the time of the last confirmed notice that the node must leave (see `deaths.given`)."""
        return {each["node"]: each["at"] for each in sorted(deaths.given(self.run), key=operator.itemgetter("at"))}

    saves: Saves = fact(lambda self: Saves(self.run, self.fault_free_saves))
    fault_free_saves: Saves | None = fact(lambda self: Saves(self.fault_free) if self.fault_free else None)

    @cached_property
    def restarts(self) -> Sequence[Restart]:
        """Returns the first start of the job, followed by each restart of the job."""
        return restarts.restarts(self.run, self.saves)

    def no_bound(self) -> str:
        """Returns a text that says that the scenario does not limit differences from the fault-free run, or an empty
        text."""
        return "" if self.continuity else NO_BOUND

    def changed(self) -> str:
        """Returns a text that says that a fault changed the job's command, or an empty text if no fault did."""
        last = self.run.changed_after
        return "" if last == NEVER else f"after step {last} not all is compared: {CHANGED}"

    def no_restart(self) -> str:
        """Returns a text that says that no restart happened, or an empty text if the job restarted."""
        return "" if len(self.restarts) > 1 else "nothing restarted the job"

    def no_damage(self) -> str:
        """Returns why nothing about damaged checkpoints can be judged (no restart or no damage), or an empty text."""
        compared = any(each.content and each.saved for restart in self.restarts[1:] for each in restart.restores)
        known = compared or any(self.saves.damage.values())
        return self.no_restart() or ("" if known else "no fault damaged a checkpoint")

    @cached_property
    def lost_lines(self) -> Sequence[Lost]:
        """Returns a text for each log that lacks lines, as gaps in the log's line numbers show."""
        return list(lost_lines(self.run, self.taken, self.ends)) if self.run.lost > self.run.dropped else ()

    @cached_property
    def taken(self) -> Sequence[int]:
        """Returns for each process the time at which a killing fault struck the process, or -1 if none did."""
        killers = [fault for fault in self.run.faults if fault.kills]
        aimed = [(at, target) for fault in killers for at in fault.strikes for target in fault.targets]
        in_order = sorted(aimed, key=operator.itemgetter(0))
        strikes = grouped(((key_of(target), target.get("rank")), at) for at, target in in_order)

        def first(process: Process) -> int:
            places = ((process.key, rank) for rank in (None, process.rank))
            return min(first_from(strikes.get(place, ()), process.started) for place in places)

        return [-1 if (at := first(process)) == NEVER else at for process in self.run.processes]
