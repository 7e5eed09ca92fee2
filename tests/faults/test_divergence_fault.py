"""Faults that are an order to the trainer, divergence and out_of_memory: what is ordered, what is measured of it, and
what the reference trainer makes of it."""

import json
import pathlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.api.testing import FaultContext
from harness.errors import FaultError
from harness.faults.contract import Figures, Target, build_fault
from harness.faults.shared import orders
from harness.node.emitter import Emitter
from reference_trainer.damage import Damage
from reference_trainer.data import Corpus, Samples, Shard

BATCH = 4
TARGETS = [Target(0, 0)]


def samples() -> Samples:
    return Samples(Corpus((Shard(pathlib.Path("nowhere"), 0, 20000, ()),), "digest", "test"), 10, BATCH, seed=0)


class Training(FaultContext):
    """A trainer of one rank and the context of a fault in one: a step is done whenever the fault waits."""

    def __init__(self, run_dir: pathlib.Path, spiked: float = 50.0, ranks: int = 1, begin: int = 30):
        super().__init__(run_dir)
        self.spiked = spiked
        answers = run_dir / orders.ANSWERS / "node0"
        answers.mkdir(parents=True, exist_ok=True)
        (run_dir / orders.FOLDER).mkdir(parents=True, exist_ok=True)
        self.damage = Damage(run_dir / orders.FOLDER, answers, 0, Emitter(None), samples())
        self.model = torch.nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.told: list[Figures] = []
        self.cluster = SimpleNamespace(nodes=[SimpleNamespace()])
        self.ranks, self.step, self.lag = ranks, 0, 0
        for _ in range(begin):
            self.do_step()

    def do_step(self) -> None:
        self.step += 1
        self.optimizer.param_groups[0]["lr"] = 0.01
        self.damage.before_step(self.step, self.model, self.optimizer)
        batch = samples().batch(self.step)
        targets = torch.zeros(BATCH, 10, dtype=torch.int64)
        targets = self.damage.spoiled(batch.indices, targets)
        self.model(torch.ones(2, 4)).sum().backward()
        norm = float(
            torch.nn.utils.get_total_norm([each.grad for each in self.model.parameters() if each.grad is not None])
        )
        self.model.zero_grad()
        loss = self.spiked if targets.any() else 2.0
        self.told.append(Figures(self.step, loss, norm, self.optimizer.param_groups[0]["lr"]))

    def wait(self, seconds: float, until: Callable[[], bool] | None = None, meanwhile: object = None) -> bool:
        for _ in range(200):
            if until is None or until():
                return until is not None
            self.do_step()
        return False

    def figures(self, rank: int) -> list[Figures]:
        return self.told[: len(self.told) - self.lag]

    def ranks_on(self, node: Any) -> list[int]:
        return list(range(self.ranks))

    def step_times_ns(self, rank: int, since_ns: int = 0) -> list[int]:
        return [10**7] * len(self.told)


def rehearsed(training: Any, **parameters: Any) -> None:
    fault = build_fault("divergence", parameters)
    fault.inject(TARGETS, training)
    fault.heal(TARGETS, training)
    fault.see_end(TARGETS, training)


@pytest.mark.parametrize(
    "kind, column, least, unit",
    [
        ("learning_rate", "lr", 40, "times the usual learning rate"),
        ("gradient", "grad_norm", 8, "times the usual gradient norm"),
    ],
)
def test_so_many_steps_are_struck_and_then_no_more(
    tmp_path: pathlib.Path, kind: str, column: str, least: float, unit: str
) -> None:
    training = Training(tmp_path)
    rehearsed(training, kind=kind, factor=40, steps=3)
    usual = getattr(training.told[0], column)
    struck = [each.step for each in training.told if getattr(each, column) > 20 * usual]
    assert len(struck) == 3 and struck[-1] - struck[0] == 2
    assert [[*each] for each in training.effects] == [[pytest.approx(40, rel=1e-3), least, unit, True]]
    assert [[*each] for each in training.ends] == [[pytest.approx(1, rel=1e-3), 1, unit, True]]


def test_poisoned_samples_are_bad_whenever_they_come_while_the_order_is_there(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path)
    rehearsed(training, kind="batches", steps=4)
    poisoned = [each.step for each in training.told if each.loss > 2]
    assert len(poisoned) == 4
    assert training.effects == [(25.0, 1.3, "times the usual loss", True)]
    assert training.ends == [(0, 0, "orders left", True)]
    training.step = poisoned[0] - 1
    training.do_step()
    assert training.told[-1].loss == 2.0, "the order was withdrawn"
    training = Training(tmp_path / "hardly", spiked=2.1)
    rehearsed(training, kind="batches")
    assert training.effects == [(1.05, 1.3, "times the usual loss", False)], "without an effect it did not act"


def test_a_job_that_goes_back_meets_bad_data_again_but_no_second_spike(tmp_path: pathlib.Path) -> None:
    for kind, again in (("batches", True), ("learning_rate", False)):
        training = Training(tmp_path / kind)
        order = {"rank": 0, "kind": kind, "factor": 40, "from_step": 32, "steps": 9}
        (training.run_dir / orders.FOLDER / "one.json").write_text(json.dumps(order))
        for _ in range(5):
            training.do_step()
        training.step = 25
        for _ in range(20):
            training.do_step()
        later = training.told[35:]
        assert any(each.loss > 2 or each.lr > 0.1 for each in later) == again


def test_an_order_that_comes_too_late_is_not_carried_out(tmp_path: pathlib.Path) -> None:
    training = Training(tmp_path, begin=60)
    training.lag = 30  # the harness is far behind
    with pytest.raises(FaultError, match="reached rank 0 too late"):
        rehearsed(training, kind="learning_rate")
    assert all(each.lr < 0.1 for each in training.told)


def test_an_order_that_nobody_can_take_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FaultError, match=r"target {rank: all}, not ranks \[0\]"):
        rehearsed(Training(tmp_path, ranks=2), kind="learning_rate")
    untold = Training(tmp_path / "untold")
    untold.told = [each._replace(loss=float("nan")) for each in untold.told]
    with pytest.raises(FaultError, match="told no loss above 0"):
        rehearsed(untold, kind="batches")
    assert not list((tmp_path / "untold" / orders.FOLDER).iterdir()), "before anything is done"
    context: Any = Context(tmp_path, None)
    with pytest.raises(FaultError, match="no hook for damage"):
        build_fault("out_of_memory", {"fits": 3}).inject(TARGETS, context)


class Context(FaultContext):
    """`answer`: what the trainer says that it did; `None`: it has no hook."""

    def __init__(self, run_dir: pathlib.Path, answer: dict[str, Any] | None):
        super().__init__(run_dir)
        self.answer = answer
        orders.environment(run_dir)

    def wait(self, seconds: float, until: Callable[[], bool] | None = None, meanwhile: object = None) -> bool:
        for file in (self.run_dir / orders.FOLDER).glob("*.json"):
            assert json.loads(file.read_text()) == {"rank": 0, "kind": "out_of_memory", "fits": 3}
            if self.answer:
                done = self.run_dir / orders.ANSWERS / "node0" / f"{file.stem}.done"
                done.parent.mkdir(parents=True, exist_ok=True)
                done.write_text(json.dumps(self.answer))
        return until is not None and until()


@pytest.mark.parametrize(("changed", "ok"), [(5, True), (0, False)])
def test_it_acted_only_where_a_piece_was_too_large(tmp_path: pathlib.Path, changed: int, ok: bool) -> None:
    context: Any = Context(tmp_path, {"step": 9, "changed": changed})
    fault = build_fault("out_of_memory", {"fits": 3})
    fault.inject(TARGETS, context)
    fault.see_end(TARGETS, context)
    fault.heal(TARGETS, context)
    fault.see_end(TARGETS, context)
    assert context.effects == [(changed, 1, "sequences too many at least", ok)]
    assert context.ends == [(1, 0, "orders left", False), (0, 0, "orders left", True)], (
        "the order stays until it is withdrawn"
    )
