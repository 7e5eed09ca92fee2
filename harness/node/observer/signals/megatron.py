"""Observes Megatron Core's distributed checkpoints, which forked processes write, and which bypass `dcp.load`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from harness.node.observer import checkpointing
from harness.node.observer.signals.dcp import Loads, Saves
from harness.node.observer.watch import Watch
from harness.node.observer.wrapping import around

PACKAGE = "megatron.core.dist_checkpointing"
AFTER = f"{PACKAGE}.serialization"


def install(watch: Watch, module: ModuleType) -> None:
    state, guard = checkpointing.of(watch), watch.guard("megatron")
    saves, loads = Saves(state), Loads(state)

    def saving(_: Any, checkpoint_dir: Any, *__: Any, **___: Any) -> Any:
        return saves.before(checkpoint_id=checkpoint_dir)

    def saved(token: Any, request: Any) -> None:
        if request is None:
            saves.after(token, None)
        else:
            state.quiet.on = False
            request.finalize_fns.append(guard(lambda: saves.whole(token)))

    def loading(sharded_state_dict: Any, checkpoint_dir: Any, *_: Any, **__: Any) -> Any:
        return loads.before(sharded_state_dict, checkpoint_id=checkpoint_dir)

    def loaded(token: Any, result: Any) -> None:
        load, _, during = token
        loads.after((load, result[0] if isinstance(result, tuple) else result, during), None)

    also = (PACKAGE,)
    around(module, "save", guard(saving), guard(saved), guard(saves.failed), also)
    around(module, "load", guard(loading), guard(loaded), guard(loads.failed), also)
