"""Sets the number format of forward and backward pass. Weights, gradients and optimizer state stay in fp32.

`bf16` has the range of fp32. In `fp16`, small gradients would become 0, so the loss is scaled up before the backward
pass, and the gradients are scaled down after it. If the loss scale is too high, gradients become infinite. If gradients
are infinite, the update is skipped and the loss scale is halved. Skipped updates are no anomaly, but the usual way to
find the right loss scale. A checkpoint stores the loss scale, because updates after a restart would differ without it.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

SCALE_MIN = 1.0  # gradients that are infinite at this scale are infinite without any


class Precision:
    def __init__(self, name: str, device: torch.device):
        name = ("bf16" if device.type == "cuda" else "fp32") if name == "auto" else name
        self._device = device.type
        self._dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name)
        self._scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device, self._dtype, enabled=self._dtype is not None)

    def backward(self, loss: Tensor) -> None:
        self._scaler.scale(loss).backward()

    def unscale(self, optimizer: Optimizer) -> None:
        """Scales the gradients down, after they are summed over all ranks and before anything reads them."""
        self._scaler.unscale_(optimizer)

    def seeks_scale(self, grad_norm: float) -> bool:
        return self._scaler.is_enabled() and not math.isfinite(grad_norm) and self._scaler.get_scale() > SCALE_MIN

    def step(self, optimizer: Optimizer) -> None:
        """Updates the weights. In `fp16`, skips the update if gradients are not finite."""
        self._scaler.step(optimizer)

    def step_done(self) -> None:
        """Updates the loss scale at the end of a step. Must run once in each step, even if the weights were not
        updated."""
        self._scaler.update()

    def state(self) -> dict[str, Any]:
        return dict(self._scaler.state_dict())

    def restore(self, state: dict[str, Any]) -> None:
        if state and self._scaler.is_enabled():
            self._scaler.load_state_dict(state)
