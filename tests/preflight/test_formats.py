"""A file that contradicts itself is wrong, and says where."""

import io
import json
import pickle
import struct
import zipfile
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is missing: make setup")
import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from harness.trainers.checkpoints.shared import formats

ONE = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


def safetensors(tensors: dict[str, Any], data: bytes) -> formats.Inside:
    header = json.dumps(tensors).encode()
    return formats.look(io.BytesIO(struct.pack("<Q", len(header)) + header + data), "model.safetensors")


def tensor(begin: int, end: int, *shape: int, dtype: str = "F32") -> dict[str, Any]:
    return {"b": {"dtype": dtype, "shape": [*shape], "data_offsets": [begin, end]}}


@pytest.mark.parametrize(
    ("change", "size", "tensor", "told"),
    [
        ({}, 12, "", "the file has"),
        ({}, 7, "a", "should end at byte"),
        (tensor(12, 16, 1), 16, "b", "does not begin where"),
        (tensor(4, 8, 1), 8, "b", "does not begin where"),
        (tensor(8, 12, 2), 12, "b", "do not make its shape"),
        (tensor(8, 4, 1), 8, "b", "does not begin where"),
        ({"b": {"dtype": "F32"}}, 8, "", "cannot be read"),
        (tensor(8, 12, -1, -1), 12, "b", "do not make its shape"),
        (tensor(8, 12, 7, dtype="F4"), 12, "b", "do not make its shape"),
    ],
)
def test_safetensors(change: dict[str, Any], size: int, tensor: str, told: str) -> None:
    assert safetensors(ONE, bytes(8)).wrong == []
    found = safetensors(ONE | change, bytes(size)).wrong
    assert any(name == tensor and told in what for name, what in found), found


def test_a_type_that_safetensors_does_not_have_is_not_known() -> None:
    for dtype, known in (("F4", True), ("C64", True), ("f32", False), ("Float", False)):
        size = 4 if dtype == "F4" else 64
        found = safetensors({"a": {"dtype": dtype, "shape": [8], "data_offsets": [0, size]}}, bytes(size))
        assert (found.wrong, not found.unclear) == ([], known)


def rewritten(change: dict[str, bytes | None]) -> formats.Inside:
    """An archive of torch.save, with other records."""
    saved, made = io.BytesIO(), io.BytesIO()
    torch.save({"w": torch.ones(5), "v": torch.ones(3)}, saved)
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            content = change.get(name.partition("/")[2], old.read(name))
            if content is not None:
                new.writestr(name, content)
    return formats.look(made, "x.pt")


@pytest.mark.parametrize(
    ("change", "tensor", "told"),
    [
        ({"data/0": bytes(16)}, "w", "has 16 bytes, not 20"),
        ({"data/1": None}, "v", "is lost"),
        ({"data.pkl": None}, "", "holds no data.pkl"),
        ({"data.pkl": b"\x80\x02}"}, "", "damaged"),
    ],
)
def test_archives_of_torch(change: dict[str, bytes | None], tensor: str, told: str) -> None:
    assert rewritten({}).wrong == []
    ((name, what),) = rewritten(change).wrong
    assert name == tensor and told in what


def metadata(tensors: dict[str, Any], places: dict[Any, Any]) -> formats.Inside:
    return formats.look(io.BytesIO(pickle.dumps(Metadata(tensors, storage_data=places))), "x/.metadata")


def test_metadata_of_a_distributed_checkpoint_must_tell_the_place_of_each_part() -> None:
    chunks = [ChunkStorageMetadata(torch.Size([at]), torch.Size([4])) for at in (0, 4)]
    tensor = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([8]), chunks)
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    first, second = (MetadataIndex("w", torch.Size([at])) for at in (0, 4))
    places = {first: _StorageInfo("__0_0.distcp", 0, 100), second: _StorageInfo("__1_0.distcp", 0, 100)}
    found = metadata({"w": tensor}, places)
    assert (found.wrong, set(found.places)) == ([], {"__0_0.distcp", "__1_0.distcp"})
    found = metadata({"w": tensor}, {first: places[first]})
    assert found.wrong == [("w", "has 2 parts, and the places of 1 are told")]
    over = formats.shard(io.BytesIO(bytes(100)), [("w", 0, 60), ("v", 50, 50)]).wrong
    assert ("v", "lies over another tensor") in over
