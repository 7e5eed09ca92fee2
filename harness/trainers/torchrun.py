"""A trainer that torchrun starts, in YAML for example `trainer: {torchrun: train.py, args: [--epochs, "1"]}`."""

from collections.abc import Mapping

from pydantic import Field

from harness.trainers.contract import Word, Workload
from harness.trainers.shared import rendezvous_settings
from harness.trainers.shared.custom import Command
from harness.trainers.shared.scripted import ScriptTrainer


class TorchrunTrainer(ScriptTrainer):
    """Runs a script with the `torchrun` of the script's own torch. The rendezvous store runs outside of the nodes."""

    torchrun: Word = Field(min_length=1, description="A script beside the scenario, or a module: -m package.train")
    max_restarts: int = rendezvous_settings.MAX_RESTARTS
    rdzv_conf: dict[rendezvous_settings.Option, int | float] = Field({}, description="More of --rdzv-conf, in seconds.")

    def commands(self, workload: Workload, run_id: str) -> tuple[Command, Command]:
        command = (
            *(self.interpreter, "-m", "torch.distributed.run"),
            *("--nnodes", f"{workload.min_nodes}:{workload.max_nodes}"),
            *("--nproc-per-node", str(workload.ranks_per_node)),
            *("--max-restarts", str(self.max_restarts)),
            *("--monitor-interval", rendezvous_settings.MONITOR_INTERVAL_S),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", rendezvous_settings.ENDPOINT, "--rdzv-id", run_id),
            *("--rdzv-conf", rendezvous_settings.options(self.rdzv_conf)),
            # Its own address: in a process table of its own every agent has the same number, and a node is told from
            # another by address and number alone. The others reach the store of the workers there.
            *("--local-addr", "{address}"),
            *("--log-dir", rendezvous_settings.LOGS),
            *self.script(),
        )
        return command, rendezvous_settings.store(self.interpreter)

    def settings(self, workload: Workload) -> Mapping[str, str]:
        return rendezvous_settings.ENVIRONMENT


TRAINER = TorchrunTrainer
