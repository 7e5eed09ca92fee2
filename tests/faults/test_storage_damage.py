"""Damage the trainer does to itself on request, and shards of data damaged on the disk."""

import itertools
import json
import math
import pathlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import waiting
from faults.fault_context import means
from hypothesis import given
from hypothesis import strategies as st

from harness.api.testing import FaultContext
from harness.errors import FaultError
from harness.faults import data_corruption
from harness.faults.contract import Target, build_fault
from harness.faults.shared import orders
from harness.node.emitter import Emitter
from reference_trainer.damage import Damage, count_changed, find_element, flip_bit

ELEMENTS = 20


class Context(FaultContext):
    """`answered`: whether there is a trainer that will do as it is told."""

    def __init__(self, run_dir: pathlib.Path, answered: bool = False):
        super().__init__(run_dir)
        self.answered = answered
        self.during: list[dict[str, bytes]] = []

    def wait(self, seconds: float, until: Callable[[], bool] | None = None, meanwhile: object = None) -> bool:
        if until is None:
            self.during.append(shards(self.run_dir))
            return False
        return waiting.until(until, "the trainer's answer") if self.answered else until()


def shards(run_dir: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run_dir / "data").iterdir())}


@given(element=st.integers(0, ELEMENTS - 1), bit=st.integers(0, 31))
def test_exactly_one_bit_flips_and_flips_back(element: int, bit: int) -> None:
    tensor = torch.linspace(-2, 3, ELEMENTS).view(4, 5)
    flipped = flip_bit(tensor, element, bit)
    assert count_changed(tensor, flipped) == 1
    assert (tensor.flatten().view(torch.int32) != flipped.flatten().view(torch.int32)).nonzero().item() == element
    assert torch.equal(flip_bit(flipped, element, bit), tensor)


@given(place=st.floats(0, 1))
def test_every_place_is_an_element(place: float) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    name, parameter, element = find_element(model, place)
    assert dict(model.named_parameters())[name] is parameter and 0 <= element < parameter.numel()


def train(damage: Damage, steps: int) -> tuple[list[float], list[torch.Tensor]]:
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 3)
    losses, gradients = [], []
    for step in range(1, steps + 1):
        damage.before_step(step, model)
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        losses.append(loss.item())
        assert model.weight.grad is not None and model.bias.grad is not None
        gradients.append(torch.cat([model.weight.grad.flatten(), model.bias.grad]))
        model.zero_grad()
    return losses, gradients


def hook(run_dir: pathlib.Path, rank: int = 1) -> Damage:
    answers = run_dir / orders.ANSWERS / "node0"
    answers.mkdir(parents=True, exist_ok=True)
    return Damage(run_dir / orders.FOLDER, answers, rank, Emitter(None))


def write_order(run_dir: pathlib.Path, **what: Any) -> pathlib.Path:
    orders.environment(run_dir)
    file = run_dir / orders.FOLDER / "one.json"
    file.write_text(json.dumps(what))
    return run_dir / orders.ANSWERS / "node0" / "one.done"


def test_a_poisoned_batch_is_nan_once_and_only_on_its_rank(tmp_path: pathlib.Path) -> None:
    done = write_order(tmp_path, rank=1, kind="nan")
    (tmp_path / orders.FOLDER / "before.json").symlink_to("taken")  # another rank took it after it was listed
    assert all(map(math.isfinite, train(hook(tmp_path, rank=0), 3)[0])) and not done.exists()
    losses, _ = train(hook(tmp_path), 3)
    assert math.isnan(losses[0]) and all(map(math.isfinite, losses[1:]))
    assert json.loads(done.read_text())["step"] == 1


def test_a_gradient_bit_flips_once_and_a_weight_bit_stays(tmp_path: pathlib.Path) -> None:
    losses, clean = train(hook(tmp_path), 3)
    done = write_order(tmp_path, rank=1, kind="gradient", place=0.5, bit=29)
    struck = train(hook(tmp_path), 3)[1]
    assert count_changed(clean[0], struck[0]) == 1 and torch.equal(clean[1], struck[1])
    assert json.loads(done.read_text())["changed"] == 1
    (tmp_path / "weight").mkdir()
    write_order(tmp_path / "weight", rank=1, kind="weight", place=0.2, bit=30)
    assert all(a != b for a, b in zip(losses, train(hook(tmp_path / "weight"), 3)[0], strict=True))


@pytest.mark.parametrize(
    "name, parameters, unit",
    [("silent_data_corruption", {}, "bits flipped"), ("data_corruption", {"kind": "nan_batch"}, "batches poisoned")],
)
def test_the_fault_reports_what_the_trainer_did(
    tmp_path: pathlib.Path, name: str, parameters: dict[str, Any], unit: str
) -> None:
    fault, context = build_fault(name, parameters), Context(tmp_path, answered=True)
    assert "CHAOS_DAMAGE" in fault.environment(tmp_path)
    trainer, model = hook(tmp_path), torch.nn.Linear(4, 3)

    over = threading.Event()

    def steps() -> None:
        for step in itertools.count(1):
            trainer.before_step(step, model)
            model(torch.ones(2, 4)).sum().backward()
            if over.is_set():
                return
            time.sleep(0.002)

    thread = threading.Thread(target=steps, daemon=True)
    thread.start()
    fault.inject([Target(0, 1)], means(context))
    over.set()
    thread.join()
    assert context.effects == [(1, 1, unit, True)]


def test_a_trainer_without_the_hook_is_an_error_and_the_order_is_withdrawn(tmp_path: pathlib.Path) -> None:
    """It is over when no order is left."""
    fault, context = build_fault("silent_data_corruption", {}), Context(tmp_path)
    fault.environment(tmp_path)
    with pytest.raises(FaultError, match="CHAOS_DAMAGE"):
        fault.inject([Target(0, 1)], means(context))
    fault.heal([Target(0, 1)], means(context))
    assert list((tmp_path / orders.FOLDER).glob("*.json")) == []
    for each in (fault, build_fault("data_corruption", {"kind": "nan_batch"})):
        order, context.ends = tmp_path / orders.FOLDER / f"{context.seed:016x}-1.json", []
        each.see_end([Target(0, 1)], means(context))
        order.write_text("{}")
        each.see_end([Target(0, 1)], means(context))
        order.unlink()
        assert context.ends == [(0, 0, "orders left", True), (1, 0, "orders left", False)]


@pytest.mark.parametrize("kind", ["missing", "truncated", "garbage"])
def test_one_shard_is_damaged_for_a_while(tmp_path: pathlib.Path, kind: str) -> None:
    (tmp_path / "data").mkdir()
    for number in range(3):
        (tmp_path / "data" / f"shard-{number}").write_bytes(bytes([number + 1]) * 9000)
    before, context = shards(tmp_path), Context(tmp_path)
    fault: Any = build_fault("data_corruption", {"kind": kind})
    fault.inject([Target(0, 1)], context)
    (during,) = context.during
    assert sum(before[name] != during.get(name) for name in before) == 1
    assert context.effects == [(1, 1, "shards damaged", True)] and shards(tmp_path) == before
    fault.see_end([Target(0, 1)], context)
    (struck,) = (name for name in before if before[name] != during.get(name))
    (tmp_path / "data" / struck).write_bytes(b"still bad")
    fault.see_end([Target(0, 1)], context)
    assert context.ends == [(0, 0, "shards damaged", True), (1, 0, "shards damaged", False)]
    assert context.actions == ["faults.data_corruption"]
    (tmp_path / "data" / struck).write_bytes(before[struck])
    data_corruption.put_back(tmp_path, **context.undos[0])
    assert shards(tmp_path) == before
