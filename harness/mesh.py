"""Defines the job's mesh: the number of ranks along each axis, and the place of each rank (in row-major order)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.node.emitter import Axis

LAST = "last"
SHARED = {  # the thing that ranks along an axis share
    "pp": "the pipeline",
    "dp": "equal weights",
    "fsdp": "sharded weights",
    "cp": "split sequences",
    "tp": "split tensors",
    "ep": "split experts",
}


@dataclass(frozen=True)
class Mesh:
    """The mesh of a job's ranks. `sizes` is the number of ranks by axis, outermost axis first, as for
    `init_device_mesh`."""

    sizes: Mapping[Axis, int]

    @property
    def world_size(self) -> int:
        return math.prod(self.sizes.values())

    def of(self, rank: int) -> dict[Axis, int]:
        found: dict[Axis, int] = {}
        for axis, size in reversed([*self.sizes.items()]):
            rank, found[axis] = divmod(rank, size)
        return dict(reversed(found.items()))

    def ranks(self, at: Mapping[Axis, int]) -> list[int]:
        """Returns all ranks with the coordinates `at`, in ascending order. Axes not in `at` may have any index."""
        ranks = [0]
        for axis, size in self.sizes.items():
            indices = [at[axis]] if axis in at else range(size)
            ranks = [rank * size + index for rank in ranks for index in indices]
        return ranks

    def beside(self, rank: int) -> dict[Axis, list[int]]:
        """Returns, for each axis, the other ranks whose coordinates differ from those of `rank` only on this axis."""
        here = self.of(rank)
        lines = {axis: {other: here[other] for other in here if other != axis} for axis in here}
        return {axis: [each for each in self.ranks(line) if each != rank] for axis, line in lines.items()}

    def in_words(self, rank: int) -> str:
        """Describes a rank's place in the mesh, such as `rank 3 is pp 1, tp 1; it shares the pipeline with rank 1`."""
        near = {axis: ranks for axis, ranks in self.beside(rank).items() if ranks}
        parts = [f"{SHARED[axis]} with {_ranks(ranks)}" for axis, ranks in near.items()]
        return f"rank {rank} is {shown(self.of(rank))}" + (f"; it shares {', '.join(parts)}" if parts else "")


def shown(coordinates: Mapping[Axis, int]) -> str:
    return ", ".join(f"{axis} {index}" for axis, index in coordinates.items())


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) > 4:
        return f"{len(ranks)} ranks ({ranks[0]} to {ranks[-1]})"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
