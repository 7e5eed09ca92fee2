"""Observes distributed checkpoints: `dcp.save`, `dcp.async_save` and `dcp.load`. Only rank 0 logs saves."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from harness.node.observer import checkpointing
from harness.node.observer.checkpointing import Checkpointing, path_of
from harness.node.observer.observed_restores import Load
from harness.node.observer.observed_saves import Save
from harness.node.observer.watch import Watch
from harness.node.observer.wrapping import around

PACKAGE, STATES = "torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict"
AFTER = (PACKAGE, STATES)
HIDDEN_STEP = "_init_optim_state"  # steps an optimizer without gradients, to give it a state to load into
SETTERS = ("set_state_dict", "set_model_state_dict", "set_optimizer_state_dict")


def install(watch: Watch, module: ModuleType) -> None:
    state = checkpointing.of(watch)
    if module.__name__ == STATES:
        return _install_setters(watch, module, state)
    guard = watch.guard("dcp")
    saves, loads = Saves(state), Loads(state)
    also = f"{PACKAGE}.state_dict_saver", f"{PACKAGE}.state_dict_loader"
    around(module, "save", guard(saves.before), guard(saves.after), guard(saves.failed), also)
    around(module, "async_save", guard(saves.before_async), guard(saves.after_async), guard(saves.failed), also)
    around(module, "load", guard(loads.before), guard(loads.after), guard(loads.failed), also)


def _install_setters(watch: Watch, module: ModuleType, state: Checkpointing) -> None:
    """Wraps `SETTERS` such as `set_state_dict`, so that their copies of loaded tensors count as loaded, too."""

    def before(*args: Any, **kwargs: Any) -> contextlib.ExitStack | None:
        found = state.restores.whence([*args[1:], *kwargs.values()])
        return _entered(state, found[0]) if found else None

    def after(during: contextlib.ExitStack, _: Any) -> None:
        during.close()

    def quiet(*_: Any, **__: Any) -> Watch:
        watch.quiet += 1
        return watch

    def loud(*_: Any) -> None:
        watch.quiet -= 1

    guard = watch.guard("dcp")
    around(module, HIDDEN_STEP, guard(quiet), guard(loud), guard(loud))
    for name in SETTERS:
        around(module, name, guard(before), guard(after), guard(after))


def _entered(state: Checkpointing, load: Load) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    stack.enter_context(state.restores.during(load))
    return stack


def _folder(arguments: Mapping[str, Any], storage: str) -> str | None:
    where = arguments.get("checkpoint_id")
    where = getattr(arguments.get(storage), "path", None) if where is None else where
    return path_of(where) if where is not None else None


class Saves:
    def __init__(self, state: Checkpointing):
        self._state = state
        self._in_background: set[str] = set()

    def before(self, *args: Any, **kwargs: Any) -> tuple[Save | None, str] | None:
        folder = _folder(kwargs, "storage_writer")
        if folder is None or folder in self._in_background:
            return None
        token = self._begun(folder)
        self._state.quiet.on = True
        return token

    def _begun(self, folder: str) -> tuple[Save | None, str]:
        first = not self._state.saves.watch.rank  # every rank takes part; one tells
        return self._state.saves.begin_known(folder) if first else None, folder

    def after(self, token: tuple[Save | None, str], _: Any) -> None:
        self._state.quiet.on = False
        self.whole(token)

    def whole(self, token: tuple[Save | None, str]) -> None:
        save, folder = token
        if save is not None:
            self._state.saves.whole(save, folder)

    def failed(self, token: tuple[Save | None, str], error: BaseException) -> None:
        self._state.quiet.on = False
        save, folder = token
        self._in_background.discard(folder)
        if save is not None:
            self._state.saves.failed(save, error)

    def before_async(self, *args: Any, **kwargs: Any) -> tuple[Save | None, str] | None:
        folder = _folder(kwargs, "storage_writer")
        if folder is None:
            return None
        self._in_background.add(folder)
        return self._begun(folder)

    def after_async(self, token: tuple[Save | None, str], answer: Any) -> None:
        future = getattr(answer, "upload_completion", answer)
        future.add_done_callback(self._state.saves.watch.guard("dcp")(lambda done: self._done(token, done)))

    def _done(self, token: tuple[Save | None, str], future: Any) -> None:
        self._in_background.discard(token[1])
        error = future.exception()
        self.failed(token, error) if error is not None else self.whole(token)


class Loads:
    def __init__(self, state: Checkpointing):
        self._state = state

    def before(self, state_dict: Any = None, *_: Any, **kwargs: Any) -> Any:
        folder = _folder(kwargs, "storage_reader")
        if folder is None:
            return None
        load = self._state.restores.loaded(folder, None)
        return load, state_dict, _entered(self._state, load)

    def after(self, token: Any, _: Any) -> None:
        load, state_dict, during = token
        during.close()
        self._state.restores.took(load, state_dict)

    def failed(self, token: Any, error: BaseException) -> None:
        load, _, during = token
        during.close()
        self._state.restores.refused(load.source, error)
