"""The context of a fault that is injected without a job: it keeps what the fault told."""

import pathlib
from collections.abc import Callable
from typing import Any, cast

from harness.faults.contract import Context


def means(context: object) -> Context:
    """What stands in for a context has what its fault uses; a fault that asks for more fails there."""
    return cast(Context, context)


class FaultContext:
    """Nothing ever waits. `effects` and `ends` are (measured, expected, unit, ok)."""

    def __init__(self, run_dir: pathlib.Path, seed: int = 7):
        self.run_dir, self.seed = run_dir, seed
        self.effects: list[tuple[float, float, str, bool]] = []
        self.ends: list[tuple[float, float, str, bool]] = []
        self.actions: list[str] = []  # what puts back what the fault did, and what it is given
        self.undos: list[dict[str, Any]] = []

    def wait(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        return until is None or until()

    def undo(self, action: str, **arguments: Any) -> None:
        self.actions.append(action)
        self.undos.append(arguments)

    def injected(self) -> None: ...

    def effect(self, measured: float, expected: float, unit: str, ok: bool, detail: str = "") -> None:
        self.effects.append((measured, expected, unit, ok))

    def ended(self, measured: float, expected: float, unit: str, ok: bool, detail: str = "") -> None:
        self.ends.append((measured, expected, unit, ok))
