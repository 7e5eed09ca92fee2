"""Checkpoints saved and loaded with safetensors."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from harness.node.observer import checkpointing
from harness.node.observer.checkpointing import Checkpointing, path_of
from harness.node.observer.watch import Watch
from harness.node.observer.wrapping import around

AFTER = "safetensors.torch"


def install(watch: Watch, module: ModuleType) -> None:
    guard = watch.guard("safetensors")
    files = _Files(checkpointing.of(watch))
    around(module, "save_file", guard(files.saving), guard(files.saved), guard(files.not_saved))
    around(module, "load_file", guard(files.loading), guard(files.loaded), guard(files.not_loaded))


class _Files:
    def __init__(self, state: Checkpointing):
        self._state = state

    def saving(self, tensors: Any = None, filename: Any = None, *_: Any, **__: Any) -> Any:
        path, held = path_of(filename), self._state.live.held_by(tensors)
        return (self._state.saves.begin(path, held), path) if path and held else None

    def saved(self, token: Any, _: Any) -> None:
        self._state.saves.written(*token)

    def not_saved(self, token: Any, error: BaseException) -> None:
        self._state.saves.failed(token[0], error)

    def loading(self, filename: Any = None, *_: Any, **__: Any) -> Any:
        return path_of(filename)

    def loaded(self, path: str, tensors: Any) -> None:
        self._state.restores.loaded(path, tensors)

    def not_loaded(self, path: str, error: BaseException) -> None:
        self._state.restores.refused(path, error)
