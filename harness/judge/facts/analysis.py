"""What scores, charts and forecasts share, worked out once for each run."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from harness.judge.bounds import BOUNDS, Bounds, ContinuityBounds
from harness.judge.facts import (
    alarms,
    by_time,
    deaths,
    envelope,
    ledger,
    losses,
    ranks,
    restarts,
    samples,
    times,
    usual,
)
from harness.judge.facts.alarms import LeftOut, Spike
from harness.judge.facts.by_time import Places, Window
from harness.judge.facts.deaths import End
from harness.judge.facts.envelope import Envelope
from harness.judge.facts.evidence import Evidence, never_the_same, no_comparison
from harness.judge.facts.known import Odd
from harness.judge.facts.ledger import Ledger
from harness.judge.facts.losses import Comparison, Curve
from harness.judge.facts.lost_lines import Lost, lost_lines
from harness.judge.facts.ranks import Apart
from harness.judge.facts.restarts import Restart
from harness.judge.facts.samples import Consumed
from harness.judge.facts.saves import Saves
from harness.judge.facts.usual import Degraded, Pace, Slowed, Usual
from harness.judge.facts.work import Work
from harness.timeline.lineage import NEVER
from harness.timeline.lookups import first_from
from harness.timeline.timeline import Floats, Ints, Process, saving_like

B = TypeVar("B", bound=Bounds)


class Analysis(Evidence):
    """The evidence, and what follows from it. Each figure is computed when somebody first asks for it."""

    @classmethod
    def of(cls, evidence: Evidence) -> Analysis:
        told = {each.name: getattr(evidence, each.name) for each in dataclasses.fields(evidence)}
        return cls(**told | {"run": saving_like(evidence.run, evidence.fault_free)})

    @cached_property
    def usual(self) -> Usual:
        """How long things take without a fault."""
        return Usual(self.fault_free_runs, self.run)

    @cached_property
    def slowed(self) -> Slowed:
        return Slowed(self.run, self.usual)

    @property
    def degraded(self) -> Sequence[Degraded]:
        """The intervals in which faults slowed the job without stopping it."""
        return self.slowed.degraded

    @cached_property
    def disturbed(self) -> Sequence[Window]:
        return by_time.disturbed(self.run)

    @cached_property
    def impossible_times(self) -> Sequence[Odd]:
        return list(times.impossible(self.run, self.fault_free_runs, self.disturbed, self.resumed.values()))

    @cached_property
    def pace(self) -> Pace | str:
        """How fast the job was after its last recovery, or why it is not judged."""
        return usual.pace(self.run, self.usual, self.disturbed)

    @cached_property
    def windows(self) -> Sequence[Window]:
        """The times that faults answer for, in ns: recovery episodes and degraded intervals. Without a fault-free run
        also the steps in which processes were frozen, as their interval may not be seen then."""
        episodes = [(episode.t_stop, episode.end) for episode in self.run.episodes]
        stood = [] if self.fault_free_runs else usual.stood_frozen(self.run)
        return [*episodes, *((interval.begin, interval.end) for interval in self.degraded), *stood]

    @cached_property
    def ledger(self) -> Ledger:
        return ledger.settle(self.run, self.usual.bands, self.windows, self.usual.own_steps)

    @cached_property
    def curve(self) -> Curve:
        return losses.surviving(self.run.steps)

    @cached_property
    def fault_free_curve(self) -> Curve | None:
        return losses.surviving(self.fault_free.steps) if self.fault_free else None

    @cached_property
    def comparison(self) -> Comparison | None:
        return losses.compare(self.curve, self.fault_free_curve) if self.fault_free_curve else None

    @cached_property
    def resumed_runs(self) -> envelope.Resumed | None:
        """Fault-free runs that change their size where the run did."""
        return envelope.resumed(self)

    @cached_property
    def calibrated(self) -> Envelope | str:
        """How far fault-free runs are apart from their first step on, or why that is not known."""
        return envelope.calibrated(self, self.fault_free_curve)

    @cached_property
    def envelope(self) -> Envelope | str:
        """The band that the run is held against."""
        if self.resumed_runs is None or not self.fault_free_curve:
            return self.calibrated
        return self.resumed_runs.around(self.fault_free_curve)

    @cached_property
    def resume_alone(self) -> tuple[str, str]:
        """What a resume changes without any fault: with as many ranks, and with another number of them."""
        return envelope.resume_alone(self.resumed_runs, self.calibrated, self.fault_free_curve)

    @cached_property
    def left_band_early(self) -> str:
        """Which step is outside the band before any fault struck, so that the band says nothing of this job."""
        return envelope.left_early(self.run, self.envelope, self.comparison)

    @cached_property
    def incomparable(self) -> str:
        """Why no step can be held against the fault-free run's."""
        return no_comparison(self.run, self.fault_free, self.comparison)

    @cached_property
    def never_the_same(self) -> str:
        """Why the trainer cannot be expected to compute the very same in every run."""
        return never_the_same(self.run, self.comparison)

    def bounds(self, of: type[B]) -> B | None:
        """What the scenario expects; `None`: nothing of this, or what cannot be read."""
        written = (self.run.plan.get("expect") or {}).get(next(name for name, each in BOUNDS.items() if each is of))
        with contextlib.suppress(ValidationError):
            return of.model_validate(written) if isinstance(written, Mapping) else None
        return None

    @cached_property
    def continuity(self) -> ContinuityBounds | None:
        """How near its steps must be to those of the fault-free run; `None`: that is not asked."""
        bounds = self.bounds(ContinuityBounds)
        return bounds if bounds and bounds.against == "fault-free" else None

    @cached_property
    def consumed(self) -> Consumed | None:
        """What the surviving history consumed of the data set; `None` where nobody tells it by rank."""
        return samples.consumed(self)

    @cached_property
    def spikes(self) -> Sequence[Spike]:
        """Where the training diverged, if a fault or the trainer gives a reason to look."""
        return alarms.spikes(self.run)

    @cached_property
    def left_out(self) -> LeftOut:
        """Samples that the trainer left out over a spike, told and explained."""
        return alarms.left_out(self.run, self.spikes)

    @cached_property
    def apart(self) -> tuple[Floats, Floats] | None:
        """Steps that both runs have, and the largest difference of a rank's loss from that in the fault-free run."""
        return losses.apart(self.run.steps, self.fault_free.steps) if self.fault_free else None

    @cached_property
    def weights_apart(self) -> tuple[int, list[Apart]]:
        """How many steps tell digests of the weights of several ranks, and those where they differ."""
        return ranks.weights_apart(self.run)

    @cached_property
    def own_weights(self) -> bool:
        """Whether each rank holds its own part, as the fault-free run shows."""
        return self.fault_free is not None and bool(ranks.weights_apart(self.fault_free)[1])

    @cached_property
    def last_apart(self) -> int:
        """The last step at which the weights of ranks differ; -1: at none."""
        return max((each.step for each in self.weights_apart[1]), default=-1)

    @cached_property
    def jumps(self) -> Ints:
        """How often each process went from a step to another one than the next."""
        order, begins = self.run.rows_by_process
        far = np.append(np.diff(self.run.steps.step[order]) != 1, False)
        before = np.append(0, np.cumsum(far))
        found: Ints = before[np.maximum(begins[1:] - 1, begins[:-1])] - before[begins[:-1]]
        return found

    @cached_property
    def rows_by_step(self) -> tuple[Ints, Ints]:
        """The rows of all steps in the order of their steps, and those steps."""
        order = np.argsort(self.run.steps.step, kind="stable")
        return order, self.run.steps.step[order]

    @cached_property
    def seams(self) -> frozenset[int]:
        """The steps before those that an epoch which counts began with."""
        return frozenset(int(epoch.first) - 1 for epoch in self.run.epochs if epoch.kept >= 0)

    @cached_property
    def missing(self) -> Ints:
        """Steps that the surviving history leaves out."""
        told = self.fault_free_curve.step if self.fault_free_curve else None
        return losses.missing(self.curve, told, self.run.stride, self.run.steps_before)

    @cached_property
    def places(self) -> Places:
        return Places(self.run)

    @cached_property
    def work(self) -> Work:
        return Work(self.run)

    @cached_property
    def planned_faults(self) -> Mapping[str, Mapping[str, Any]]:
        """By their ids."""
        return {str(fault["id"]): fault for fault in self.run.plan.get("faults") or ()}

    @cached_property
    def ends(self) -> Sequence[End]:
        """Of all commands and workers, also those that ended well."""
        return deaths.ends_of(self.run)

    @cached_property
    def deaths_unexplained(self) -> Sequence[End]:
        return list(deaths.unexplained(self.run, self.ends))

    @cached_property
    def last_notices(self) -> Mapping[str, int]:
        """When each node was given its last one by somebody; others are the trainer's word alone."""
        return {each["node"]: each["at"] for each in sorted(deaths.given(self.run), key=operator.itemgetter("at"))}

    @cached_property
    def saves(self) -> Saves:
        return Saves(self.run, self.fault_free_saves)

    @cached_property
    def fault_free_saves(self) -> Saves | None:
        return Saves(self.fault_free) if self.fault_free else None

    @cached_property
    def restarts(self) -> Sequence[Restart]:
        """What each epoch began with; the first one is the start of the job."""
        return restarts.restarts(self.run, self.saves)

    def no_restart(self) -> str:
        """Why nothing follows of restarts; an empty text: there was one."""
        return "" if len(self.restarts) > 1 else "nothing restarted the job"

    def no_damage(self) -> str:
        """The same of damaged checkpoints."""
        compared = any(each.content and each.saved for restart in self.restarts[1:] for each in restart.restores)
        known = compared or any(self.saves.damage.values())
        return self.no_restart() or ("" if known else "no fault damaged a checkpoint")

    @cached_property
    def lost_lines(self) -> Sequence[Lost]:
        """What the logs of workers and launchers lack by the numbers of their lines, and what took it."""
        return list(lost_lines(self.run, self.taken, self.ends)) if self.run.lost > self.run.dropped else ()

    @cached_property
    def taken(self) -> Sequence[int]:
        """When a fault that kills took each process; -1: none did."""
        strikes: dict[tuple[object, object, object], list[int]] = {}  # by node, incarnation and rank
        for fault in self.run.faults:
            for target in fault.targets if fault.kills else ():
                place = target.get("node"), target.get("incarnation", 1), target.get("rank")
                strikes.setdefault(place, []).extend(fault.strikes)
        for moments in strikes.values():
            moments.sort()

        def first(process: Process) -> int:
            places = ((process.node, process.incarnation, rank) for rank in (None, process.rank))
            return min(first_from(strikes.get(place, ()), process.started) for place in places)

        return [-1 if (at := first(process)) == NEVER else at for process in self.run.processes]
