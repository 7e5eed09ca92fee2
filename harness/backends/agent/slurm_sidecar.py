"""A container's sidecar on a Slurm node. The node stays when the job has gone, so it undoes all it did when it ends."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from harness.backends.agent import processes
from harness.backends.agent import slurm_storage as storage
from harness.backends.agent.net import verbs as net_verbs
from harness.backends.agent.sidecar import Sidecar
from harness.backends.agent.slurm_agent import until_told


class JobSidecar(Sidecar):
    def calls(self) -> dict[str, Callable[..., Any]]:
        return super().calls() | {"storage.examine": functools.partial(storage.examine, self._lab)}

    def _candidates(self) -> list[processes.ProcEntry]:
        """The node's network is shared with whatever else runs there: only the workers' own connections count."""
        return processes.every()

    async def serve(self) -> None:
        """Until the harness is gone, or Slurm ends the job."""
        try:
            await until_told(super().serve())
        finally:
            for disturbance in list(self._lab.disturbances):
                await net_verbs.heal(self._lab, disturbance)


if __name__ == "__main__":
    asyncio.run(JobSidecar().serve())
