"""Provides the emitter for trainers: `from harness.events import Emitter` (see `harness.node.emitter`)."""

from harness.node.emitter import EXIT_LEFT, TELLS, Emitter, abnormal, memory, nvml, usage

__all__ = ["EXIT_LEFT", "TELLS", "Emitter", "abnormal", "memory", "nvml", "usage"]
