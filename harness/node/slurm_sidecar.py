"""Disturbs the network of a Slurm node, and undoes all disturbances when it ends, because the node outlives the job."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from harness.node import processes, slurm_storage
from harness.node.net import disturbances
from harness.node.sidecar import Sidecar
from harness.node.slurm_helper import until_told


class JobSidecar(Sidecar):
    def calls(self) -> dict[str, Callable[..., Any]]:
        return super().calls() | {"storage.examine": functools.partial(slurm_storage.examine, self._lab)}

    def _candidates(self) -> list[processes.ProcEntry]:
        return processes.every()

    async def serve(self) -> None:
        try:
            await until_told(super().serve())
        finally:
            for disturbance in list(self._lab.disturbances):
                await disturbances.heal(self._lab, disturbance)


if __name__ == "__main__":
    asyncio.run(JobSidecar().serve())
