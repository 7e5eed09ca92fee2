"""Finds the trained state of this process: the parameters of its optimizers, and the optimizers' state."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from harness.node.observer.tensors import points, storage, tensors_in

COMPARED = 4096  # tensors of one object, where copies are looked for


class Live:
    def __init__(self) -> None:
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    def parameters(self) -> Iterator[Any]:
        for optimizer in list(self.optimizers):
            for group in optimizer.param_groups:
                yield from group["params"]

    def storages(self) -> set[int]:
        state = (tensor for optimizer in list(self.optimizers) for tensor in tensors_in(dict(optimizer.state)))
        return {name for tensor in (*self.parameters(), *state) if (name := storage(tensor)) is not None}

    def parts(self, held: set[int]) -> list[str]:
        model = {name for tensor in self.parameters() if (name := storage(tensor)) is not None}
        return [name for name, found in (("model", held & model), ("optimizer", held - model)) if found]

    def held_by(self, value: Any) -> set[int]:
        """Returns the ids of the trained tensor storages that an object holds. If the object holds only copies, returns
        the ids of the copied storages. A copy is recognised by comparing a few elements."""
        live = self.storages()
        if not live:
            return set()
        tensors = list(tensors_in(value))
        shared = live.intersection(name for each in tensors if (name := storage(each)) is not None)
        if shared:
            return shared
        mine = {known: name for each in self.parameters() if (known := points(each)) and (name := storage(each))}
        shapes = {(known[0], known[1]) for known in mine}
        alike = [each for each in tensors if (tuple(each.shape), str(each.dtype)) in shapes][:COMPARED]
        return {mine[known] for each in alike if (known := points(each)) in mine}

    def count(self) -> int | None:
        """Returns the largest step count in the optimizers' state, or `None` if no optimizer counts its steps."""
        states = (state for optimizer in list(self.optimizers) for state in list(optimizer.state.values()))
        steps = (state.get("step") for state in states if isinstance(state, dict))
        counts = (step for step in steps if step is not None and not isinstance(step, bool))
        return max((int(step.item() if hasattr(step, "item") else step) for step in counts), default=None)
