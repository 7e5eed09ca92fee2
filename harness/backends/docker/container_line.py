"""A container of ours and the line to the process in it: created, attached, started, called, ended."""

from __future__ import annotations

import pathlib
import socket
import threading
from collections.abc import Callable
from typing import Any, cast

from harness.backends.agent import rpc
from harness.backends.docker.engine import Engine, speaking
from harness.backends.docker.request import Request
from harness.errors import BackendError

READY_S_MAX = 30.0
CALL_S_MAX = 10.0


class ContainerLine:
    """`on_event` and `on_end` are called from a thread of the line. Its end is the end of the container."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        wanted: Request,
        errors: pathlib.Path,
        on_event: Callable[[rpc.Message], None] = lambda _: None,
        on_end: Callable[[], None] = lambda: None,
    ):
        self.ready: rpc.Message = {}
        self._on_event, self._on_end = on_event, on_end
        self._came_up, self._ended = threading.Event(), threading.Event()
        self.container = engine.create(name, wanted)
        stream = engine.attach(self.container, errors.open("ab"))
        self._client = rpc.Line(cast(socket.socket, stream), self._take, self._note_end)
        self._name, self._errors = name, errors
        try:
            with speaking(f"starting container {name}"):
                engine.api.start(self.container)
        except BaseException:
            self.close()
            raise

    def wait_ready(self) -> ContainerLine:
        """Until it answers. Raises `BackendError`, and ends the container, when it does not."""
        if self._came_up.wait(READY_S_MAX) and not self.ended:
            return self
        self.close()
        text = self._errors.read_text(errors="replace").strip()
        raise BackendError(
            f"container {self._name} did not come up in {READY_S_MAX:g} s: {text[-1000:] or 'no message'}"
        )

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def wait_ended(self, limit_s: float) -> bool:
        return self._ended.wait(limit_s)

    def call(self, method: str, limit_s: float = CALL_S_MAX, **params: Any) -> Any:
        return self._client.call(method, limit_s, **params)

    def close(self) -> None:
        """Ends the line, and with it the container."""
        self._client.close()

    def _take(self, event: rpc.Message) -> None:
        if event["event"] == "ready":
            self.ready = event
            self._came_up.set()
        else:
            self._on_event(event)

    def _note_end(self) -> None:
        self._on_end()
        self._ended.set()
        self._came_up.set()
