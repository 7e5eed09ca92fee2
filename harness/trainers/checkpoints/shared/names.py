"""Facts that names of files and folders tell."""

from __future__ import annotations

import re

STEP_MAX = 10**9

_STEP = re.compile(
    r"(?:^|[^a-z])(?:global_?steps?|steps?|iter(?:ation)?s?|checkpoint|ckpt)[=_\-]?0*(\d{1,10})(?!\d)", re.IGNORECASE
)
_EPOCH = re.compile(r"epoch", re.IGNORECASE)
_RANK = re.compile(r"[._-]?(?:(?:mp|dp|zero_pp|pp|tp)_)*ranks?[=_\-]?\d+", re.IGNORECASE)
_TEMPORARY = re.compile(r"^\.?(?:tmp|temp)[-_.]|^\.tmp|[._-](?:tmp|temp|part|partial|incomplete|writing)(?:[-_.]|$)")
_POINTER = re.compile(r"^(?:latest|last|newest)(?:[._-].*)?$|^latest_checkpointed_iteration\.txt$", re.IGNORECASE)


def step_in(name: str) -> int | None:
    """The step that a name tells: `step-00000020`, `checkpoint-500`, `epoch=1-step=300.ckpt`, `iter_0000010`.

    `None` where it tells none; a number of an epoch is no step.
    """
    found = _STEP.findall(name)
    if not found or (len(found) == 1 and _EPOCH.search(name) and "step" not in name.lower()):
        return None
    step = int(found[-1])
    return step if step <= STEP_MAX else None


def without_rank(name: str) -> str:
    """Returns a name without the rank: the same for all ranks' files of one checkpoint."""
    return _RANK.sub("", name)


def is_temporary(path: str) -> bool:
    """Tells whether a part of the path says that it is still being written."""
    return any(_TEMPORARY.search(part) for part in path.split("/"))


def is_pointer(path: str) -> bool:
    """Tells whether it has one of the usual names of pointers to the newest checkpoint."""
    return bool(_POINTER.match(path.rpartition("/")[2]))
