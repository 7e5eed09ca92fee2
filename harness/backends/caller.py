"""Who answers the calls of a node's verbs: a lab, a sidecar or a helper, depending on the backend."""

from __future__ import annotations

from typing import Any, Protocol


class Caller(Protocol):
    """Once it has `ended`, the kernel has undone everything that was done through it."""

    @property
    def ended(self) -> bool: ...

    def call(self, method: str, limit_s: float = ..., **params: Any) -> Any: ...


class NetworkCaller(Caller, Protocol):
    @property
    def control(self) -> str:
        """The address of the control host."""
