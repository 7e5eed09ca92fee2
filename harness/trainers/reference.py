"""The reference trainer, which comes with the harness (in YAML `trainer: reference`)."""

import itertools
import pathlib
from collections.abc import Iterator, Sequence

from harness.backends.contract import Launch
from harness.node.emitter import TELLS, Tell
from harness.trainers.contract import Path, Trainer, Workload
from harness.trainers.shared import placeholders
from harness.trainers.shared.custom import known, numbered
from harness.trainers.shared.stores import DIRECTORY, load_store

STORE_PORT = 29400
GLOBAL_BATCH = 16  # the trainer's own default
_ROOT = pathlib.Path(__file__).resolve().parents[2]


class ReferenceTrainer(Trainer):
    """Trains a small language model. A launcher restarts its workers; a rendezvous store runs outside of the nodes."""

    steps = 200
    phases = (
        *("startup", "rendezvous", "restore", "next_batch", "all_reduce", "drain"),
        *("checkpoint.snapshot", "checkpoint.write", "checkpoint.shard_written"),
        *("checkpoint.before_publish", "checkpoint.publish"),
    )

    def launch(self, workload: Workload, run_id: str, seed: int) -> Launch:
        values = known(workload, run_id, seed)
        command = placeholders.fill((*_launcher(workload, run_id), *_training(workload, seed)), values)
        env, on_nodes, on_control = placeholders.fill_variables(workload.env, values)
        store: tuple[str, ...] = ("{python}", "-m", "reference_trainer.store")
        store += ("--host", "{control}", "--port", str(STORE_PORT))
        if workload.checkpoint.store != DIRECTORY:
            beside = load_store(workload.checkpoint.store)
            command, store = (*beside.around, *command), (*beside.server, *store)
        return Launch((*on_nodes, *command), workload.nodes, workload.ranks_per_node, env, (*on_control, *store))

    def also_with(self, workload: Workload, words: Sequence[str]) -> Workload:
        return workload.model_copy(update={"args": [*workload.args, *words]})

    def problems(self, workload: Workload) -> Iterator[tuple[Path, str]]:
        batch = _global_batch(workload.args)
        if batch is not None and batch < workload.world_size:
            ranks = f"{workload.world_size} ranks share {batch} sequences a step, and each needs one at least"
            yield ("args",), f'{ranks}: write --global-batch with a larger number, like [--global-batch, "128"]'
        words = {("env", name): value for name, value in workload.env.items()} | numbered("args", workload.args)
        for place, word in words.items():
            unfit = "{scenario_dir} is for other trainers" if "scenario_dir" in placeholders.names_in(word) else None
            if why := placeholders.unknown_in(word) or unfit:
                yield place, why

    def declares(self) -> frozenset[Tell]:
        return frozenset(TELLS) - {"samples"}  # but their places in the shuffled order

    def files(self) -> list[pathlib.Path]:
        rooms = (_ROOT / "reference_trainer", _ROOT / "harness" / "node" / "emitter")
        return [file for room in rooms for file in sorted(room.glob("*.py"))]


def _global_batch(args: Sequence[str]) -> int | None:
    told = [word for option, word in itertools.pairwise(args) if option == "--global-batch"]
    told += [word.partition("=")[2] for word in args if word.startswith("--global-batch=")]
    try:
        return int(told[-1]) if told else GLOBAL_BATCH
    except ValueError:
        return None


def _launcher(workload: Workload, run_id: str) -> tuple[str, ...]:
    return (
        *("{python}", "-m", "reference_trainer.launch"),
        *("--nnodes", f"{workload.min_nodes}:{workload.max_nodes}"),
        *("--nproc-per-node", str(workload.ranks_per_node)),
        *("--rdzv-endpoint", f"{{control}}:{STORE_PORT}"),
        *("--rdzv-id", run_id),
        *("--local-addr", "{address}"),
        *(("--node-index", "{index}") if workload.max_nodes < workload.nodes else ()),
        "--",
    )


def _training(workload: Workload, seed: int) -> tuple[str, ...]:
    saved = workload.checkpoint
    place: tuple[str, ...] = ("--checkpoint-dir", "{run_dir}/checkpoints")
    if saved.store != DIRECTORY:
        staging = "{run_dir}/staging/{index}-{incarnation}"  # a new node comes with an empty disk
        place = ("--checkpoint-dir", load_store(saved.store).place, "--staging-dir", staging)
    rhythm = ("--checkpoint-every", str(saved.every_steps))
    if saved.every is not None:
        rhythm = ("--checkpoint-every-s", f"{saved.every.s:g}")
    return (
        *("--steps", str(workload.steps)),
        *("--seed", str(seed)),
        *place,
        *rhythm,
        *("--keep", str(saved.keep)),
        *(("--data", "{run_dir}/data") if workload.data else ()),
        *workload.args,
    )


TRAINER = ReferenceTrainer
