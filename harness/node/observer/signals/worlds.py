"""Observes when the ranks form torch's default process group, and how large it is."""

from __future__ import annotations

from typing import Any

from harness.node.observer import checkpointing
from harness.node.observer.watch import Watch
from harness.node.observer.wrapping import around

AFTER = "torch.distributed"


def install(watch: Watch, module: Any) -> None:
    if not module.is_available():
        return
    worlds: list[int | None] = []  # the size of each that this process was in

    @watch.guard("worlds")
    def begun(*_: Any, **__: Any) -> Watch:
        if worlds:
            watch.begin_anew()
        watch.emit("phase", name="rendezvous", edge="begin")
        return watch

    @watch.guard("worlds")
    def formed(*_: Any) -> None:
        watch.emit("phase", name="rendezvous", edge="end")
        worlds.append(watch.world)
        watch.emit("rendezvous", world_size=watch.world)

    around(module, "init_process_group", begun, formed, also_in=("torch.distributed.distributed_c10d",))
    flush = watch.guard("worlds")(checkpointing.of(watch).saves.flush)  # Ray then ends the process without its atexit
    around(module, "destroy_process_group", lambda *_, **__: flush())
