"""Observes torchft: changes of torch's process group without a restart, and replicas that take state from a peer."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from harness.node.observer import checkpointing
from harness.node.observer.checkpointing import Checkpointing
from harness.node.observer.observed_restores import Load
from harness.node.observer.watch import Watch
from harness.node.observer.wrapping import around

AFTER = "torchft.manager"
PEER = "peer"


def install(watch: Watch, module: ModuleType) -> None:
    guard = watch.guard("torchft")
    worlds = _Worlds(watch)
    for name in ("start_quorum", "wait_quorum", "should_commit"):
        around(module.Manager, name, guard(worlds.before), guard(worlds.after))
    _wrap_registration(module, checkpointing.of(watch))


class _Worlds:
    def __init__(self, watch: Watch):
        self._watch = watch
        self._told: int | None = None

    def before(self, manager: Any, *_: Any, **__: Any) -> Any:
        return manager

    def after(self, manager: Any, _: Any) -> None:
        quorum = manager._quorum_future
        if quorum is None or not quorum.done() or manager._quorum_id in (self._told, -1):
            return
        self._told = manager._quorum_id
        ranks_of_replica = int(getattr(manager, "_group_world_size", 1))
        ranks = manager._pg.size() * ranks_of_replica
        self._watch.emit("rendezvous", world_size=ranks, world=f"quorum {self._told}")


def _wrap_registration(module: ModuleType, state: Checkpointing) -> None:
    register = module.Manager.register_state_dict_fn

    def registering(manager: Any, key: str, load_state_dict: Any, state_dict: Any) -> Any:
        def load(value: Any) -> Any:
            state.restores.framework_step = manager.current_step()
            with state.restores.during(Load(PEER)):
                return load_state_dict(value)

        state.restores.await_step()
        return register(manager, key, load, state_dict)

    module.Manager.register_state_dict_fn = registering
