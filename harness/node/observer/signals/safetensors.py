"""Observes checkpoints that are saved and loaded with safetensors."""

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

    def loading(filename: Any = None, *_: Any, **__: Any) -> Any:
        return path_of(filename)

    saved = guard(lambda token, _: state.saves.written(*token))
    not_saved = guard(lambda token, error: state.saves.failed(token[0], error))
    around(module, "save_file", guard(saving), saved, not_saved)
    around(module, "load_file", guard(loading), guard(state.restores.loaded), guard(state.restores.refused))
