"""Compares the run's last steps with the same steps of the second restart, which the harness makes after the run.

Repeated steps must equal the run's steps bit for bit if the run equals the fault-free run, in all steps or in enough
steps before the first fault. If the run differs from its fault-free run, repeated steps may differ from the run by 3
times this difference.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from harness.evidence import losses, ranks
from harness.evidence.losses import CURVES, WORDS
from harness.judge.facts import tellers
from harness.judge.facts.after_the_run import Made, second_restart, tensors
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.known import Odd
from harness.judge.thresholds import DRILL_FACTOR
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import Floats, Timeline
from harness.units import counted

NO_BOUND = "the scenario sets no bound on what each step computes"


class DoneAgain:
    def __init__(self, evidence: Analysis, made: Made, log: Timeline):
        self._evidence, self.made, self.log, usual = evidence, made, log, evidence.fault_free
        self.reached = int(log.steps.step.max(initial=0))  # the last step of any rank: lines of others may be lost
        self.compared = losses.compare(evidence.curve, losses.surviving(log.steps, evidence.of_all))
        self._bounds: Any = (evidence.run.plan.get("expect") or {}).get("loss_continuity")
        unplanned = usual is not None and usual.planned_steps is None
        self.went_on = unplanned and self.reached > evidence.run.reached_step
        as_usual = usual is not None and usual.reached_step == evidence.run.reached_step
        self.ends_there = as_usual and self.compared.identical  # a job that a time limit ends may go on

    @cached_property
    def not_compared(self) -> str:
        """Returns why values of the second restart and of the run are not compared, or an empty text if they are."""
        run, disturbed, step = self._evidence.run, self._evidence.disturbed, self.made.step
        begun = run.steps.begin[run.steps.survives & (run.steps.step > step)]
        elsewhere = any(each.restored_step not in (None, step) for each in self.log.processes)
        if elsewhere or self.reached < run.reached_step or self.went_on:
            return "it did not do the run's last steps"
        if not isinstance(self._bounds, Mapping):
            return NO_BOUND
        if len(run.epochs) < 2:
            return "nothing in this run restarted the job, so that restarts change nothing is not asked"
        if not len(self.compared.step):
            return "it tells no step that the run told, too"
        if run.epochs[-1].size != self.log.largest_world:
            return f"the run ended with {run.epochs[-1].size} ranks, and it had {self.log.largest_world}"
        struck = len(begun) and disturbed and disturbed[-1][1] > int(begun.min())
        return self._evidence.incomparable or (f"a fault was at work after step {step}" if struck else "")

    @cached_property
    def repeats(self) -> bool:
        """Returns True if the second restart must equal the run because the run equals its fault-free run exactly."""
        usual, run = self._evidence.comparison, self._evidence.run
        if self.not_compared or usual is None:
            return False
        before = run.steps.survives & (run.steps.end < min(first_strike(run.faults), run.end))
        last = int(run.steps.step[before].max(initial=0))
        as_many = int(np.sum(usual.step <= last)) >= len(self.compared.step)
        return usual.identical or (as_many and (usual.first_divergent_step or NEVER) > last)

    @property
    def saves_not_compared(self) -> str:
        """Returns why the tensors in the saves of the second restart and of the run are not compared, or an empty
        text."""
        both = tensors(self._evidence.run).keys() & tensors(self.log).keys()
        unseen = "" if max(both, default=0) > self.made.step else "the tensors of the same save were not seen in both"
        return unseen if self.repeats else "a repeat of the run need not equal it bit for bit"

    @property
    def unbound(self) -> bool:
        """Returns True if no limit applies to the second restart's losses. Learning rates are always compared."""
        return not self.not_compared and self._bounds.get("mode") == "final" and not self.repeats

    @property
    def bounds_samples(self) -> bool:
        if self.not_compared or self._bounds.get("samples") == "reported":
            return False
        return not any(self._bounds.get(f"max_samples_{free}") for free in ("repeated", "skipped"))

    @property
    def _curves(self) -> tuple[str, ...]:
        return () if self.not_compared else ("lr",) if self.unbound else CURVES

    def told_alone(self) -> Iterator[str]:
        for name in self._curves:
            if steps := len(self.compared.alone(name)):
                yield f"{counted(steps, 'step')} at which only it, or only the run, tells the {WORDS[name]}"

    def off(self) -> Iterator[Odd]:
        """Yields, for each quantity such as loss, the first step at which second restart and run differ too much."""
        found = []
        for name in self._curves:
            mine, other = getattr(self.compared.run, name), getattr(self.compared.fault_free, name)
            off = np.isfinite(mine) & (losses.distance(mine, other) > self._band(name, mine))
            found += [(int(self.compared.step[row]), name, mine[row], other[row]) for row in np.flatnonzero(off)[:1]]
        for step, name, value, its in sorted(found):
            text = f"at step {step} its {WORDS[name]} is {its:.9g}, and the run's was {value:.9g}"
            yield Odd(text, tellers.figure_again(self.repeats, name))

    def _band(self, name: str, mine: Floats) -> Floats | float:
        usual = self._evidence.comparison
        if self.repeats or usual is None:
            return 0.0
        apart = usual.apart(name)[np.isin(usual.step, self.compared.step)]
        most = float(apart.max(initial=0.0, where=np.isfinite(apart)))
        return np.maximum(DRILL_FACTOR * most, losses.rounding(mine, losses.terms(self._evidence.run)))

    def of_ranks(self, names: Mapping[str, str]) -> Iterator[str]:
        """Yields for each column in `names` a text on the first value that differs between second restart and run."""
        for name, words in names.items():
            rows, same = ranks.beside(self.log.steps, self._evidence.run.steps, name)
            for row in rows[~same][:1]:
                step, rank = self.log.steps.step[row], self.log.steps.rank[row]
                yield f"at step {step} the {words} of rank {rank} differs from the run's"


def done_again(evidence: Analysis) -> DoneAgain | None:
    """Returns the comparison of the run with its second restart, or `None` if the second restart did not complete."""
    made = second_restart(evidence)
    return None if made.done is None else DoneAgain(evidence, made, made.done)


def not_done(evidence: Analysis) -> str:
    """Returns why the run's last steps were not compared with a second restart, or else an empty text."""
    again = done_again(evidence)
    return again.not_compared if again else second_restart(evidence).silent
