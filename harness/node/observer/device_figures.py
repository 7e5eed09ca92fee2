"""Figures that a device computes, on their way to the host while it goes on."""

from __future__ import annotations

from typing import Any

from harness.node.observer.watch import Later


class Arriving(Later):
    """The sum of figures on a device, on its way to the host."""

    def __init__(self, torch: Any, figures: list[Any], more: float):
        with torch.no_grad():
            there = torch.stack([figure.reshape(()) for figure in figures]).sum()
            self._here = torch.empty((), dtype=there.dtype, pin_memory=True)
            self._here.copy_(there, non_blocking=True)
        self._event, self._more = torch.cuda.Event(), more
        self._event.record(torch.cuda.current_stream(there.device))

    def ready(self) -> bool:
        return bool(self._event.query())

    def value(self) -> float:
        self._event.synchronize()
        return float(self._here) + self._more
