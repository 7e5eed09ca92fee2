"""The source that a node runs: the harness refuses a node whose source is another one than its own."""

from __future__ import annotations

import hashlib
import pathlib

_SOURCE = (
    "reference_trainer/*.py",
    "harness/backends/contract.py",
    "harness/backends/agent/**/*.py",
    "harness/emitter/*.py",
    "harness/errors.py",
    "harness/events.py",
)


def source_digest() -> str:
    """Digest of the source that an image holds: an image built from another one proves nothing about this one."""
    root = pathlib.Path(__file__).resolve().parents[3]
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _SOURCE for path in root.glob(pattern)):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
