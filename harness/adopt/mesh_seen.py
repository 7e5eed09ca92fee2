"""Finds the device mesh of a job by the coordinates that its ranks logged in a short run without faults."""

from __future__ import annotations

from collections.abc import Mapping

from harness.mesh import Mesh
from harness.node.emitter import AXES, Axis

EXPERTS: Axis = "ep"  # in Megatron its groups lie across those of other axes, so that it may be none of the mesh
Places = Mapping[int, Mapping[str, tuple[int, int]]]  # by rank and axis: its index, the axis's size


def mesh_of(told: Places, ranks: int) -> tuple[dict[Axis, int], str]:
    """Returns the row-major mesh that agrees with the logged coordinates of all ranks. Returns an empty mesh and the
    reason if no mesh agrees with all coordinates."""
    missing = [rank for rank in range(ranks) if not told.get(rank)]
    if len(missing) == ranks:
        return {}, "no rank told its place"
    if missing:
        return {}, f"rank {missing[0]} told no place"
    places = {rank: {axis: told[rank][axis] for axis in AXES if axis in told[rank]} for rank in range(ranks)}
    whole = _row_major(places, ranks)
    without = {rank: {axis: at for axis, at in place.items() if axis != EXPERTS} for rank, place in places.items()}
    mesh = whole or _row_major(without, ranks)
    seen = ", ".join(f"{axis} {size}" for axis, (_, size) in places[0].items() if size > 1)
    return mesh, "" if mesh else f"the places that ranks told ({seen or 'one rank each'}) make no mesh of {ranks} ranks"


def _row_major(places: Mapping[int, Mapping[Axis, tuple[int, int]]], ranks: int) -> dict[Axis, int]:
    sizes = {axis: size for axis, (_, size) in places[0].items() if size > 1}
    # Row-major: the first rank at index 1 of an axis is the stride of that axis.
    first = {axis: next((rank for rank in places if places[rank].get(axis, (0, 1))[0] == 1), 0) for axis in sizes}
    mesh = Mesh({axis: sizes[axis] for axis in sorted(sizes, key=lambda axis: -first[axis])})
    if not sizes or mesh.world_size != ranks:
        return {}
    for rank, place in places.items():
        if mesh.of(rank) != {axis: place[axis][0] for axis in mesh.sizes if axis in place}:
            return {}
        if any(place[axis][1] != size for axis, size in mesh.sizes.items()):
            return {}
    return dict(mesh.sizes)


def victim_of(mesh: Mapping[Axis, int]) -> dict[Axis, int | str]:
    """Returns the mesh coordinates of the rank that a proposed scenario kills. The killed rank is the last rank along
    the first of the axes pp, tp, cp, ep and fsdp that the mesh has. Returns an empty dict if all ranks are replicas of
    each other."""
    axis = next((axis for axis in ("pp", "tp", "cp", "ep", "fsdp") if axis in mesh), None)
    return {each: "last" if each == axis else 0 for each in mesh} if axis else {}


def in_words(mesh: Mapping[Axis, int | str]) -> str:
    """Formats a mesh as in a scenario file, for example `{pp: 2, tp: 4}`."""
    return "{" + ", ".join(f"{axis}: {size}" for axis, size in mesh.items()) + "}"
