"""The fault out_of_memory: what it makes of a trainer's answer."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from harness.errors import FaultError
from harness.faults.contract import Target, build_fault
from harness.faults.shared import orders

TARGETS = [Target(0, 0)]


class Context:
    """`answer`: what the trainer says that it did; `None`: it has no hook."""

    def __init__(self, run_dir: pathlib.Path, answer: dict[str, Any] | None):
        self.run_dir, self.seed, self.answer = run_dir, 7, answer
        self.effects: list[tuple[float, bool]] = []
        self.ends: list[tuple[float, bool]] = []
        orders.environment(run_dir)

    def wait(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        for file in (self.run_dir / orders.FOLDER).glob("*.json"):
            assert json.loads(file.read_text()) == {"rank": 0, "kind": "out_of_memory", "fits": 3}
            if self.answer:
                done = self.run_dir / orders.ANSWERS / "node0" / f"{file.stem}.done"
                done.parent.mkdir(parents=True, exist_ok=True)
                done.write_text(json.dumps(self.answer))
        return until is not None and until()

    def injected(self) -> None: ...

    def effect(self, measured: float, expected: float, unit: str, ok: bool, detail: str = "") -> None:
        self.effects.append((measured, ok))

    def ended(self, measured: float, expected: float, unit: str, ok: bool, detail: str = "") -> None:
        self.ends.append((measured, ok))


@pytest.mark.parametrize(("changed", "ok"), [(5, True), (0, False)])
def test_it_acted_only_where_a_piece_was_too_large(tmp_path: pathlib.Path, changed: int, ok: bool) -> None:
    context: Any = Context(tmp_path, {"step": 9, "changed": changed})
    fault = build_fault("out_of_memory", {"fits": 3})
    fault.inject(TARGETS, context)
    fault.see_end(TARGETS, context)
    fault.heal(TARGETS, context)
    fault.see_end(TARGETS, context)
    assert context.effects == [(changed, ok)]
    assert context.ends == [(1, False), (0, True)], "the order stays until it is withdrawn"


def test_a_trainer_without_the_hook_is_an_error(tmp_path: pathlib.Path) -> None:
    context: Any = Context(tmp_path, None)
    with pytest.raises(FaultError, match="no hook for damage"):
        build_fault("out_of_memory", {"fits": 3}).inject(TARGETS, context)
