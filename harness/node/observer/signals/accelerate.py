"""Observes when accelerate's `save_state` has completed a checkpoint folder."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from harness.node.observer import checkpointing
from harness.node.observer.checkpointing import path_of
from harness.node.observer.watch import Watch
from harness.node.observer.wrapping import around

AFTER = "accelerate.accelerator"


def install(watch: Watch, module: ModuleType) -> None:
    state, guard = checkpointing.of(watch), watch.guard("accelerate")

    def saved(_: Any, folder: Any) -> None:
        path = path_of(folder)
        if path is not None:
            state.saves.commit(path)

    around(module.Accelerator, "save_state", guard(lambda accelerator, *_, **__: accelerator), guard(saved))
