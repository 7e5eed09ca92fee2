"""A pod of ours and the line to process 1 in it: attached, greeted, called, ended."""

from __future__ import annotations

import pathlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, cast

from harness.backends.agent import rpc
from harness.backends.kubernetes.api import Api
from harness.backends.kubernetes.stream import PodStream
from harness.errors import BackendError

ATTACH_S_MAX = 20.0
HELLO_S_MAX = 60.0
HELLO_S = 2.0  # of one try: what was said before both ends were there is lost


class PodLine:
    """`on_event` and `on_end` are called from a thread of the line. Its end is the end of the pod, for us."""

    def __init__(
        self,
        api: Api,
        pod: str,
        container: str,
        errors: pathlib.Path,
        on_event: Callable[[rpc.Message], None],
        on_end: Callable[[], None],
    ):
        """Raises `BackendError` when nobody answers there."""
        self.pod = pod
        self._on_end = on_end
        self._ended = threading.Event()
        stream = _attach(api, pod, container, errors)
        self._client = rpc.Line(cast(socket.socket, stream), on_event, self._note_end)
        try:
            self.hello = self._greet()
        except BaseException:
            self.close()
            raise

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def wait_ended(self, limit_s: float) -> bool:
        return self._ended.wait(limit_s)

    def call(self, method: str, limit_s: float = 10.0, **params: Any) -> Any:
        return self._client.call(method, limit_s, **params)

    def close(self) -> None:
        self._client.close()

    def _greet(self) -> dict[str, Any]:
        deadline = time.monotonic() + HELLO_S_MAX
        while True:
            try:
                answer: dict[str, Any] = self.call("hello", HELLO_S)
                return answer
            except BackendError:
                if self.ended or time.monotonic() > deadline:
                    raise

    def _note_end(self) -> None:
        self._ended.set()
        self._on_end()


def _attach(api: Api, pod: str, container: str, errors: pathlib.Path) -> PodStream:
    """A pod may be called running a moment before its kubelet knows the container."""
    deadline = time.monotonic() + ATTACH_S_MAX
    while True:
        try:
            return api.attach(pod, container, errors)
        except BackendError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)
