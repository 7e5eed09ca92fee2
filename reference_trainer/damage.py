"""Injects faults into the training at the request of a test harness.

Without a folder in the environment variable `CHAOS_DAMAGE`, this module does nothing. The harness writes an order for a
fault to `$CHAOS_DAMAGE/<anything>.json`. An order has the fields `rank`, `kind` and `share` (0 to 1: the part of the
rank's samples). The kind `nan` makes a loss NaN, `fewer` removes samples from a batch, and `duplicate` repeats samples
in a batch. A rank carries out an order of these three kinds once, at its next step, and writes what it did to
`<anything>.done` in the folder `CHAOS_ANSWERS`.

An order of the kind `learning_rate`, `gradient_factor` or `batches` acts on `steps` steps from `from_step` on. An order
for several steps ends if training goes back to an earlier step. Batches that an order has poisoned stay poisoned until
the order's file is removed.

An order of the kind `pause` acts on `steps` steps: before each step, the rank pauses for `factor` seconds. The rank
declares the pause as a section with the name `section`, so that the watchdog does not take the pause for a hang.

As long as an order of the kind `out_of_memory` exists, the model raises an error for more than `fits` sequences at
once.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.events import Emitter
from reference_trainer.data import Loaded, Samples

FOLDER_ENV, ANSWERS_ENV = "CHAOS_DAMAGE", "CHAOS_ANSWERS"


@dataclass(frozen=True)
class Pause:
    section: str
    seconds: float


class Lasting:
    def __init__(self, order: dict[str, Any], struck_before: bool):
        self.kind, self.factor = order["kind"], order["factor"]
        self.section = order.get("section", "")
        self.steps = range(order["from_step"], order["from_step"] + order["steps"])
        self.poisoned: NDArray[np.int64] | None = None  # sample numbers
        self._last, self._over = 0, struck_before

    def acts(self, step: int) -> bool:
        self._over |= step <= self._last  # the training has gone back
        self._last = max(step, self._last)
        return step in self.steps and not self._over


class Damage:
    def __init__(
        self, folder: pathlib.Path, answers: pathlib.Path, rank: int, emit: Emitter, samples: Samples | None = None
    ):
        self._folder, self._answers, self._rank, self._emit = folder, answers, rank, emit
        self._samples = samples
        self._hooks: list[Any] = []
        self._skew: Callable[[Loaded], Loaded] | None = None
        self._lasting: dict[str, Lasting] = {}
        self.pauses: list[Pause] = []  # before this step

    @classmethod
    def on_request(cls, rank: int, emit: Emitter, samples: Samples | None = None) -> Damage | None:
        folder = os.environ.get(FOLDER_ENV)
        return cls(pathlib.Path(folder), pathlib.Path(os.environ[ANSWERS_ENV]), rank, emit, samples) if folder else None

    def before_step(self, step: int, model: nn.Module, optimizer: Optimizer | None = None) -> None:
        """Ends the faults of the previous step, and injects the faults that are ordered for this step."""
        self.pauses.clear()
        while self._hooks:
            self._hooks.pop().remove()
        there = sorted(self._folder.glob("*.json"))
        for name in self._lasting.keys() - {file.stem for file in there}:
            del self._lasting[name]
        for file in there:
            self._look_at(file, step, model)
        for name, each in self._lasting.items():
            if each.acts(step):
                self._upset(each, model, optimizer)
                if not (done := self._answers / f"{name}.done").exists():
                    self._report(done, step, changed=1, kind=each.kind)

    def _look_at(self, file: pathlib.Path, step: int, model: nn.Module) -> None:
        if file.stem in self._lasting:
            return
        with contextlib.suppress(FileNotFoundError):  # another rank's, which has taken it since the folder was listed
            order = json.loads(file.read_text())
            done = self._answers / f"{file.stem}.done"
            if order["rank"] != self._rank:
                return
            if "from_step" in order:
                self._lasting[file.stem] = self._begin(order, step, done)
            elif order["kind"] == "out_of_memory":
                self._hooks.append(model.register_forward_pre_hook(self._limit(order["fits"], step, done)))
            elif not done.exists():
                self._strike(order, step, model, done)

    def of_batch(self, loaded: Loaded) -> Loaded:
        skew, self._skew = self._skew, None
        loaded = skew(loaded) if skew else loaded
        targets = self.spoiled(loaded.indices, loaded.targets)
        return loaded if targets is loaded.targets else replace(loaded, targets=targets)

    def _begin(self, order: dict[str, Any], step: int, done: pathlib.Path) -> Lasting:
        late = step > order["from_step"]
        lasting = Lasting(order, struck_before=late)
        if late and not done.exists():
            self._report(done, step, changed=0)
        elif lasting.kind == "batches" and self._samples is not None:
            lasting.poisoned = np.concatenate([self._samples.batch(each).indices for each in lasting.steps])
        return lasting

    def _upset(self, order: Lasting, model: nn.Module, optimizer: Optimizer | None) -> None:
        if order.kind == "learning_rate" and optimizer is not None:
            for group in optimizer.param_groups:  # the schedule sets it anew for the next step
                group["lr"] *= order.factor
        elif order.kind == "pause":
            self.pauses.append(Pause(order.section, order.factor))
        elif order.kind == "gradient_factor":
            self._hooks += [each.register_hook(lambda grad: grad * order.factor) for each in model.parameters()]

    def spoiled(self, indices: NDArray[np.int64], targets: Tensor) -> Tensor:
        """Returns the targets (n, context) of samples (n,). The targets of a poisoned sample are noise, and the same
        sample always gets the same noise."""
        poisoned = [order.poisoned for order in self._lasting.values() if order.poisoned is not None]
        targets = targets.clone() if poisoned else targets  # the inputs share their memory
        for each in poisoned:
            for row in np.flatnonzero(np.isin(indices, each)):
                noise = np.random.default_rng(int(indices[row])).integers(0, 256, targets.shape[1])
                targets[row] = torch.from_numpy(noise).to(targets)
        return targets

    def _strike(self, order: dict[str, Any], step: int, model: nn.Module, done: pathlib.Path) -> None:
        if order["kind"] == "nan":
            self._hooks.append(model.register_forward_hook(lambda _, inputs, output: output * float("nan")))
            return self._report(done, step, changed=1, before=1.0, after=float("nan"), tensor="output")
        self._skew = lambda loaded: self._skewed(loaded, order, step, done)

    def _limit(self, fits: int, step: int, done: pathlib.Path) -> Callable[[nn.Module, Any], None]:
        def refuse(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            size = len(inputs[0])
            if not done.exists():
                over, of = max(0, size - fits), {"before": float(size), "after": float(fits)}
                self._report(done, step, changed=over, **of, tensor="batch")
            if size > fits:
                raise torch.OutOfMemoryError(f"rehearsed: {size} sequences in a piece, and memory for {fits}")

        return refuse

    def _skewed(self, loaded: Loaded, order: dict[str, Any], step: int, done: pathlib.Path) -> Loaded:
        count = len(loaded.indices)
        kept = max(1, count - round(order["share"] * count))
        rows = np.arange(kept) if order["kind"] == "fewer" else np.arange(count) % kept
        self._report(done, step, changed=count - kept, before=float(count), after=float(kept), tensor="batch")
        return replace(loaded, indices=loaded.indices[rows], inputs=loaded.inputs[rows], targets=loaded.targets[rows])

    def _report(self, done: pathlib.Path, step: int, **what: Any) -> None:
        what = {key: str(value) if isinstance(value, float) else value for key, value in what.items()}
        temporary = done.with_suffix(".part")
        temporary.write_text(json.dumps({"step": step, **what}))
        os.replace(temporary, done)
        self._emit("failpoint", name="damage", step=step, **what)
