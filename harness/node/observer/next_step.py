"""Calls a function once when training continues: before the next forward pass of a module in training mode, or else
before the next step of an optimizer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from harness.node.observer.watch import Watch


class Next:
    def __init__(self, watch: Watch, callback: Callable[[], None]):
        self._watch, self._callback = watch, callback
        self.steps_only = False  # a forward pass is too early: the state may still be replaced before the step
        self._expected = False
        self._forward: Any = None
        # Kept for good: removing it while the optimizer calls its hooks would be an error.
        sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook(self._before_step)

    def expect(self) -> None:
        """Requests that the function `callback` is called once, when training continues. Adds a forward hook only if
        the caller is the main thread."""
        self._expected = True
        if self._forward is None and threading.current_thread() is threading.main_thread():
            modules = sys.modules["torch.nn.modules.module"]
            self._forward = modules.register_module_forward_pre_hook(self._before_forward)

    def now(self) -> None:
        forward, self._forward = self._forward, None
        if forward is not None:
            forward.remove()
        expected, self._expected = self._expected, False
        if expected:
            self._callback()

    def _before_forward(self, module: Any, _: Any) -> None:
        if module.training and not self.steps_only and sys.modules["torch"].is_grad_enabled():
            self.now()

    def _before_step(self, *_: Any) -> None:
        if self._expected and not self._watch.quiet:
            self.now()
