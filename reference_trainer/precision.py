"""The number format of forward and backward pass. Weights, gradients and the optimizer's state stay in fp32.

`bf16` has the range of fp32. `fp16` has not: small gradients would become 0, so the loss is scaled up before the
backward pass and the gradients are scaled down after it. A scale that is too high makes gradients infinite; then the
update is left out and the scale is halved. That is the usual way to find the scale, and no anomaly. What the scaler has
found is part of a checkpoint: without it the updates after a restart would be other ones.
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
    """`name`: `bf16`, `fp16`, `fp32`, or `auto`: bf16 on a GPU and fp32 elsewhere."""

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
        """To be called once all gradients are summed, before anybody looks at them."""
        self._scaler.unscale_(optimizer)

    def seeks_scale(self, grad_norm: float) -> bool:
        """Whether gradients are not finite because the scale is still too high."""
        return self._scaler.is_enabled() and not math.isfinite(grad_norm) and self._scaler.get_scale() > SCALE_MIN

    def step(self, optimizer: Optimizer) -> None:
        """Updates the weights, unless the gradients are not finite."""
        self._scaler.step(optimizer)

    def step_done(self) -> None:
        """To be called once a step, with or without an update."""
        self._scaler.update()

    def state(self) -> dict[str, Any]:
        """Plain numbers; nothing for a format that has no scale."""
        return dict(self._scaler.state_dict())

    def restore(self, state: dict[str, Any]) -> None:
        """A checkpoint of another format holds no scale; then this one starts as usual."""
        if state and self._scaler.is_enabled():
            self._scaler.load_state_dict(state)
