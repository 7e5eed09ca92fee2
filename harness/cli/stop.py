"""What a signal asks of the run that is going; see `harness.cli.main`."""

from __future__ import annotations

from harness.run.stop import StopRequest

stop = StopRequest()
