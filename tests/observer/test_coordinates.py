"""Where a rank is in the job's mesh, as the observer tells it."""

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest
from observer import observing

from harness.node.observer.signals.coordinates import Coordinates
from harness.node.observer.watch import Watch

SHARDED = """
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)  # one rank that moves nothing
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
parallelize_module(model, mesh["model"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
fully_shard(model, mesh=mesh["data"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""
STAGED = """
import torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

dist.init_process_group("gloo")
rank, model = dist.get_rank(), torch.nn.Linear(8, 8)
stage = PipelineStage(model, rank, 2, torch.device("cpu"))
schedule = ScheduleGPipe(stage, 2, loss_fn=lambda out, target: (out - target).pow(2).mean())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule.step(torch.ones(4, 8)) if rank == 0 else schedule.step(target=torch.zeros(4, 8))
optimizer.step()
"""


def told(script: str, folder: pathlib.Path, ranks: int) -> dict[int, list[Any]]:
    ends = observing.run_ranks(script, folder, ranks)
    assert [code for code, _, _ in ends] == [0] * ranks, ends
    logs = observing.logs(folder / "events")
    assert not [each for log in logs for each in log.events if each["event"] == "observer.failed"]
    found = {log.header["rank"]: [e["axes"] for e in log.events if e["event"] == "coordinates"] for log in logs}
    return {rank: [tuple(axis.values()) for axis in axes] for rank, (axes,) in found.items()}


def test_shards_and_tensors_are_known_by_their_use(tmp_path: pathlib.Path) -> None:
    assert list(told(SHARDED, tmp_path, 1).values()) == [[("fsdp", 1, 2), ("tp", 0, 2)]]


def test_stages_of_a_pipeline(tmp_path: pathlib.Path) -> None:
    assert told(STAGED, tmp_path, 2) == {rank: [("pp", rank, 2)] for rank in range(2)}


@dataclass(frozen=True)
class Mesh:
    mesh_dim_names: Sequence[str] | None
    sizes: Sequence[int]
    at: Sequence[int] | None

    def get_coordinate(self) -> Sequence[int] | None:
        return self.at

    def size(self, dim: int) -> int:
        return self.sizes[dim]


TWO = ("dp_replicate", "dp_shard")


@pytest.mark.parametrize(
    ("names", "use", "mesh", "known"),
    [
        # What is sharded over a group of data is FSDP; two dimensions replicate and shard.
        ({"data": (1, 2)}, ("dp", "fsdp"), Mesh(("data",), (2,), (1,)), {"fsdp": (1, 2)}),
        ({}, ("dp", "fsdp"), Mesh(("x", "y"), (2, 4), (1, 3)), {"dp": (1, 2), "fsdp": (3, 4)}),
        (dict.fromkeys(TWO, (0, 2)), ("dp", "fsdp"), Mesh(TWO, (2, 2), (0, 0)), {"dp": (0, 2), "fsdp": (0, 2)}),
        # A plain name stands above the use: experts are spread as tensors are.
        ({"ep": (1, 2)}, ("tp",), Mesh(("ep",), (2,), (1,)), {"ep": (1, 2)}),
        # A rank outside of a mesh is nowhere in it.
        ({"world": (3, 8)}, ("tp",), Mesh(("tp",), (2,), None), {}),
    ],
)
def test_what_a_name_and_a_use_say_together(
    names: dict[str, tuple[int, int]], use: tuple[str, ...], mesh: Mesh, known: dict[str, tuple[int, int]]
) -> None:
    found = Coordinates(cast(Watch, None))
    for name, place in names.items():
        found.named(name, place)
    found.given(use, mesh)
    assert found.known() == known
