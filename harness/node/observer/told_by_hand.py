"""Keeps the observer from repeating events that a trainer logs by itself.

Observer and trainer write to one file, because each process has one log.
"""

from __future__ import annotations

import time
from typing import Any

from harness.node.emitter import Emitter, Moment

names: set[str] = set()  # of events that the trainer tells itself
emitter: Emitter | None = None  # the trainer's own
_ours: Emitter | None = None
_open = Emitter.open

_OF_KIND = {
    "steps": {"step"},
    "checkpoints": {"checkpoint.started", "checkpoint.committed", "checkpoint.failed"},
    "restores": {"restored"},
    "phases": {"started", "rendezvous", "phase"},
    "exits": {"exiting"},
}
_ALL = set().union(*_OF_KIND.values())


class _Joined(Emitter):
    def __init__(self, log: Emitter):
        super().__init__(None)
        self._log, self.path, self._fd = log, log.path, log._fd

    def tell(self, event: str, fields: dict[str, Any], at: Moment | None = None) -> int:
        return time.monotonic_ns() if event in _OF_KIND["phases"] else self._log.tell(event, fields, at)

    def close(self) -> None:
        """Closes nothing, because the observer still writes to the file."""


def open_ours(**identity: Any) -> Emitter:
    global _ours
    _ours = _open("trainer", **identity)
    return _ours


def _open_theirs(cls: type[Emitter], role: str, **identity: Any) -> Emitter:
    global emitter
    if role != "trainer":
        return _open(role, **identity)
    kinds = identity.get("tells")
    names.update(_ALL if kinds is None else {name for kind in kinds for name in _OF_KIND.get(kind, ())})
    emitter = _open(role, **identity) if _ours is None else _Joined(_ours)
    return emitter


def notice() -> None:
    """Hooks `Emitter.open`, so that the observer notices when the trainer opens an event log of its own."""
    Emitter.open = classmethod(_open_theirs)  # type: ignore[method-assign, assignment, arg-type]
