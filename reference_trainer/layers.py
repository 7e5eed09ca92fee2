"""Logs the norms of gradient and weights for each layer: when the loss spikes and, on request, at regular steps.

Gradients are summed over all ranks, so that one rank can log the norms for all ranks.
"""

from __future__ import annotations

import collections
import math

import torch
from torch import nn

from harness.events import Emitter


class LayerNorms:
    def __init__(self, model: nn.Module, emit: Emitter, every: int, clip: float):
        self._model, self._emit, self._every, self._clip = model, emit, every, clip

    def step_done(self, step: int, grad_norm: float, spikes: bool) -> None:
        """Logs the norms if this step is due or abnormal (`spikes`). Must run before the gradients are cleared.
        `grad_norm` is the norm of the whole gradient before clipping."""
        if not spikes and not (self._every and step % self._every == 0):
            return
        clipped = 1.0  # what is left of a gradient that is no number cannot be told
        if math.isfinite(grad_norm):
            clipped = min(1.0, self._clip / (grad_norm + 1e-6))  # as torch.nn.utils.clip_grad_norm_ has it
        layers = [
            {"name": name, "gradient": gradient / clipped, "weights": weights}
            for name, (gradient, weights) in norms(self._model).items()
        ]
        self._emit("layer_norms", step=step, layers=layers)


def norms(model: nn.Module) -> dict[str, tuple[float, float]]:
    """Maps each layer to the norms of its gradient and its weights."""
    tensors = [(layer_of(name), each) for name, each in model.named_parameters() if each.grad is not None]
    gradients = torch._foreach_norm([each.grad for _, each in tensors if each.grad is not None])
    weights = torch._foreach_norm([each.detach() for _, each in tensors])
    squares = torch.stack([torch.stack(list(gradients)), torch.stack(list(weights))]).double().square().cpu().tolist()
    sums: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for (layer, _), gradient, weight in zip(tensors, *squares, strict=True):
        sums[layer][0] += gradient
        sums[layer][1] += weight
    return {layer: (gradient**0.5, weight**0.5) for layer, (gradient, weight) in sums.items()}


def layer_of(parameter: str) -> str:
    """Returns the layer that holds a parameter: a direct submodule of the model, or a transformer block.

    >>> [layer_of(name) for name in ("token.weight", "blocks.3.attention.weight")]
    ['token', 'blocks.3']
    """
    parts = parameter.split(".")
    return ".".join(parts[:2]) if len(parts) > 1 and parts[1].isdigit() else parts[0]
