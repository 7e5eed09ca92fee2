"""What a trainer imports: `from harness.events import Emitter`. See `harness.emitter`."""

from harness.emitter import EXIT_LEFT, TELLS, Emitter, abnormal, memory, usage

__all__ = ["EXIT_LEFT", "TELLS", "Emitter", "abnormal", "memory", "usage"]
