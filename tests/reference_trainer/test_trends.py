"""What the trainer says when training goes on, but not as it should; and its norms by layer."""

import math

import pytest
import torch
from told import Told
from torch import nn

from harness.node.emitter import abnormal
from reference_trainer.layers import LayerNorms, layer_of, norms
from reference_trainer.model import Shape, build_model, loss_per_sequence
from reference_trainer.rhythm import Rhythm
from reference_trainer.trends import Trends

SECOND = 10**9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("reference_trainer.trends.time.monotonic_ns", lambda: int(now[0] * SECOND))
    monkeypatch.setattr("reference_trainer.rhythm.time.monotonic", lambda: now[0])
    return now


def train(trends: Trends, clock: list[float], steps: range, committed: int = -1, **odd: float) -> None:
    for step in steps:
        clock[0] += 1
        loss, norm = odd.get("loss", 5.0 * 0.99**step), odd.get("grad_norm", 1.0)
        trends.step_done(step, loss, norm, SECOND, int(odd.get("waited", 0) * SECOND), committed)


def test_a_healthy_training_is_silent(clock: list[float]) -> None:
    told = Told()
    trends = Trends(told, 0, Rhythm(20, 0))
    for begin in range(0, 400, 20):
        train(trends, clock, range(begin + 1, begin + 21), committed=begin)
    assert told.events == []


def test_a_late_checkpoint_is_told_once_until_there_is_one(clock: list[float]) -> None:
    told = Told()
    trends = Trends(told, 0, Rhythm(20, 0))
    train(trends, clock, range(11, 90))  # none was there at the start
    assert told.kinds() == [(51, abnormal.CHECKPOINT_LATE)]
    train(trends, clock, range(90, 140), committed=90)
    assert told.kinds()[1:] == [(131, abnormal.CHECKPOINT_LATE)]
    timed = Told()
    train(Trends(timed, 0, Rhythm(1, 30)), clock, range(1, 64))
    assert timed.kinds() == [(62, abnormal.CHECKPOINT_LATE)], "where time counts, steps do not"


def test_each_rule_speaks_in_words(clock: list[float]) -> None:
    told = Told()
    trends = Trends(told, 0, Rhythm(1000, 0))
    train(trends, clock, range(1, 150), loss=5.0)
    train(trends, clock, range(150, 151), loss=5.0, grad_norm=11.0)
    train(trends, clock, range(151, 201), waited=0.5)
    assert told.kinds() == [(150, "gradient"), (150, "stagnation"), (200, "data_wait")]
    assert all(f"at step {event['at_step']}" in event["detail"] for event in told.events)


@pytest.mark.parametrize(("every_steps", "every_s", "due"), [(3, 0, [3, 6, 9]), (3, 4, [4, 8])])
def test_when_a_checkpoint_is_due(every_steps: int, every_s: float, due: list[int], clock: list[float]) -> None:
    rhythm, found = Rhythm(every_steps, every_s), []
    for step in range(1, 10):
        clock[0] += 1
        if rhythm.due(step, rhythm.time_is_up()):
            rhythm.saved()
            found.append(step)
    assert found == due


def trained() -> nn.Module:
    model = build_model(Shape(layers=2, heads=2, width=16, context=8, dropout=0.0), 1)
    model.zero_grad()
    tokens = torch.arange(16).reshape(2, 8)
    loss_per_sequence(model(tokens), tokens).sum().backward()
    return model


def test_the_layers_add_up_to_the_whole_and_are_told_as_they_were_before_they_were_clipped() -> None:
    model, told = trained(), Told()
    whole = torch.nn.utils.get_total_norm([each.grad for each in model.parameters() if each.grad is not None]).item()
    found = norms(model)
    assert sorted(found) == sorted({layer_of(name) for name, _ in model.named_parameters()})
    assert "blocks.0" in found and "blocks.1" in found
    assert sum(gradient**2 for gradient, _ in found.values()) ** 0.5 == pytest.approx(whole, rel=1e-5)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01).item()
    LayerNorms(model, told, 1, clip=0.01).step_done(1, norm, spikes=False)
    before = {layer: gradient for layer, (gradient, _) in found.items()}
    assert {each["name"]: each["gradient"] for each in told.events[0]["layers"]} == pytest.approx(before, rel=1e-3)


@pytest.mark.parametrize("every, spikes, steps", [(0, False, []), (0, True, [1, 2, 3, 4]), (2, False, [2, 4])])
@pytest.mark.parametrize("norm", [0.5, math.nan, math.inf])
def test_it_is_told_when_asked_for_or_at_a_spike(every: int, spikes: bool, steps: list[int], norm: float) -> None:
    model, told = trained(), Told()
    for step in range(1, 5):
        LayerNorms(model, told, every, clip=1.0).step_done(step, norm, spikes)
    assert [event["step"] for event in told.events] == steps
