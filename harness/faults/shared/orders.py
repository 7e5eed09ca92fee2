"""Orders to a trainer that damages itself on request: see `reference_trainer/damage.py` for its side."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from harness.errors import FaultError
from harness.faults.contract import Context

FOLDER = "damage"
STRUCK_S_MAX = 30.0


def environment(run_dir: pathlib.Path) -> Mapping[str, str]:
    """What a trainer must be started with so that it takes orders. Makes the folder."""
    (run_dir / FOLDER).mkdir(exist_ok=True)
    return {"CHAOS_DAMAGE": str(run_dir / FOLDER)}


def order(context: Context, rank: int, **what: Any) -> dict[str, Any]:
    """The rank does it at its next step; returns what it says it did. Raises `FaultError` for one that does not."""
    file = context.run_dir / FOLDER / f"{context.seed:016x}-{rank}.json"
    done = file.with_suffix(".done")
    file.with_suffix(".new").write_text(json.dumps({"rank": rank, **what}))
    os.replace(file.with_suffix(".new"), file)
    context.injected()
    if not context.wait(STRUCK_S_MAX, until=done.exists):
        raise FaultError(f"rank {rank} took no order: the trainer has no hook for damage (CHAOS_DAMAGE)")
    found: dict[str, Any] = json.loads(done.read_text())
    return found


def withdraw(run_dir: pathlib.Path, seed: int) -> None:
    """Orders nobody has taken are taken back. Idempotent."""
    for file in (run_dir / FOLDER).glob(f"{seed:016x}-*.json"):
        file.unlink(missing_ok=True)
