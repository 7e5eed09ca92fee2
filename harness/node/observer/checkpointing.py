"""Holds the state that all observers of checkpoints in a process share: trained tensors, saves and restores."""

from __future__ import annotations

import functools
import os
import threading
from dataclasses import dataclass, field
from typing import Any

from harness.node.observer.checkpoint_ledger import Ledger
from harness.node.observer.live_state import Live
from harness.node.observer.observed_restores import Restores
from harness.node.observer.observed_saves import Saves
from harness.node.observer.watch import Watch


@dataclass
class Checkpointing:
    live: Live
    saves: Saves
    restores: Restores
    quiet: threading.local = field(default_factory=threading.local)  # `on`: what is saved here is told by somebody else


@functools.lru_cache(maxsize=1)
def of(watch: Watch) -> Checkpointing:
    """Returns the state that all observers of checkpoints in a process share; the first call makes the state."""
    ledger, live = Ledger(), Live()
    return Checkpointing(live, Saves(watch, ledger, live), Restores(watch, ledger, live))


def path_of(target: Any) -> str | None:
    """Returns the real path of a file, given its path or the open file; `None` for a buffer in memory or a URL."""
    name = target if isinstance(target, (str, os.PathLike)) else getattr(target, "name", None)
    name = os.fspath(name) if isinstance(name, (str, os.PathLike)) else None
    return os.path.realpath(name) if isinstance(name, str) and name and "://" not in name else None
