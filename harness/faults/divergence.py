"""The training diverges: by a learning rate that is far too large, an exploding gradient, or poisoned batches."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from harness.errors import FaultError
from harness.faults.contract import END_SEEN_WITHIN_S, Context, Figures, Targets, name_ranks, ranks_of
from harness.faults.shared import orders
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.emitter import abnormal

BEFORE_STEPS = 20  # whose median is the usual
TOLD_WITHIN_S = 60.0
PASSED_WITHIN_S = 600.0  # a job that goes back may do the steps again
RATE_TOLERANCE = 0.1
NORM_PART, NORM_LEAST = 0.2, 3.0  # a gradient norm is another one in each step: so much of `factor`, and this at least

Name = Literal["loss", "grad_norm", "lr"]
TOLD_BY: Mapping[str, Name] = {"learning_rate": "lr", "gradient": "grad_norm", "batches": "loss"}
WORDS: Mapping[Name, str] = {"loss": "loss", "grad_norm": "gradient norm", "lr": "learning rate"}


class Divergence(orders.OrderedFault):
    """For some steps, multiplies the learning rate or the gradient by `factor`, or fills the batches with noise. A
    trainer that rolls back meets the same noisy batches again. Needs a trainer that carries out orders from the folder
    `CHAOS_DAMAGE`, as the reference trainer does."""

    kind: Literal["learning_rate", "gradient", "batches"] = Field("batches", description="What goes wrong.")
    factor: float = Field(100.0, gt=1, le=1e12, description="Times the usual; batches have none.")
    steps: int = Field(4, ge=1, le=1000, description="For so many steps; with `kind: gradient`, 1 is one explosion.")

    runbook = "F5"
    may = frozenset({May.STOP, May.DIVERGE})
    truth = Truth((Kind.BAD_DATA, Kind.CORRUPTION), Place.JOB, (Decision.ROLL_BACK,))
    _first: int = PrivateAttr(0)  # the step at which it begins to act
    _usual: dict[int, float] = PrivateAttr(default_factory=dict)  # by rank, before that

    def spoilt_steps(self) -> int:
        return self.steps

    def describe(self, targets: Targets) -> str:
        during = f"{'one step' if self.steps == 1 else f'{self.steps} steps'} on {name_ranks(targets)}"
        if self.kind == "batches":
            return f"the batches of {during} are noise"
        return f"the {self.kind.replace('_', ' ')} is {self.factor:g} times the usual for {during}"

    def inject(self, targets: Targets, context: Context) -> None:
        ranks = sorted(ranks_of(targets))
        # Ranks with different learning rates would have different weights, which is another fault.
        world = {rank for node in context.cluster.nodes for rank in context.ranks_on(node)}
        if self.kind == "learning_rate" and world - set(ranks):
            raise FaultError(f"a learning rate is that of all ranks: target {{rank: all}}, not ranks {ranks}")
        self._usual = {rank: usual(context.figures(rank), self._name) for rank in ranks}
        self._first = orders.step_ahead(context, ranks)
        kind = {"gradient": "gradient_factor"}.get(self.kind, self.kind)
        order: dict[str, Any] = {"kind": kind, "factor": self.factor, "from_step": self._first, "steps": self.steps}
        within_s = TOLD_WITHIN_S + 10 * orders.usual_step_s(context, ranks[0])
        answers = orders.order_each(context, ranks, within_s, **order)
        if late := [rank for rank, answer in answers.items() if answer["changed"] != 1]:
            raise FaultError(f"the order for step {self._first} reached rank {late[0]} too late: it did not act there")
        for rank in ranks:
            self._measure(rank, ranks, context)
        last = self._first + self.steps - 1
        context.wait(PASSED_WITHIN_S, until=lambda: all(orders.newest_step(context, [r]) > last for r in ranks))

    @property
    def _name(self) -> Name:
        return TOLD_BY[self.kind]

    def _measure(self, rank: int, ranks: Sequence[int], context: Context) -> None:
        if not context.wait(TOLD_WITHIN_S, until=lambda: self._told(rank, context) is not None):
            raise FaultError(f"rank {rank} did not tell step {self._first} within {TOLD_WITHIN_S:g} s")
        told, least = self._told(rank, context) or 0.0, self._least(len(ranks), context)
        before = list(itertools.takewhile(lambda each: each.step < self._first, context.figures(rank)))
        self._usual[rank] = usual(before, self._name) if before else self._usual[rank]
        ratio = told / self._usual[rank]
        ok = not math.isfinite(ratio) or ratio >= least
        if self.kind == "learning_rate":
            ok = abs(ratio / self.factor - 1) <= RATE_TOLERANCE
        detail = f"rank {rank}, step {self._first}: {self._usual[rank]:.4g} → {told:.4g}"
        context.effect(_shown(ratio, self.factor), round(least, 3), self._unit, ok=ok, detail=detail)

    def _told(self, rank: int, context: Context) -> float | None:
        return next((getattr(each, self._name) for each in context.figures(rank) if each.step == self._first), None)

    def _least(self, ranks: int, context: Context) -> float:
        world = len({rank for node in context.cluster.nodes for rank in context.ranks_on(node)}) or ranks
        if self.kind == "batches":
            return 1 + abnormal.SPIKE_LOSS_EXCESS * ranks / world
        return self.factor if self.kind == "learning_rate" else max(NORM_LEAST, NORM_PART * self.factor * ranks / world)

    def see_end(self, targets: Targets, context: Context) -> None:
        if self.kind == "batches":
            return super().see_end(targets, context)
        limit = (1 + self.factor) / 2
        for rank, before in self._usual.items():
            seen = context.figures(rank)[-1]
            context.wait(END_SEEN_WITHIN_S / 2, until=lambda: context.figures(rank)[-1] is not seen)  # noqa: B023
            ratio = getattr(context.figures(rank)[-1], self._name) / before
            context.ended(_shown(ratio, self.factor), 1, self._unit, ok=ratio < limit, detail=f"rank {rank}")

    @property
    def _unit(self) -> str:
        return f"times the usual {WORDS[self._name]}"


def _shown(ratio: float, otherwise: float) -> float:
    return round(ratio, 3) if math.isfinite(ratio) else otherwise


def usual(figures: Sequence[Figures], name: Name) -> float:
    """Returns the median of a logged value over the latest steps or, for a learning rate, the latest value. Raises
    `FaultError` if the trainer did not log the value, or if the value is not above 0."""
    told = [value for each in figures if math.isfinite(value := getattr(each, name))][-BEFORE_STEPS:]
    found = (told[-1] if name == "lr" else statistics.median(told)) if told else 0.0
    if not found > 0:
        untold = f"the trainer told no {WORDS[name]} above 0 before the fault"
        raise FaultError(f"{untold}, so its effect could not be measured")
    return found


FAULT = Divergence
