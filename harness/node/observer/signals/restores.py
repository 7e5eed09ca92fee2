"""States that enter a model or an optimizer through `load_state_dict`."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from harness.node.observer import checkpointing
from harness.node.observer.observed_restores import MODEL, OPTIMIZER
from harness.node.observer.watch import Watch
from harness.node.observer.wrapping import around

AFTER = "torch"


def install(watch: Watch, torch: ModuleType) -> None:
    state, guard = checkpointing.of(watch), watch.guard("restores")
    watch.when_optimizer_made(state.live.optimizers.add)

    def entering(_: Any, state_dict: Any = None, *__: Any, **___: Any) -> Any:
        return state.restores.whence(state_dict) or None

    for owner, part in ((torch.nn.Module, MODEL), (torch.optim.Optimizer, OPTIMIZER)):
        entered = functools.partial(state.restores.entered, part)
        around(owner, "load_state_dict", guard(entering), guard(lambda loads, _, entered=entered: entered(loads)))
