"""Reads from a run's log how many steps were done before each save, and whether a save was made within a step.

Depending on the trainer, the number in the name of a save counts steps, micro-batches, or passes over the data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.timeline.save_events import COMMITTED
from harness.timeline.timeline import Timeline
from harness.trainers.checkpoints.shared.names import step_in, step_of
from harness.units import counted

PARTS = 2  # parts of a path that count: the save's own name, and that of a file in it


@dataclass(frozen=True)
class ToldSaves:
    """Facts from a run's log about each save, by the number in the save's name. `steps` holds how many steps the job
    did before each save. `micro_batches` holds how many micro-batches of an unfinished step the job had done before
    each save. `a_step` is the number of micro-batches in a step, or `None` if the log does not say."""

    steps: Mapping[int, int] = field(default_factory=dict)
    micro_batches: Mapping[int, int] = field(default_factory=dict)
    a_step: int | None = None

    def then(self, later: ToldSaves) -> ToldSaves:
        """Adds facts from the log of a later run. If both logs name the same save, the later log counts."""
        micro_batches = {**self.micro_batches, **later.micro_batches}
        return ToldSaves({**self.steps, **later.steps}, micro_batches, max(later.a_step or 0, self.a_step or 0) or None)

    def knows(self, save: int) -> bool:
        """Returns True if the step of a save is known, from the log or from the number in the save's name."""
        return save in self.steps or all(number == step for number, step in self.steps.items())

    def at(self, save: int) -> int:
        """Returns the logged step of the save `save`. If no log names the save, returns the number in the save's
        name."""
        return self.steps.get(save, save)

    def within(self, save: int) -> int:
        """Returns how many micro-batches of an unfinished step the job had done before the save `save`, or 0 if no step
        was unfinished."""
        done = self.micro_batches.get(save, 0)
        return done if done < (self.a_step or 0) else 0

    def place(self, save: int) -> float:
        """Returns the last whole step before the save, plus 0.5 if the save was made in the middle of the next step."""
        return self.at(save) + (0.5 if self.within(save) else 0)

    @property
    def by_micro_batch(self) -> bool:
        """Returns True if the numbers in the names of saves count micro-batches."""
        a_step = self.a_step or 0
        return a_step > 1 and all(save == a_step * step + self.within(save) for save, step in self.steps.items())


def told_saves(run: Timeline) -> ToldSaves:
    steps, micro_batches, a_step = dict[int, int](), dict[int, int](), list[int]()
    for event in run.checkpoints:
        if event["event"] != COMMITTED:
            continue
        parts = str(event.get("path") or "").split("/")[-PARTS:]
        named = next((part for part in reversed(parts) if step_in(part) is not None), "")
        save = step_of(named, event["step"]) or event["step"]
        steps[save] = event["step"]
        micro_batches[save] = max(micro_batches.get(save, 0), event.get("micro_batches") or 0)  # the most of any rank
        a_step += [event["micro_batches_a_step"]] if event.get("micro_batches_a_step") else []
    return ToldSaves(steps, micro_batches, max(a_step, default=None))


def none_found(told: int) -> str:
    which = "the harness found none that is whole and whose step it knows"
    return f"the trainer told of {counted(told, 'save')}; {which}" if told else ""
