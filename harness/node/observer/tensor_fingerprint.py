"""Makes cheap fingerprints of tensors in the host's memory, to recognise a tensor and to compare two runs."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

DEPTH_MAX = 4
TENSORS_MAX = 8
PIECES, PIECE_BYTES = 16, 16
DIGEST_BYTES = 1 << 17  # of a larger tensor as many, from all of its parts


def tensors(data: Any) -> list[Any]:
    """Returns the first dense tensors in the host's memory that nested lists, tuples and mappings contain."""
    found = (each for each in _walk(data, 0) if each.device.type == "cpu" and str(each.layout) == "torch.strided")
    return list(itertools.islice(filter(_has_memory, found), TENSORS_MAX))


def largest(data: Any) -> tuple[int, int]:
    """Returns the number of rows and the number of elements of the largest tensor in `data`, on any device, or (0, 0)
    if there is no tensor."""
    found = itertools.islice((each for each in _walk(data, 0) if len(each.shape)), TENSORS_MAX)
    return max(((int(each.shape[0]), int(each.numel())) for each in found), key=lambda size: size[1], default=(0, 0))


def _walk(data: Any, depth: int) -> Iterator[Any]:
    if hasattr(data, "untyped_storage"):
        yield data
    elif depth < DEPTH_MAX and hasattr(data, "values") and callable(data.values):
        for value in data.values():
            yield from _walk(value, depth + 1)
    elif depth < DEPTH_MAX and isinstance(data, (list, tuple)):
        for value in data[:TENSORS_MAX]:
            yield from _walk(value, depth + 1)


def _has_memory(tensor: Any) -> bool:
    """Returns True if all of a tensor's memory can be read. Reading the memory of wrappers, fake tensors or freed
    storages would crash the process."""
    try:
        held = tensor.untyped_storage()
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
        return not tensor.numel() or bool(held.data_ptr() and tensor.data_ptr() and held.nbytes() >= needed)
    except (RuntimeError, NotImplementedError):
        return False


def memory(tensor: Any) -> int:
    """Returns the address of a tensor's memory. The address is valid only while the tensor lives."""
    return int(tensor.untyped_storage().data_ptr())


def fingerprint(tensor: Any) -> tuple[Any, ...] | None:
    """Returns the tensor's size and some of its bytes; `None` if the tensor is empty or not contiguous."""
    size = tensor.numel() * tensor.element_size()
    if not size or not tensor.is_contiguous():
        return None
    start, apart = tensor.data_ptr(), max(1, size // PIECES)
    pieces = [ctypes.string_at(start + at, min(PIECE_BYTES, size - at)) for at in range(0, size, apart)]
    return (size, *pieces)


def digest(given: list[Any]) -> str | None:
    """Returns a hash of the tensors' bytes. Of a large tensor, only evenly spaced pieces are hashed."""
    found = hashlib.sha1(usedforsecurity=False)
    seen = False
    for tensor in given:
        size = tensor.numel() * tensor.element_size()
        if not size or not tensor.is_contiguous():
            continue
        start, seen = tensor.data_ptr(), True
        apart, length = (size, size) if size <= DIGEST_BYTES else (size // 64, DIGEST_BYTES // 64)
        found.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        for at in range(0, size, apart):
            found.update(ctypes.string_at(start + at, min(length, size - at)))
    return found.hexdigest() if seen else None
