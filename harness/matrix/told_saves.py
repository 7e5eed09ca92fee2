"""What the log of a run tells of its saves: how many steps each holds, and whether it fell between two of them.

A save is named by the number in its name, and that may count anything: steps, micro-batches, passes over the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.timeline.save_events import COMMITTED
from harness.timeline.timeline import Timeline
from harness.trainers.checkpoints.shared.names import step_in

PARTS = 2  # of a path: the save's own name, and that of a file in it


@dataclass(frozen=True)
class ToldSaves:
    """By the number in a save's name: `steps` that it holds, and `micro_batches` of the next one that were done when it
    was begun, as far as the log tells them. `a_step`: how many of them a step takes; `None`: nobody tells."""

    steps: Mapping[int, int] = field(default_factory=dict)
    micro_batches: Mapping[int, int] = field(default_factory=dict)
    a_step: int | None = None

    def then(self, later: ToldSaves) -> ToldSaves:
        """What a later run of the job tells, and this one of the rest: one cut off may not tell its last save."""
        micro_batches = {**self.micro_batches, **later.micro_batches}
        return ToldSaves({**self.steps, **later.steps}, micro_batches, max(later.a_step or 0, self.a_step or 0) or None)

    def knows(self, save: int) -> bool:
        """Whether it is told how many steps it holds, or its number says so."""
        return save in self.steps or all(number == step for number, step in self.steps.items())

    def at(self, save: int) -> int:
        """Of the training; its own number where nothing else is told."""
        return self.steps.get(save, save)

    def within(self, save: int) -> int:
        """Micro-batches of an accumulation that it fell into the middle of; 0: it fell between two steps."""
        done = self.micro_batches.get(save, 0)
        return done if done < (self.a_step or 0) else 0

    def place(self, save: int) -> float:
        """Among the steps."""
        return self.at(save) + (0.5 if self.within(save) else 0)

    @property
    def by_micro_batch(self) -> bool:
        """Whether the numbers in their names count micro-batches."""
        a_step = self.a_step or 0
        return a_step > 1 and all(save == a_step * step + self.within(save) for save, step in self.steps.items())


def told_saves(run: Timeline) -> ToldSaves:
    steps, micro_batches, a_step = dict[int, int](), dict[int, int](), list[int]()
    for event in run.checkpoints:
        if event["event"] != COMMITTED:
            continue
        parts = str(event.get("path") or "").split("/")[-PARTS:]
        save = next((number for part in reversed(parts) if (number := step_in(part)) is not None), event["step"])
        steps[save] = event["step"]
        micro_batches[save] = max(micro_batches.get(save, 0), event.get("micro_batches") or 0)  # of any rank
        a_step += [event["micro_batches_a_step"]] if event.get("micro_batches_a_step") else []
    return ToldSaves(steps, micro_batches, max(a_step, default=None))
