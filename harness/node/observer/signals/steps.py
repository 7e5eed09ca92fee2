"""Observes training steps by hooks around every optimizer's `step`.

A training step is over when each optimizer has stepped once. If an optimizer steps again before all others have
stepped, as a GAN's discriminator may do, every optimizer step counts as a training step from then on. If one
optimizer's `step` calls another's, as in sharded optimizers, only the outer call counts. An update that gradient
scaling skips, because a gradient is infinite, counts as a step with `applied` false.
"""

from __future__ import annotations

import atexit
import weakref
from typing import Any

from harness.node.emitter import Moment
from harness.node.observer.watch import Watch, now
from harness.node.observer.wrapping import around

AFTER = "torch.optim.optimizer"
TELLS = ("steps",)


def install(watch: Watch, module: Any) -> None:
    torch = watch.torch
    steps = Steps(watch)
    begun = watch.guard("steps", steps.stop)(steps.begun)
    ended = watch.guard("steps", steps.stop)(steps.ended)
    steps.handles = [
        module.register_optimizer_step_pre_hook(begun),
        module.register_optimizer_step_post_hook(ended),
    ]
    # Every optimizer that is made, so that the first step is over when all have stepped.
    watch.when_optimizer_made(steps.made.add)
    around(module.Optimizer, "__init__", lambda optimizer, *_, **__: optimizer, watch.optimizer_made)
    around(module.Optimizer, "zero_grad", watch.guard("steps")(steps.cleared))
    atexit.register(watch.guard("steps")(steps.finish))
    scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    around(scaler, "step", watch.guard("steps")(steps.scaling), watch.guard("steps")(steps.scaled))


class Steps:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.handles: list[Any] = []
        self.made: weakref.WeakSet[Any] = weakref.WeakSet()
        self._inside: list[int] = []  # optimizers that step now, the outermost first
        self._nested: set[int] = set()
        self._done: dict[int, bool] = {}  # of this step: whether each optimizer's update was applied
        self._last: Moment = now()
        self.calls = 0  # of any optimizer's step

    def stop(self) -> None:
        for handle in self.handles:
            handle.remove()

    def begun(self, optimizer: Any, *_: Any) -> None:
        self.calls += 1
        if self._watch.quiet:
            return
        me = id(optimizer)
        if me in self._inside:  # it raised the last time: no optimizer steps within itself
            self._inside.clear()
        self._inside.append(me)
        if len(self._inside) > 1:
            self._nested.add(me)
            return
        self._again(me)
        if not self._done:
            _note_rate(self._watch, optimizer)
        self._watch.evaluates_again = type(optimizer).__name__ == "LBFGS"

    def ended(self, optimizer: Any, *_: Any) -> None:
        if self._watch.quiet or id(optimizer) not in self._inside:
            return
        del self._inside[self._inside.index(id(optimizer)) :]
        self._watch.evaluates_again = False
        if not self._inside:
            self.over(optimizer, applied=True)

    def over(self, optimizer: Any, applied: bool) -> None:
        if self._watch.step is None and not self._watch.each_alone:
            _offer(self._watch, optimizer, applied)
        self._watch.freeze()
        self._done[id(optimizer)] = applied
        self._last = now()
        expected = {id(each) for each in self.made} - self._nested
        if self._watch.each_alone or expected <= self._done.keys():
            self.close(self._last)

    def cleared(self, *_: Any, **__: Any) -> None:
        """Records that gradients were discarded unused, for example in a warm-up or for a skipped batch. With several
        optimizers nothing is recorded, because another optimizer's gradients may be kept."""
        if not self._watch.quiet and not self._inside and len({id(each) for each in self.made} - self._nested) == 1:
            self._watch.discarded()

    def _again(self, me: int) -> None:
        """Ends the current training step if an optimizer steps again before all other optimizers have stepped."""
        if me in self._done:
            self._watch.count_each_alone()
            self.close(self._last)

    def close(self, at: Moment) -> None:
        applied = any(self._done.values())
        self._done.clear()
        self._watch.stepped(at, applied)

    def finish(self) -> None:
        if self._done and not self._watch.in_child:
            self.close(self._last)

    def scaling(self, _: Any, optimizer: Any, *__: Any, **___: Any) -> tuple[Any, int]:
        return optimizer, self.calls

    def scaled(self, before: tuple[Any, int], _: Any) -> None:
        """Records that gradient scaling skipped an update, unless an optimizer stepped during the scaler's call."""
        optimizer, calls = before
        if self.calls > calls:
            return
        self._again(id(optimizer))
        if not self._done:
            _note_rate(self._watch, optimizer)
        self.over(optimizer, applied=False)


def _offer(watch: Watch, optimizer: Any, applied: bool) -> None:
    state = next(iter(optimizer.state.values()), None) if optimizer.state else None
    count = state.get("step") if isinstance(state, dict) else None
    if count is None or getattr(count, "is_cuda", False):
        return
    before = int(count) - applied
    if before > 0:
        watch.offer_step("optimizer", before)


def _note_rate(watch: Watch, optimizer: Any) -> None:
    """Records the learning rate of the first parameter group before a scheduler changes it."""
    groups = getattr(optimizer, "param_groups", None)
    rate = groups[0].get("lr") if groups else None
    if rate is not None and not getattr(rate, "is_cuda", False):
        watch.note(lr=float(rate))
