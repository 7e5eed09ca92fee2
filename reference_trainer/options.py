"""Parses the trainer's command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from reference_trainer.preemption import PROVIDERS

EXIT_USAGE = 2


class BadInput(ValueError):
    """Raised for options or data with which training is impossible."""


def _option(default: Any, told: str, choices: Sequence[str] | None = None, may_be_zero: bool = False) -> Any:
    return field(default=default, metadata={"help": told, "choices": choices, "may_be_zero": may_be_zero})


@dataclass(frozen=True)
class Options:
    steps: int = _option(200, "optimizer steps in all, counted from the very first start")
    seed: int = _option(0, "decides initial weights and data order", may_be_zero=True)
    data: str | None = _option(None, "a file or folder to train on (default: the source of Python's standard library)")
    read_ahead: int = _option(
        8, "batches that are read before they are needed; 0: each one is read when it is needed", may_be_zero=True
    )
    data_patience_s: float = _option(
        20.0,
        "seconds to wait for a bad shard before it stops; the other ranks wait for collective_timeout_s",
        may_be_zero=True,
    )
    device: str = _option(
        "auto", "auto takes a GPU if there is one for each rank of the node", choices=("auto", "cpu", "cuda")
    )
    precision: str = _option(
        "auto",
        "number format of forward and backward pass; auto is bf16 on a GPU and fp32 elsewhere",
        choices=("auto", "bf16", "fp16", "fp32"),
    )
    global_batch: int = _option(16, "sequences a step over all ranks, kept whatever the number of ranks")
    accumulate: int = _option(1, "pieces each rank cuts its share of the batch into, one backward pass each")
    layers: int = _option(5, "transformer blocks; the default model has 1.0 M parameters")
    heads: int = _option(4, "attention heads, a divisor of the width")
    width: int = _option(128, "size of the residual stream")
    context: int = _option(16, "bytes a sequence")
    dropout: float = _option(0.0, "probability of dropping a residual activation", may_be_zero=True)
    compute_s: float = _option(
        0.04,
        "least seconds from the start of a forward pass to the first gradients that are summed: on a CPU a rank waits "
        "for what is left of them, as it would for a GPU; 0: it does not wait",
        may_be_zero=True,
    )
    lr: float = _option(1e-3, "peak learning rate; cosine decay to a tenth of it at the last step")
    warmup: int = _option(20, "steps of linear warm-up", may_be_zero=True)
    clip: float = _option(1.0, "largest norm of the gradient")
    checkpoint_dir: str = _option("checkpoints", "a folder that every node sees, or an fsspec URL")
    staging_dir: str | None = _option(
        None, "folder on this node's own disk, where checkpoints are written first; a URL needs one"
    )
    checkpoint_every: int = _option(20, "steps between checkpoints")
    checkpoint_every_s: float = _option(
        0.0, "seconds between checkpoints, instead of steps; 0: --checkpoint-every counts", may_be_zero=True
    )
    keep: int = _option(3, "verified checkpoints to keep")
    metadata: str = _option("auto", "whose metadata endpoint to ask for an eviction notice", choices=PROVIDERS)
    poll_s: float = _option(1.0, "seconds between two such questions")
    nonfinite: str = _option(
        "skip",
        "what to do about a loss or gradient that is not finite: skip the update, or stop the job",
        choices=("skip", "stop"),
    )
    divergence: str = _option(
        "go-back",
        "what to do about a spike of the loss that does not pass: go back before it, or nothing",
        choices=("go-back", "ignore"),
    )
    memory_leak: str = _option(
        "restart",
        "what to do when the memory of a rank grows and will soon be full: save and start anew, or nothing",
        choices=("restart", "ignore"),
    )
    gpu_health: str = _option(
        "leave",
        "what to do when NVML says that a GPU must be replaced: save and leave the node, only tell, or do not ask",
        choices=("leave", "tell", "ignore"),
    )
    layer_norms_every: int = _option(
        0, "steps between two events with the norms of each layer; 0: only when the loss spikes", may_be_zero=True
    )
    check_replicas_every: int = _option(
        10, "steps between two comparisons of the ranks' weights; 0: they are never compared", may_be_zero=True
    )
    recovery: str = _option(
        "restart",
        "what to do when a rank dies: start all ranks again from the newest checkpoint, or let the survivors keep "
        "their state and give it to a new process; without a survivor that is a restart, too",
        choices=("restart", "peer"),
    )
    peer_s: float = _option(10.0, "seconds that a recovery among peers may take; then all ranks start again")
    hang_floor_s: float = _option(5.0, "never call it a hang before so many seconds without a step")
    hang_factor: float = _option(20.0, "call it a hang after so many times the median step")
    section_s: float = _option(
        60.0, "call it a hang when a load, the copy for a save, or an evaluation takes longer than so many seconds"
    )
    startup_s: float = _option(120.0, "call it a hang when the first step takes longer than so many seconds")
    join_timeout_s: float = _option(
        600.0, "seconds a node waits until there are enough nodes; then the job ends, and says how many came"
    )
    straggler_factor: float = _option(
        1.5, "a rank that computes so many times longer than usual, in two windows of 20 steps in a row, reports itself"
    )
    exclude_stragglers: int = _option(
        0, "after so many such windows in a row the slow rank's node leaves the job; 0: it never does", may_be_zero=True
    )
    exclude_failing: int = _option(
        0,
        "after so many failures in a row, each within a minute of a start, a node leaves the job for good; 0: never",
        may_be_zero=True,
    )
    collective_timeout_s: float = _option(30.0, "seconds after which a collective gives up on a silent peer")
    log_every: int = _option(20, "steps between two lines of progress")


_TYPES = {"int": int, "float": float, "str": str, "str | None": str}


def parse(arguments: list[str] | None = None) -> Options:
    """Parses options from the command line. A mistake ends the process with a message and exit code 2."""
    parser = argparse.ArgumentParser(
        prog="python -m reference_trainer.train",
        description="Trains a small byte-level GPT, data-parallel, and survives what happens to it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for option in fields(Options):
        parser.add_argument(
            "--" + option.name.replace("_", "-"),
            type=_TYPES[str(option.type)],
            default=option.default,
            choices=option.metadata["choices"],
            help=option.metadata["help"],
        )
    options = Options(**vars(parser.parse_args(arguments)))
    for option in fields(Options):
        value, may_be_zero = getattr(options, option.name), option.metadata["may_be_zero"]
        if isinstance(value, int | float) and (value < 0 or (value == 0 and not may_be_zero)):
            flag = "--" + option.name.replace("_", "-")
            parser.error(f"{flag} {value}: must be {'at least' if may_be_zero else 'greater than'} 0")
    if options.width % options.heads:
        parser.error(f"--width {options.width}: must be a multiple of --heads {options.heads}")
    if not options.dropout < 1:
        parser.error(f"--dropout {options.dropout}: must be below 1")
    if options.data and not os.path.exists(options.data):
        parser.error(f"--data {options.data}: no such file or folder")
    if "://" in options.checkpoint_dir and not options.staging_dir:
        parser.error(f"--checkpoint-dir {options.checkpoint_dir}: a URL also needs --staging-dir, a local folder")
    return options
