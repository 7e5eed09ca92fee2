"""Observes `torch.save` and `torch.load`, later renames of saved files, and states that enter a model or an optimizer
by `load_state_dict`."""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from harness.node.observer import checkpointing, identity
from harness.node.observer.checkpointing import Checkpointing, path_of
from harness.node.observer.observed_restores import MODEL, OPTIMIZER
from harness.node.observer.observed_saves import Save
from harness.node.observer.watch import Watch
from harness.node.observer.wrapping import around

AFTER = "torch"
TELLS = ("checkpoints", "restores")


def install(watch: Watch, torch: ModuleType) -> None:
    state, guard, of_restores = checkpointing.of(watch), watch.guard("checkpoints"), watch.guard("restores")
    saving, loading = _Saving(state), _Loading(state)
    serialization = ("torch.serialization",)
    around(torch, "save", guard(saving.before), guard(saving.after), guard(saving.failed), serialization)
    around(torch, "load", guard(loading.before), guard(loading.after), guard(loading.failed), serialization)

    def renaming(src: Any = None, dst: Any = None, **_: Any) -> tuple[str, str] | None:
        if not state.saves.open or not isinstance(src, (str, os.PathLike)) or not isinstance(dst, (str, os.PathLike)):
            return None
        return os.path.realpath(os.fsdecode(src)), os.path.realpath(os.fsdecode(dst))

    for name in ("rename", "replace"):
        around(os, name, guard(renaming), guard(lambda names, _: state.saves.renamed(*names)))

    watch.when_optimizer_made(state.live.optimizers.add)

    def entering(_: Any, state_dict: Any = None, *__: Any, **___: Any) -> Any:
        return state.restores.whence(state_dict) or None

    for owner, part in ((torch.nn.Module, MODEL), (torch.optim.Optimizer, OPTIMIZER)):
        entered = functools.partial(state.restores.entered, part)
        after = of_restores(lambda loads, _, entered=entered: entered(loads))
        around(owner, "load_state_dict", of_restores(entering), after)


@dataclass(frozen=True)
class _Writing:
    path: str | None
    file: Any
    save: Save | None
    held: set[int]


class _Saving:
    def __init__(self, state: Checkpointing):
        self._state = state

    def before(self, obj: Any = None, f: Any = None, *_: Any, **__: Any) -> _Writing | None:
        saves, path = self._state.saves, path_of(f)
        if getattr(self._state.quiet, "on", False) or (path or "").endswith(".distcp"):
            return None
        held = self._state.live.held_by(obj)
        if path is None and not held:
            return None
        return _Writing(path, f, saves.begin(path, held) if path and held else None, held)

    def after(self, writing: _Writing, _: Any) -> None:
        saves = self._state.saves
        if writing.path is None:
            with contextlib.suppress(OSError, ValueError, AttributeError):  # a stream that cannot be read again
                saves.buffered(identity.lineage_of(writing.file), writing.held)
        elif writing.save is None:
            saves.beside(writing.path)
        else:
            if hasattr(writing.file, "flush"):
                writing.file.flush()
            saves.written(writing.save, writing.path)

    def failed(self, writing: _Writing, error: BaseException) -> None:
        if writing.save is not None:
            self._state.saves.failed(writing.save, error)


class _Loading:
    def __init__(self, state: Checkpointing):
        self._state = state

    def before(self, f: Any = None, *_: Any, **__: Any) -> Any:
        return None if getattr(self._state.quiet, "on", False) else (path_of(f), f)

    def after(self, token: tuple[str | None, Any], value: Any) -> None:
        path, file = token
        lineage = None
        if path is None:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                lineage = identity.lineage_of(file)
        self._state.restores.loaded(path or "memory", value, lineage)

    def failed(self, token: tuple[str | None, Any], error: BaseException) -> None:
        if token[0] is not None:
            self._state.restores.refused(token[0], error)
