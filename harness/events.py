"""Provides the `Emitter`, with which a trainer logs its events: `from harness.events import Emitter` (see
`harness.node.emitter`)."""

from harness.node.emitter import EXIT_LEFT, TELLS, Emitter, abnormal, memory, nvml, usage

__all__ = ["EXIT_LEFT", "TELLS", "Emitter", "abnormal", "memory", "nvml", "usage"]
