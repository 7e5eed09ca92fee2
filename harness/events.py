"""Provides the `Emitter` of `harness.node.emitter`, with which a trainer logs its events, as
`harness.events.Emitter`."""

from harness.node.emitter import EXIT_LEFT, TELLS, Emitter, abnormal, memory, nvml, usage

__all__ = ["EXIT_LEFT", "TELLS", "Emitter", "abnormal", "memory", "nvml", "usage"]
