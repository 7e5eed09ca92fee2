"""A trainer that deepspeed starts, such as `trainer: {deepspeed: train.py, args: [--deepspeed, "ds.json"]}` in YAML."""

import base64
import json

from pydantic import Field

from harness.trainers.contract import Word, Workload
from harness.trainers.shared.custom import Command
from harness.trainers.shared.scripted import ScriptTrainer

PORT = "29400"


class DeepspeedTrainer(ScriptTrainer):
    """Runs DeepSpeed's launcher on every node, as the command `deepspeed` does by ssh.

    DeepSpeed's launcher does not restart ranks: a job that loses a rank ends.
    """

    fixed_size = True

    deepspeed: Word = Field(min_length=1, description="A script beside the scenario, or a module: -m package.train")
    local_rank_arg: bool = Field(True, description="Whether the script is given --local_rank, as deepspeed does.")

    def commands(self, workload: Workload, run_id: str) -> tuple[Command, None]:
        slots = {f"node{index}": list(range(workload.ranks_per_node)) for index in range(workload.nodes)}
        command = (
            *(self.interpreter, "-m", "deepspeed.launcher.launch"),
            f"--world_info={base64.urlsafe_b64encode(json.dumps(slots).encode()).decode()}",
            *("--node_rank={index}", "--master_addr={head}", f"--master_port={PORT}"),
            *(() if self.local_rank_arg else ("--no_local_rank",)),
            *(("--module", self.as_module, *self.args) if self.as_module else self.script()),
        )
        return command, None


TRAINER = DeepspeedTrainer
