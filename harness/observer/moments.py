"""Calls something once when training goes on: before the next forward pass of a module in training, or else before the
next step of an optimizer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

HIDDEN_STEP = "_init_optim_state"  # DCP steps an optimizer without gradients, to give it a state to load into
FRAMES = 12  # from the hook up to that function


class Next:
    """`callback` is called once after each `expect`, however often that was called."""

    def __init__(self, callback: Callable[[], None]):
        self._callback = callback
        self._expected = False
        self._forward: Any = None
        # Kept for good: removing it while the optimizer calls its hooks would be an error.
        sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook(self._before_step)

    def expect(self) -> None:
        self._expected = True
        if self._forward is None:
            modules = sys.modules["torch.nn.modules.module"]
            self._forward = modules.register_module_forward_pre_hook(self._before_forward)

    def now(self) -> None:
        """The moment has come, or nothing may come after this."""
        forward, self._forward = self._forward, None
        if forward is not None:
            forward.remove()
        expected, self._expected = self._expected, False
        if expected:
            self._callback()

    def _before_forward(self, module: Any, _: Any) -> None:
        if module.training and sys.modules["torch"].is_grad_enabled():
            self.now()

    def _before_step(self, *_: Any) -> None:
        if self._expected and not _called_by(HIDDEN_STEP):
            self.now()


def _called_by(name: str) -> bool:
    frame, left = sys._getframe(1), FRAMES
    while frame is not None and left:
        if frame.f_code.co_name == name:
            return True
        frame, left = frame.f_back, left - 1  # type: ignore[assignment]
    return False
