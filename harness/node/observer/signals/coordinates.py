"""Observes the coordinates of this rank in the job's mesh, such as its tensor-parallel rank or pipeline stage.

The use of a process group shows its mesh axis: a group used by `fully_shard` is `fsdp`, whatever its name. A group's
name also shows its axis, if `NAMES` lists the name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.node.emitter import AXES
from harness.node.observer.watch import Watch
from harness.node.observer.wrapping import around

MESHES, SHARDING = "torch.distributed.device_mesh", "torch.distributed.fsdp"
TENSORS, STAGES = "torch.distributed.tensor.parallel", "torch.distributed.pipelining.stage"
REPLICATING, MEGATRON, DEEPSPEED = "torch.nn.parallel", "megatron.core.parallel_state", "deepspeed.runtime.engine"
AFTER = (MESHES, SHARDING, TENSORS, STAGES, REPLICATING, MEGATRON, DEEPSPEED)
NAMES = {name: name for name in AXES} | {
    **dict.fromkeys(("dp_replicate", "replicate", "ddp", "data", "data_parallel"), "dp"),
    **dict.fromkeys(("dp_shard", "shard", "zero"), "fsdp"),
    **dict.fromkeys(("tensor", "tensor_parallel", "model", "model_parallel", "mp"), "tp"),
    **dict.fromkeys(("pipe", "pipeline", "stage"), "pp"),
    **dict.fromkeys(("context", "sp", "seq", "sequence"), "cp"),
    **dict.fromkeys(("expert",), "ep"),
}
GENERAL = "dp"  # axis whose names groups that shard also have
Place = tuple[int, int]  # this rank's index on an axis, and how many there are


class Coordinates:
    def __init__(self, watch: Watch):
        self._watch = watch
        self._named: dict[str, Place] = {}  # by a group's name
        self._used: dict[str, Place] = {}  # by the axis of its use
        self._told: dict[str, Place] = {}

    def named(self, name: object, place: Place) -> None:
        axis = NAMES.get(str(name).lower())
        if axis is not None:
            self._named[axis] = place

    def used(self, axis: str, place: Place) -> None:
        self._used[axis] = place

    def of_mesh(self, mesh: Any) -> list[tuple[str | None, Place]]:
        """Returns the name and this rank's place for each dimension of the mesh, or an empty list for a rank outside
        the mesh."""
        names, at = mesh.mesh_dim_names, mesh.get_coordinate()
        if at is None:
            return []
        return [(names[dim] if names else None, (int(index), int(mesh.size(dim)))) for dim, index in enumerate(at)]

    def given(self, axes: tuple[str, ...], mesh: Any) -> None:
        """Records a device mesh passed to a library function that uses the mesh's last dimensions as `axes`."""
        for axis, (name, place) in zip(reversed(axes), reversed(self.of_mesh(mesh)), strict=False):
            if NAMES.get(str(name).lower(), GENERAL) == GENERAL:
                self.used(axis, place)

    def known(self) -> dict[str, Place]:
        """Returns this rank's known coordinates by axis. A process group named `data` that shards parameters counts as
        `fsdp`, not as `dp`."""
        found = dict(self._named)
        if GENERAL not in self._used and found.get(GENERAL) == self._used.get("fsdp", ()):
            del found[GENERAL]
        return {axis: place for axis in AXES if (place := found.get(axis) or self._used.get(axis))}

    def tell(self) -> None:
        known = self.known()
        if known != self._told:
            self._told = known
            axes = [{"axis": axis, "index": index, "size": size} for axis, (index, size) in known.items()]
            self._watch.emit("coordinates", axes=axes)


_OF_PROCESS: dict[int, Coordinates] = {}


def install(watch: Watch, module: Any) -> None:
    found = _OF_PROCESS.get(id(watch))
    if found is None:
        found = _OF_PROCESS[id(watch)] = Coordinates(watch)
        watch.of_step(found.tell)
    _HOOKS[module.__name__](watch, module, found)


def _after_made(watch: Watch, owner: Any, look: Callable[[Any], None]) -> None:
    guard = watch.guard("coordinates")
    around(owner, "__init__", lambda made, *_, **__: made, guard(lambda made, _: look(made)))


def _meshes(watch: Watch, module: Any, found: Coordinates) -> None:
    def look(mesh: Any) -> None:
        for name, place in found.of_mesh(mesh) if mesh.mesh_dim_names else ():
            found.named(name, place)

    _after_made(watch, module.DeviceMesh, look)


def _sharding(watch: Watch, module: Any, found: Coordinates) -> None:
    """Hooks FSDP 1 and 2 to read their device mesh. In a mesh with two axes, the first axis replicates and the second
    axis shards."""

    @watch.guard("coordinates")
    def given(_: Any, *__: Any, mesh: Any = None, **___: Any) -> None:
        if mesh is not None:
            found.given(("dp", "fsdp"), mesh)
        elif watch.rank is not None and watch.world is not None:
            found.used("fsdp", (watch.rank, watch.world))

    around(module, "fully_shard", given, also_in=("torch.distributed.fsdp._fully_shard",))

    def look(wrapped: Any) -> None:
        mesh, strategy = getattr(wrapped, "_device_mesh", None), str(wrapped.sharding_strategy)
        whole = "NO_SHARD" in strategy
        if mesh is not None:
            found.given(("dp",) if whole else ("dp", "fsdp"), mesh)
        elif "HYBRID" not in strategy:
            found.used("dp" if whole else "fsdp", (wrapped.rank, wrapped.world_size))

    _after_made(watch, module.FullyShardedDataParallel, look)


def _tensors(watch: Watch, module: Any, found: Coordinates) -> None:
    @watch.guard("coordinates")
    def given(_: Any, device_mesh: Any = None, *__: Any, **___: Any) -> None:
        if device_mesh is not None:
            found.given(("tp",), device_mesh)

    around(module, "parallelize_module", given, also_in=("torch.distributed.tensor.parallel.api",))


def _stages(watch: Watch, module: Any, found: Coordinates) -> None:
    used = found.used
    _after_made(watch, module._PipelineStageBase, lambda it: used("pp", (int(it.group_rank), int(it.group_size))))


def _replicating(watch: Watch, module: Any, found: Coordinates) -> None:
    def look(wrapped: Any) -> None:
        group = wrapped.process_group
        found.used("dp", (int(group.rank()), int(group.size())))

    _after_made(watch, module.DistributedDataParallel, look)


def _megatron(watch: Watch, module: Any, found: Coordinates) -> None:
    groups = {"pp": "pipeline_model", "dp": "data", "cp": "context", "tp": "tensor_model", "ep": "expert_model"}

    @watch.guard("coordinates")
    def look(*_: Any) -> None:
        for axis, words in groups.items():
            rank, size = (getattr(module, f"get_{words}_parallel_{what}", None) for what in ("rank", "world_size"))
            if rank is not None and size is not None:
                found.named(axis, (int(rank()), int(size())))

    around(module, "initialize_model_parallel", lambda *_, **__: True, look)


def _deepspeed(watch: Watch, module: Any, found: Coordinates) -> None:
    asked = {"pp": ("pipe_parallel", "pipeline_model_parallel"), "tp": ("tensor_model_parallel", "model_parallel")}

    def look(engine: Any) -> None:
        dist = watch.torch.distributed
        data, axis = engine.data_parallel_group, "fsdp" if engine.zero_optimization_stage() == 3 else "dp"
        found.used(axis, (dist.get_rank(data), dist.get_world_size(data)))
        for axis, names in asked.items():
            for name in names:
                rank, size = (getattr(engine.mpu, f"get_{name}_{what}", None) for what in ("rank", "world_size"))
                if rank is not None and size is not None:
                    found.used(axis, (int(rank()), int(size())))
                    break

    _after_made(watch, module.DeepSpeedEngine, look)


_HOOKS = {
    MESHES: _meshes,
    SHARDING: _sharding,
    TENSORS: _tensors,
    STAGES: _stages,
    REPLICATING: _replicating,
    MEGATRON: _megatron,
    DEEPSPEED: _deepspeed,
}
