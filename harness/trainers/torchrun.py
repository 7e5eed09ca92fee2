"""A trainer that people start with torchrun: `trainer: {torchrun: train.py, args: [--epochs, "1"]}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from harness.trainers.contract import WORDS_MAX, Path, Word, Workload
from harness.trainers.shared import rendezvous
from harness.trainers.shared.custom import Command, CustomTrainer, numbered, script

Option = Annotated[str, Field(pattern=r"^[a-z_]+$")]
RESTARTS_MAX = 1_000_000


class TorchrunTrainer(CustomTrainer):
    """A script under the torchrun of its own torch, with the rendezvous store beside the nodes."""

    torchrun: Word = Field(min_length=1, description="A script beside the scenario, or a module: -m package.train")
    args: list[Word] = Field([], max_length=WORDS_MAX, description="Arguments of the script.")
    max_restarts: int = Field(3, ge=0, le=RESTARTS_MAX, description="How often workers that failed start again.")
    python: Word = Field("{python}", min_length=1, description="The interpreter that has the trainer's torch.")
    rdzv_conf: dict[Option, int | float] = Field({}, description="More of torchrun's --rdzv-conf, in seconds.")

    def commands(self, workload: Workload, run_id: str) -> tuple[Command, Command]:
        command = (
            *(self.python, "-m", "torch.distributed.run"),
            *("--nnodes", rendezvous.nodes(workload)),
            *("--nproc-per-node", str(workload.ranks_per_node)),
            *("--max-restarts", str(self.max_restarts)),
            *("--monitor-interval", rendezvous.MONITOR_INTERVAL_S),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", rendezvous.endpoint(), "--rdzv-id", run_id),
            *("--rdzv-conf", rendezvous.options(self.rdzv_conf)),
            # Its own address: in a process table of its own every agent has the same number, and a node is told from
            # another by address and number alone. The others reach the store of the workers there.
            *("--local-addr", "{address}"),
            *(("-m", self._module) if self._module else (script(self.torchrun),)),
            *self.args,
        )
        return command, rendezvous.store(self.python)

    @property
    def _module(self) -> str:
        return self.torchrun.removeprefix("-m").strip() if self.torchrun.startswith("-m ") else ""

    def settings(self) -> Mapping[str, str]:
        return rendezvous.ENVIRONMENT

    def words(self) -> dict[Path, str]:
        named: dict[Path, str] = {("torchrun",): self.torchrun, ("python",): self.python}
        return named | numbered("args", self.args)

    def scripts(self) -> list[str]:
        return [] if self._module else [self.torchrun]

    def in_words(self) -> str:
        return f"torchrun {' '.join([self.torchrun, *self.args])}"


TRAINER = TorchrunTrainer
