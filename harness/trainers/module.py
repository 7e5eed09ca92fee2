"""A trainer that `python -m` starts, in YAML for example `trainer: {module: package.train, args: [--epochs, "1"]}`."""

from collections.abc import Mapping

from pydantic import Field

from harness.trainers.contract import Word, Workload
from harness.trainers.shared.custom import Command
from harness.trainers.shared.scripted import ScriptTrainer

PORT = "29400"


class ModuleTrainer(ScriptTrainer):
    """Runs `python -m` once on every node, without a launcher that could restart the module."""

    module: Word = Field(pattern=r"^[A-Za-z_][\w.]*$", description="Such as package.train.")

    def commands(self, workload: Workload, run_id: str) -> tuple[Command, None]:
        return (self.interpreter, "-m", self.module, *self.args), None

    def settings(self, workload: Workload) -> Mapping[str, str]:
        """Returns the environment variables that torch's `env://` rendezvous reads."""
        job = {"MASTER_ADDR": "{head}", "MASTER_PORT": PORT, "WORLD_SIZE": "{ranks}", "NODE_RANK": "{index}"}
        return job if workload.ranks_per_node > 1 else job | {"RANK": "{index}", "LOCAL_RANK": "0"}

    @property
    def as_module(self) -> str:
        return self.module


TRAINER = ModuleTrainer
