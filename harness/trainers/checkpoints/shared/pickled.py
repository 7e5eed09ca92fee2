"""The step that a checkpoint of `torch.save` holds, read from the pickle's instructions; none of them is executed."""

from __future__ import annotations

import json
import pickletools
from collections.abc import Iterator
from typing import IO, Any

from harness.errors import FaultError
from harness.trainers.checkpoints.shared import archives
from harness.trainers.checkpoints.shared.names import STEP_MAX
from harness.trainers.checkpoints.shared.place import CheckpointFolder

PICKLE_BYTES_MAX = 4 * 2**20
KEYS = ("global_step", "step", "iteration", "iter_num", "iter", "steps", "global_steps")
_PUTS, _GETS = ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"), ("GET", "BINGET", "LONG_BINGET")


def step_in(place: CheckpointFolder, path: str) -> int | None:
    """The integer under one of `KEYS` in the outermost dictionary; `None` where there is none or the file is damaged.

    In a JSON file, the same.
    """
    try:
        if path.endswith(".json"):
            found = json.loads(place.read(path, PICKLE_BYTES_MAX))
        else:
            with place.open(path) as file:
                found = dict(_pairs(_pickle(file)))
        values = (found.get(key) for key in KEYS) if isinstance(found, dict) else ()
        return next((value for value in values if type(value) is int and 0 <= value <= STEP_MAX), None)
    except (OSError, FaultError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _pickle(file: IO[bytes]) -> bytes:
    if file.read(4) != b"PK\x03\x04":
        raise ValueError("not an archive of torch")
    entry = next((each for each in archives.entries(file) if each.name.endswith("data.pkl")), None)
    if entry is None:
        raise ValueError("not an archive of torch")
    file.seek(entry.start)
    return file.read(min(entry.end - entry.start, PICKLE_BYTES_MAX))


def _pairs(content: bytes) -> Iterator[tuple[str, int]]:
    """A text that is directly followed by an integer, outside of any inner container."""
    depth, key, memos, memo = 0, None, 0, dict[Any, str]()
    for operation, argument, _ in pickletools.genops(content):
        if pickletools.markobject in operation.stack_before:
            depth -= 1
        depth += operation.name == "MARK"
        if operation.name in _PUTS:  # a text that is met again is then only a number
            if key is not None:
                memo[memos if argument is None else argument] = key
            memos += 1
            continue
        if key is not None and depth <= 1 and type(argument) is int and "INT" in operation.name:
            yield key, argument
        is_text = isinstance(argument, str) and "UNICODE" in operation.name
        key = argument if is_text else memo.get(argument) if operation.name in _GETS else None
