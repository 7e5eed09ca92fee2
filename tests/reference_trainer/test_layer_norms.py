"""Norms by layer: those of the gradient before it was clipped, told only when asked for or when the loss spikes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from harness.node.emitter import Emitter
from reference_trainer.layers import LayerNorms, layer_of, norms
from reference_trainer.model import Shape, build_model, loss_per_sequence


class Told(Emitter):
    def __init__(self) -> None:
        super().__init__(None)
        self.events: list[dict[str, Any]] = []

    def __call__(self, event: str, **fields: Any) -> int:
        self.events.append({"event": event} | fields)
        return 0


def trained() -> nn.Module:
    model = build_model(Shape(layers=2, heads=2, width=16, context=8, dropout=0.0), 1)
    model.zero_grad()
    tokens = torch.arange(16).reshape(2, 8)
    loss_per_sequence(model(tokens), tokens).sum().backward()
    return model


def test_the_layers_add_up_to_the_whole() -> None:
    model = trained()
    whole = torch.nn.utils.get_total_norm([each.grad for each in model.parameters() if each.grad is not None]).item()
    found = norms(model)
    assert sorted(found) == sorted({layer_of(name) for name, _ in model.named_parameters()})
    assert "blocks.0" in found and "blocks.1" in found
    assert sum(gradient**2 for gradient, _ in found.values()) ** 0.5 == pytest.approx(whole, rel=1e-5)


def test_what_was_clipped_is_told_as_it_was() -> None:
    model, told = trained(), Told()
    before = {layer: gradient for layer, (gradient, _) in norms(model).items()}
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01).item()
    LayerNorms(model, told, 1, clip=0.01).step_done(1, norm, spikes=False)
    assert {each["name"]: each["gradient"] for each in told.events[0]["layers"]} == pytest.approx(before, rel=1e-3)


@pytest.mark.parametrize("every, spikes, steps", [(0, False, []), (0, True, [1, 2, 3, 4]), (2, False, [2, 4])])
def test_it_is_told_when_asked_for_or_at_a_spike(every: int, spikes: bool, steps: list[int]) -> None:
    model, told = trained(), Told()
    for step in range(1, 5):
        LayerNorms(model, told, every, clip=1.0).step_done(step, 0.5, spikes)
    assert [event["step"] for event in told.events] == steps


@pytest.mark.parametrize("norm", [float("nan"), float("inf")])
def test_a_gradient_that_is_no_number_is_told_as_it_is(norm: float) -> None:
    model, told = trained(), Told()
    LayerNorms(model, told, 0, clip=1.0).step_done(1, norm, spikes=True)
    assert len(told.events) == 1
