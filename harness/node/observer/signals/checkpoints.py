"""Checkpoints saved by `torch.save` and loaded by `torch.load`, and the names that their files get in the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from harness.node.observer import checkpointing, identity
from harness.node.observer.checkpointing import Checkpointing, path_of
from harness.node.observer.watch import Watch
from harness.node.observer.wrapping import around

AFTER = "torch"
TELLS = ("checkpoints", "restores")

Token = tuple[Callable[..., None], Any]


def install(watch: Watch, torch: ModuleType) -> None:
    state, guard = checkpointing.of(watch), watch.guard("checkpoints")
    saving, loading = _Saving(state), _Loading(state)
    serialization = ("torch.serialization",)
    around(torch, "save", guard(saving.before), guard(saving.after), guard(saving.failed), serialization)
    around(torch, "load", guard(loading.before), guard(loading.after), guard(loading.failed), serialization)
    for name in ("rename", "replace"):
        around(os, name, guard(_names(state)), guard(lambda names, _: state.saves.renamed(*names)))


def _names(state: Checkpointing) -> Callable[..., tuple[str, str] | None]:
    def before(src: Any = None, dst: Any = None, **_: Any) -> tuple[str, str] | None:
        if not state.saves.open or not isinstance(src, (str, os.PathLike)) or not isinstance(dst, (str, os.PathLike)):
            return None
        return os.path.realpath(os.fsdecode(src)), os.path.realpath(os.fsdecode(dst))

    return before


class _Saving:
    def __init__(self, state: Checkpointing):
        self._state = state

    def before(self, obj: Any = None, f: Any = None, *_: Any, **__: Any) -> Token | None:
        saves, path = self._state.saves, path_of(f)
        if getattr(self._state.quiet, "on", False) or (path or "").endswith(".distcp"):
            return None
        held = self._state.live.held_by(obj)
        if path is None:
            return (self._buffered, (f, saves.watch.step)) if held else None
        if not held:
            return self._beside, path
        return self._written, (saves.begin(path, held), path, f)

    def after(self, token: Token, _: Any) -> None:
        then, what = token
        then(what)

    def failed(self, token: Token, error: BaseException) -> None:
        then, what = token
        if then == self._written:
            self._state.saves.failed(what[0], error)

    def _beside(self, path: str) -> None:
        self._state.saves.beside(path)

    def _written(self, what: tuple[Any, str, Any]) -> None:
        save, path, file = what
        if hasattr(file, "flush"):
            file.flush()
        self._state.saves.written(save, path)

    def _buffered(self, what: tuple[Any, int | None]) -> None:
        buffer, step = what
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a stream that cannot be read again
            self._state.saves.wrote(identity.lineage_of(buffer), step)


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
