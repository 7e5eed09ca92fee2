"""Worlds: the process group that the ranks form, and when."""

from __future__ import annotations

import functools
from typing import Any

from harness.node.observer.watch import Watch

AFTER = "torch.distributed"


def install(watch: Watch, module: Any) -> None:
    if not module.is_available():
        return
    init = module.init_process_group
    begun = watch.guard("worlds")(functools.partial(watch.emit, "phase", name="rendezvous", edge="begin"))

    @watch.guard("worlds")
    def formed() -> None:
        watch.emit("phase", name="rendezvous", edge="end")
        watch.emit("rendezvous", world_size=watch.world)

    @functools.wraps(init)
    def watched(*args: Any, **kwargs: Any) -> Any:
        begun()
        result = init(*args, **kwargs)
        formed()
        return result

    module.init_process_group = watched
    module.distributed_c10d.init_process_group = watched
