"""Observes the loss: the argument of `backward`, summed over a step's micro-batches, without waiting for the GPU.

A loss on a GPU is cloned when `backward` begins. The copy of the loss to the host does not make the GPU wait. The step
is logged when its loss has arrived on the host.
"""

from __future__ import annotations

import collections
import functools
import weakref
from collections.abc import Iterator
from typing import Any

from harness.node.observer.watch import Arriving, Watch
from harness.node.observer.wrapping import around

AFTER = "torch.autograd"
TELLS = ("loss",)
SCALED_MAX = 64


def install(watch: Watch, module: Any) -> None:
    torch = watch.torch
    loss = Loss(watch, torch)
    _watch_backward(loss, watch, module)
    scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    around(scaler, "scale", lambda _, outputs: outputs, watch.guard("loss")(loss.scaled))
    watch.of_step(loss.of_step)
    watch.discarded = watch.guard("loss")(loss.of_step)


class Loss:
    def __init__(self, watch: Watch, torch: Any):
        self._watch, self._torch = watch, torch
        self._host: list[float] = []
        self._device: list[Any] = []
        self._scaled: collections.deque[tuple[Any, Any]] = collections.deque(maxlen=SCALED_MAX)

    def backward(self, tensors: Any, grad_tensors: Any) -> None:
        """Records a one-element tensor as loss. Calls with `grad_tensors` are ignored, because they are parts of a
        larger backward pass."""
        given = (tensors,) if isinstance(tensors, self._torch.Tensor) else tuple(tensors or ())
        gradients = grad_tensors if isinstance(grad_tensors, (list, tuple)) else (grad_tensors,)
        if any(each is not None for each in gradients):
            return
        for tensor in given:
            if tensor.numel() == 1 and not (self._watch.evaluates_again and (self._host or self._device)):
                # If gradient scaling made this tensor of another one, that one is the loss.
                plain = next((plain for scaled, plain in self._scaled if scaled() is tensor), tensor)
                self._add(plain.detach())

    def _add(self, value: Any) -> None:
        value = value.to_local() if hasattr(value, "to_local") else value
        if not value.is_cuda:
            self._host.append(float(value))
        elif not self._torch.cuda.is_current_stream_capturing():
            self._device.append(value.float().clone())

    def scaled(self, outputs: Any, result: Any) -> None:
        if isinstance(result, self._torch.Tensor) and result is not outputs:
            self._scaled.append((weakref.ref(result), outputs.detach()))

    def of_step(self) -> dict[str, Any] | None:
        host, device = self._host, self._device
        self._host, self._device = [], []
        self._scaled.clear()
        if device:
            return {"loss": Arriving(self._torch, device, sum(host))}
        return {"loss": sum(host)} if host else None


def _watch_backward(loss: Loss, watch: Watch, autograd: Any) -> None:
    backward = autograd.backward
    note = watch.guard("loss")(loss.backward)

    @functools.wraps(backward)
    def watched(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensors, Iterator):  # it can be read once
            tensors = tuple(tensors)
        if isinstance(grad_tensors, Iterator):
            grad_tensors = tuple(grad_tensors)
        note(tensors, grad_tensors)
        return backward(tensors, grad_tensors, *args, **kwargs)

    autograd.backward = watched
