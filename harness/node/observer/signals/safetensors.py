"""Checkpoints saved and loaded with safetensors."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from harness.node.observer import checkpointing
from harness.node.observer.checkpointing import path_of
from harness.node.observer.watch import Watch
from harness.node.observer.wrapping import around

AFTER = "safetensors.torch"


def install(watch: Watch, module: ModuleType) -> None:
    state, guard = checkpointing.of(watch), watch.guard("safetensors")

    def saving(tensors: Any = None, filename: Any = None, *_: Any, **__: Any) -> Any:
        path, held = path_of(filename), state.live.held_by(tensors)
        return (state.saves.begin(path, held), path) if path and held else None

    def saved(token: Any, _: Any) -> None:
        state.saves.written(*token)

    def not_saved(token: Any, error: BaseException) -> None:
        state.saves.failed(token[0], error)

    def loading(filename: Any = None, *_: Any, **__: Any) -> Any:
        return path_of(filename)

    around(module, "save_file", guard(saving), guard(saved), guard(not_saved))
    around(module, "load_file", guard(loading), guard(state.restores.loaded), guard(state.restores.refused))
