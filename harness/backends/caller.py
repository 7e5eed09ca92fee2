"""The receiver of a node's verb calls: a lab, a sidecar or a helper, depending on the backend."""

from __future__ import annotations

from typing import Any, Protocol


class Caller(Protocol):
    """A receiver of calls. Once it has `ended`, the kernel has undone all its acts."""

    @property
    def ended(self) -> bool: ...

    def call(self, method: str, limit_s: float = ..., **params: Any) -> Any: ...


class NetworkCaller(Caller, Protocol):
    @property
    def control(self) -> str:
        """The address of the control host."""
