"""Observes Lightning's `Trainer`: when a checkpoint is begun and complete, and from which step training continues."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from harness.node.observer import checkpointing
from harness.node.observer.checkpointing import path_of
from harness.node.observer.watch import Watch
from harness.node.observer.wrapping import around

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
AFTER = tuple(f"{package}.trainer.trainer" for package in PACKAGES)


def install(watch: Watch, module: ModuleType) -> None:
    state, guard = checkpointing.of(watch), watch.guard("lightning")
    package = module.__name__.removesuffix(".trainer.trainer")

    @guard
    def began(trainer: Any) -> None:
        if len(trainer.optimizers) == 1:  # it adds up the steps of all of them
            state.restores.framework_step = int(trainer.global_step)

    def add(trainer: Any, _: Any) -> None:
        base = sys.modules[f"{package}.callbacks"].Callback

        class Observed(base):  # type: ignore[misc, valid-type]
            def on_train_start(self, trainer: Any, module: Any) -> None:
                began(trainer)

        trainer.callbacks.append(Observed())

    def saving(trainer: Any, filepath: Any = None, *_: Any, **__: Any) -> Any:
        path = path_of(filepath)
        return (state.saves.begin_known(path), path) if path and trainer.is_global_zero else None

    saved = guard(lambda token, _: state.saves.whole(*token))
    not_saved = guard(lambda token, error: state.saves.failed(token[0], error))
    around(module.Trainer, "__init__", guard(lambda trainer, *_, **__: trainer), guard(add))
    around(module.Trainer, "save_checkpoint", guard(saving), saved, not_saved)
