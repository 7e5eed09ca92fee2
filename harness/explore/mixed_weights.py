"""Mixes the weights of two saves, to test whether the losses of a job that loads the mixture are noticeably
different."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterator

BIG = 0.1  # least share of the largest changed file's size: smaller files hold names and numbers, not weights
_COPY_BYTES = 1 << 20
_NUMBER = re.compile(r"\d+")


def mix(newer: pathlib.Path, older: pathlib.Path) -> int:
    """Overwrites the middle half of each big file in `newer` with bytes of its counterpart in `older`, or with zeros if
    there is no counterpart. Returns how many files changed."""
    theirs = _files(older)
    pairs = [(newer / path, _counterpart(path, theirs)) for path in _files(newer)]
    pairs = [(path, other) for path, other in pairs if _mixed(path, other, write=False)]
    least = BIG * max((path.stat().st_size for path, _ in pairs), default=0)
    return sum(_mixed(path, other, write=True) for path, other in pairs if path.stat().st_size >= least)


def _files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(folder)): path for path in found}


def _counterpart(path: str, theirs: dict[str, pathlib.Path]) -> pathlib.Path | None:
    mine = _numbers(path)

    def unlike(other: str) -> tuple[int, list[int]]:
        numbers = _numbers(other)
        return sum(one != two for one, two in zip(mine, numbers, strict=True)), [-number for number in numbers]

    alike = [other for other in theirs if _NUMBER.sub("#", other) == _NUMBER.sub("#", path)]
    return theirs[min(alike, key=unlike)] if alike else None


def _numbers(path: str) -> list[int]:
    return [int(number[:18]) for number in _NUMBER.findall(path)]


def _mixed(path: pathlib.Path, other: pathlib.Path | None, write: bool) -> bool:
    differ = False
    with path.open("r+b") as mine, (other or pathlib.Path(os.devnull)).open("rb") as theirs:
        size = path.stat().st_size
        size = size if other is None else min(size, other.stat().st_size)
        for offset, length in _pieces(size // 4, size - size // 4):
            mine.seek(offset)
            theirs.seek(offset)
            new = theirs.read(length) if other else bytes(length)
            if mine.read(length) != new:
                differ = True
                mine.seek(offset)
                mine.write(new if write else b"")
    return differ


def _pieces(begin: int, end: int) -> Iterator[tuple[int, int]]:
    return ((offset, min(_COPY_BYTES, end - offset)) for offset in range(begin, end, _COPY_BYTES))
