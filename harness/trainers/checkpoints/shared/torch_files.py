"""Which files `torch.save` wrote."""

from __future__ import annotations

from harness.trainers.checkpoints.shared.place import CheckpointFolder

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar", ".pkl", ".state", ".checkpoint")
_BEGINS = (b"PK\x03\x04", b"\x80\x02")  # an archive, or a pickle as older versions write it


def is_one(place: CheckpointFolder, path: str) -> bool:
    """By the name, or by how it begins. An empty or half-written file is one, too, if its name says so."""
    return path.endswith(SUFFIXES) or place.read(path, 4).startswith(_BEGINS)
