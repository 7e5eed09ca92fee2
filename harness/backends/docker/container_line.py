"""Starts a container with a process of the harness, and connects to the process by the container's input and output."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

from harness.backends.docker.engine import Engine, speaking
from harness.backends.docker.request import Request
from harness.errors import BackendError
from harness.node import rpc

READY_S_MAX = 30.0


class ContainerLine(rpc.Line):
    """A connection to the harness's process in a container. The container ends when the connection ends."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        wanted: Request,
        errors: pathlib.Path,
        on_event: rpc.OnEvent = lambda _: None,
        on_end: Callable[[], None] = lambda: None,
    ):
        self.container = engine.create(name, wanted)
        self._name, self._errors = name, errors
        super().__init__(engine.attach(self.container, errors.open("ab")), on_event, on_end)
        try:
            with speaking(f"starting container {name}"):
                engine.api.start(self.container)
        except BaseException:
            self.close()
            raise

    def come_up(self) -> ContainerLine:
        if self.wait_ready(READY_S_MAX):
            return self
        self.close()
        text = self._errors.read_text(errors="replace").strip()
        late = f"container {self._name} did not come up in {READY_S_MAX:g} s"
        raise BackendError(f"{late}: {text[-1000:] or 'no message'}")
