"""Observes how a process ends: finished, own error, or loss of a peer. A killed process cannot log its end."""

from __future__ import annotations

import atexit
import os
import re
import sys
from typing import Any

from harness.node.observer.watch import ERROR_CHARS_MAX, Watch

AFTER = "torch"

_OF_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|closed by peer|broken pipe|gloo|nccl|process group|"
    r"socket ?timeout|timed out (waiting|after)|wait timeout|watchdog|remote process|heartbeat|recv(Value)? failed|"
    r"failed to (recv|send|connect)|connectFullMesh|store",
    re.IGNORECASE,
)
_OF_BACKEND = re.compile(r"gloo/transport/|ProcessGroup(Gloo|NCCL)|\bNCCL |nccl(Remote|System|Internal)Error")
_PLACES = ("torch/distributed/", "torch/nn/parallel/", "torch/autograd/", "torch/_tensor.py")


def install(watch: Watch, _: Any) -> None:
    atexit.register(watch.guard("exits")(_exiting), watch)


def _exiting(watch: Watch) -> None:
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if watch.in_child or not (watch.active or (error is not None and "RANK" in os.environ)):
        return
    fields: dict[str, object] = {} if watch.step is None else {"step": watch.step}
    if error is None:
        watch.emit("exiting", reason="finished", **fields)
    else:
        watch.emit("exiting", reason=reason(error), code=1, error=text(error), **fields)
    watch.flush(wait=error is None)


def reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return "peer lost" if any(_of_peer(each) for each in chain(error)) else "error"


def chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.insert(0, error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def text(error: BaseException) -> str:
    first = chain(error)[0]
    return f"{type(first).__name__}: {first}"[:ERROR_CHARS_MAX]


def _of_peer(error: BaseException) -> bool:
    """Returns True if the error is the failure of a collective, which a lost peer may have caused. An error text of
    Gloo or NCCL is sufficient evidence, because the traceback of the error may end outside torch."""
    dist = sys.modules.get("torch.distributed")
    classes = tuple(
        each
        for name in ("DistBackendError", "DistNetworkError", "DistStoreError")
        if isinstance(each := getattr(dist, name, None), type)
    )
    if isinstance(error, classes):
        return True
    if not isinstance(error, RuntimeError):
        return False
    if _OF_BACKEND.search(str(error)):
        return True
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = frame.tb_frame.f_code.co_filename.replace(os.sep, "/") if frame is not None else ""
    return any(part in place for part in _PLACES) and _OF_PEER.search(str(error)) is not None
