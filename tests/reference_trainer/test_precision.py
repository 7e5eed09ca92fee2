"""Number formats: what a loss scale does, and that it survives a restart."""

import math

import pytest
import torch
from torch import nn

from reference_trainer.precision import Precision

CPU = torch.device("cpu")


def trained(precision: Precision, steps: int, factor: float = 1.0) -> list[tuple[bool, float]]:
    """For each step whether the scale was still sought, and the sum of the weights after it."""
    torch.manual_seed(1)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    found = []
    for _ in range(steps):
        with precision.autocast():
            loss = model(torch.ones(4, 8)).float().pow(2).sum() * factor
        precision.backward(loss)
        precision.unscale(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        sought = precision.seeks_scale(norm)
        precision.step(optimizer)
        precision.step_done()
        optimizer.zero_grad()
        found.append((sought, sum(parameter.sum().item() for parameter in model.parameters())))
    return found


def test_a_scale_that_is_too_high_leaves_updates_out_until_it_fits() -> None:
    precision = Precision("fp16", CPU)
    found = trained(precision, 30)
    sought = [each for each, _ in found]
    assert sought[0] and not sought[-1] and sought == sorted(sought, reverse=True)
    weights = [weight for _, weight in found]
    assert len(set(weights[: sought.count(True)])) == 1 and all(map(math.isfinite, weights))
    assert precision.state()["scale"] < 65536
    infinite = [each for each, _ in trained(Precision("fp16", CPU), 40, factor=math.inf)]
    assert infinite[0] and not infinite[-1], "gradients that are infinite at any scale are no search"


@pytest.mark.parametrize("name", ["fp32", "bf16", "auto"])
def test_other_formats_have_no_scale(name: str) -> None:
    precision = Precision(name, CPU)
    found = trained(precision, 5)
    assert precision.state() == {} and not any(sought for sought, _ in found) and found[0] != found[-1]
    precision.restore({"scale": 1.0})
    assert precision.state() == {}


def test_the_scale_is_kept() -> None:
    one, other = Precision("fp16", CPU), Precision("fp16", CPU)
    trained(one, 30)
    other.restore(one.state())
    assert other.state() == one.state()
    other.restore({})
    assert other.state() == one.state(), "a checkpoint of another format says nothing of a scale"
