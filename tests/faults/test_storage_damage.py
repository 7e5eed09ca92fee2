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

from harness.api.testing import FaultContext
from harness.errors import FaultError
from harness.faults import data_corruption
from harness.faults.contract import Target, build_fault
from harness.faults.shared import orders
from harness.node.emitter import Emitter
from reference_trainer.damage import Damage


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


def train(damage: Damage, steps: int) -> list[float]:
    model, losses = torch.nn.Linear(4, 3), []
    for step in range(1, steps + 1):
        damage.before_step(step, model)
        losses.append(model(torch.ones(2, 4)).sum().item())
    return losses


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
    assert all(map(math.isfinite, train(hook(tmp_path, rank=0), 3))) and not done.exists()
    losses = train(hook(tmp_path), 3)
    assert math.isnan(losses[0]) and all(map(math.isfinite, losses[1:]))
    assert json.loads(done.read_text())["step"] == 1


NAN = {"kind": "nan_batch"}


def test_the_fault_reports_what_the_trainer_did(tmp_path: pathlib.Path) -> None:
    fault, context = build_fault("data_corruption", NAN), Context(tmp_path, answered=True)
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
    assert context.effects == [(1, 1, "batches poisoned", True)]


def test_a_trainer_without_the_hook_is_an_error_and_the_order_is_withdrawn(tmp_path: pathlib.Path) -> None:
    """It is over when no order is left."""
    fault, context = build_fault("data_corruption", NAN), Context(tmp_path)
    fault.environment(tmp_path)
    with pytest.raises(FaultError, match="CHAOS_DAMAGE"):
        fault.inject([Target(0, 1)], means(context))
    fault.heal([Target(0, 1)], means(context))
    assert list((tmp_path / orders.FOLDER).glob("*.json")) == []
    order, context.ends = tmp_path / orders.FOLDER / f"{context.seed:016x}-1.json", []
    fault.see_end([Target(0, 1)], means(context))
    order.write_text("{}")
    fault.see_end([Target(0, 1)], means(context))
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
