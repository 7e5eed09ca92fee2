"""Observes Hugging Face's `Trainer`: when a folder `checkpoint-N` is complete, and at which step training resumes."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from harness.node.observer import checkpointing
from harness.node.observer.watch import Watch

AFTER = "transformers.trainer"


def install(watch: Watch, module: ModuleType) -> None:
    """Adds a callback class to `DEFAULT_CALLBACKS`; every `Trainer` makes one instance of it."""
    state, guard = checkpointing.of(watch), watch.guard("hugging_face")

    @guard
    def began(args: Any, training: Any) -> None:
        state.restores.framework_step = int(training.global_step)

    @guard
    def saved(args: Any, training: Any) -> None:
        folder = os.path.join(args.output_dir, f"checkpoint-{training.global_step}")
        state.saves.commit(os.path.realpath(folder), int(training.global_step))

    class Observed(module.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            began(args, state)

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            saved(args, state)

    module.DEFAULT_CALLBACKS.append(Observed)
