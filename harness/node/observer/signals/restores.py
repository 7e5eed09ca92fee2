"""States that enter a model or an optimizer through `load_state_dict`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from harness.node.observer import checkpointing
from harness.node.observer.restores import MODEL, OPTIMIZER, Restores
from harness.node.observer.watch import Watch
from harness.node.observer.wrapping import around

AFTER = "torch"


def install(watch: Watch, torch: ModuleType) -> None:
    state, guard = checkpointing.of(watch), watch.guard("restores")
    watch.when_optimizer_made(state.live.optimizers.add)
    for owner, part in ((torch.nn.Module, MODEL), (torch.optim.Optimizer, OPTIMIZER)):
        hook = _Entry(state.restores, part)
        around(owner, "load_state_dict", guard(hook.before), guard(hook.after))


class _Entry:
    def __init__(self, restores: Restores, part: str):
        self._restores, self._part = restores, part

    def before(self, _: Any, state_dict: Any = None, *__: Any, **___: Any) -> Any:
        return self._restores.whence(state_dict) or None

    def after(self, loads: Any, _: Any) -> None:
        self._restores.entered(self._part, loads)
