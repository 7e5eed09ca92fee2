"""A trainer that accelerate starts, in YAML for example `trainer: {accelerate: train.py, args: [--epochs, "1"]}`."""

from collections.abc import Mapping

from pydantic import Field

from harness.trainers.contract import WORDS_MAX, Path, Word, Workload
from harness.trainers.shared import rendezvous_settings
from harness.trainers.shared.custom import Command, numbered
from harness.trainers.shared.scripted import ScriptTrainer


class AccelerateTrainer(ScriptTrainer):
    """Runs a script with `accelerate launch`, which starts torch's elastic launcher."""

    fixed_size = True

    accelerate: Word = Field(min_length=1, description="A script beside the scenario, or a module: -m package.train")
    launch_args: list[Word] = Field(
        ["--mixed_precision", "no", "--dynamo_backend", "no"],
        max_length=WORDS_MAX,
        description="More for accelerate launch itself: --use_fsdp, --config_file, …",
    )
    max_restarts: int = rendezvous_settings.MAX_RESTARTS
    rdzv_conf: dict[rendezvous_settings.Option, int | float] = Field({}, description="More of --rdzv_conf, in seconds.")

    def commands(self, workload: Workload, run_id: str) -> tuple[Command, Command]:
        command = (
            *(self.interpreter, "-m", "accelerate.commands.launch"),
            *(("--multi_gpu",) if workload.world_size > 1 else ()),  # its word for torch's launcher, on CPUs, too
            *("--num_machines", str(workload.nodes), "--machine_rank", "{index}"),
            *("--num_processes", str(workload.world_size)),
            *("--rdzv_backend", "c10d", "--main_process_ip", "{control}"),
            *("--main_process_port", str(rendezvous_settings.PORT)),
            *("--rdzv_conf", rendezvous_settings.options(self.rdzv_conf)),
            *("--max_restarts", str(self.max_restarts), "--monitor_interval", rendezvous_settings.MONITOR_INTERVAL_S),
            *("--log_dir", rendezvous_settings.LOGS),
            *self.launch_args,
            *self.script(),
        )
        return command, rendezvous_settings.store(self.interpreter)

    def settings(self, workload: Workload) -> Mapping[str, str]:
        return {**rendezvous_settings.ENVIRONMENT, "PET_LOCAL_ADDR": "{address}", "PET_RDZV_ID": "{run_id}"}

    def words(self) -> dict[Path, str]:
        return super().words() | numbered("launch_args", self.launch_args)


TRAINER = AccelerateTrainer
