"""Indices in their order, written shorter: `[first, count]` of neighbours, `[first, count, stride]` of others."""

from __future__ import annotations


def runs(indices: list[int]) -> list[list[int]]:
    """The shortest runs from left to right; a stride is only written where it saves something (three or more)."""
    found: list[list[int]] = []
    at = 0
    while at < len(indices):
        count, stride = _run(indices, at)
        if stride == 1 or count == 1:
            found.append([indices[at], count])
        elif count >= 3 and stride > 0:
            found.append([indices[at], count, stride])
        else:
            count = 1
            found.append([indices[at], 1])
        at += count
    return found


def _run(indices: list[int], at: int) -> tuple[int, int]:
    """How many from here on are equally far apart, and how far."""
    if at + 1 == len(indices):
        return 1, 1
    stride, count = indices[at + 1] - indices[at], 2
    while at + count < len(indices) and indices[at + count] - indices[at + count - 1] == stride:
        count += 1
    return count, stride
