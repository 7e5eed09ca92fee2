"""Finds a checkpoint's step by the digest of its content, which an observer on the nodes recorded at each save.

An observer's records of saves, called ledgers, are beside the run's event logs. Nodes write the ledgers and are not
trusted, so invalid ledgers are ignored.
"""

import contextlib
import functools
import pathlib
from collections.abc import Mapping, Sequence

from harness.errors import FaultError
from harness.log import untrusted_files
from harness.node.observer import checkpoint_ledger, identity
from harness.node.observer.checkpoint_ledger import BYTES_MAX, NAME, Saved
from harness.trainers.checkpoints.shared import archives
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder

FOLDER = "events"
FILES_MAX = 16  # of one checkpoint that are looked up


def step(place: CheckpointFolder, files: Sequence[str]) -> int | None:
    known = _known(place.root)
    found = (known.get(_lineage(place, file)) for file in files[:FILES_MAX] if known)
    return next((step for step in found if step is not None), None)


def _lineage(place: CheckpointFolder, file: str) -> str:
    with contextlib.suppress(OSError, FaultError, ValueError), place.open(file) as opened:
        return identity.lineage_of(archives.window(opened))
    return ""


def _known(root: pathlib.Path) -> Mapping[str, int]:
    found = dict[str, int]()
    with contextlib.suppress(OSError, FaultError):
        for path in untrusted_files.files_below(root, FOLDER):
            status = untrusted_files.status_of(root, path) if path.endswith(f"/{NAME}") else None
            if status is not None and status.st_size <= BYTES_MAX:
                found |= _steps(root, path, status.st_size, status.st_mtime_ns)
    return found


@functools.lru_cache(maxsize=64)
def _steps(root: pathlib.Path, path: str, size: int, changed_ns: int) -> Mapping[str, int]:
    with contextlib.suppress(OSError, FaultError):
        entries = checkpoint_ledger.entries_in(untrusted_files.read(root, path, BYTES_MAX)[:size])
        return {
            entry.lineage: entry.step for _, entry in entries if isinstance(entry, Saved) and entry.step is not None
        }
    return {}
