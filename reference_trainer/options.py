"""The trainer's command line."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, fields

from reference_trainer.preemption import PROVIDERS

EXIT_USAGE = 2


class BadInput(ValueError):
    """What was asked for can't be done; the message shows what, and what can."""


@dataclass(frozen=True)
class Options:
    """What `python -m reference_trainer.train --help` explains."""

    steps: int = 200
    seed: int = 0
    data: str | None = None
    read_ahead: int = 8
    data_patience_s: float = 20.0
    device: str = "auto"
    precision: str = "auto"
    global_batch: int = 16
    accumulate: int = 1
    layers: int = 5
    heads: int = 4
    width: int = 128
    context: int = 64
    dropout: float = 0.0
    lr: float = 3e-3
    warmup: int = 20
    clip: float = 1.0
    checkpoint_dir: str = "checkpoints"
    staging_dir: str | None = None
    checkpoint_every: int = 20
    checkpoint_every_s: float = 0.0
    keep: int = 3
    metadata: str = "auto"
    poll_s: float = 1.0
    nonfinite: str = "skip"
    divergence: str = "go-back"
    memory_leak: str = "restart"
    layer_norms_every: int = 0
    check_replicas_every: int = 10
    hang_floor_s: float = 5.0
    hang_factor: float = 20.0
    startup_s: float = 120.0
    join_timeout_s: float = 600.0
    straggler_factor: float = 1.5
    exclude_stragglers: int = 0
    collective_timeout_s: float = 30.0
    log_every: int = 20


_HELP = {
    "steps": "optimizer steps in all, counted from the very first start",
    "seed": "decides initial weights and data order",
    "data": "a file or folder to train on (default: the source of Python's standard library)",
    "read_ahead": "batches that are read before they are needed; 0: each one is read when it is needed",
    "data_patience_s": "seconds to wait for a bad shard before it stops; the other ranks wait for collective_timeout_s",
    "device": "auto takes a GPU if there is one for each rank of the node",
    "precision": "number format of forward and backward pass; auto is bf16 on a GPU and fp32 elsewhere",
    "global_batch": "sequences a step over all ranks, kept whatever the number of ranks",
    "accumulate": "pieces each rank cuts its share of the batch into, one backward pass each",
    "layers": "transformer blocks; the default model has 1.0 M parameters",
    "heads": "attention heads, a divisor of the width",
    "width": "size of the residual stream",
    "context": "bytes a sequence",
    "dropout": "probability of dropping a residual activation",
    "lr": "peak learning rate; cosine decay to a tenth of it at the last step",
    "warmup": "steps of linear warm-up",
    "clip": "largest norm of the gradient",
    "checkpoint_dir": "a folder that every node sees, or an fsspec URL",
    "staging_dir": "folder on this node's own disk, where checkpoints are written first; a URL needs one",
    "checkpoint_every": "steps between checkpoints",
    "checkpoint_every_s": "seconds between checkpoints, instead of steps; 0: --checkpoint-every counts",
    "keep": "verified checkpoints to keep",
    "metadata": "whose metadata endpoint to ask for an eviction notice",
    "poll_s": "seconds between two such questions",
    "nonfinite": "what to do about a loss or gradient that is not finite: skip the update, or stop the job",
    "divergence": "what to do about a spike of the loss that does not pass: go back before it, or nothing",
    "memory_leak": "what to do when the memory of a rank grows and will soon be full: save and start anew, or nothing",
    "layer_norms_every": "steps between two events with the norms of each layer; 0: only when the loss spikes",
    "check_replicas_every": "steps between two comparisons of the ranks' weights; 0: they are never compared",
    "hang_floor_s": "never call it a hang before so many seconds without a step",
    "hang_factor": "call it a hang after so many times the median step",
    "startup_s": "call it a hang when the first step takes longer than so many seconds",
    "join_timeout_s": "seconds a node waits until there are enough nodes; then the job ends, and says how many came",
    "straggler_factor": "a rank that computes so many times longer than usual reports itself",
    "exclude_stragglers": "after so many such reports in a row the slow rank's node leaves the job; 0: it never does",
    "collective_timeout_s": "seconds after which a collective gives up on a silent peer",
    "log_every": "steps between two lines of progress",
}
_CHOICES = {
    "device": ("auto", "cpu", "cuda"),
    "precision": ("auto", "bf16", "fp16", "fp32"),
    "metadata": PROVIDERS,
    "nonfinite": ("skip", "stop"),
    "divergence": ("go-back", "ignore"),
    "memory_leak": ("restart", "ignore"),
}
_TYPES = {"int": int, "float": float, "str": str, "str | None": str}
_MAY_BE_ZERO = {
    *("read_ahead", "data_patience_s", "check_replicas_every", "layer_norms_every", "checkpoint_every_s"),
    *("exclude_stragglers", "seed", "dropout", "warmup"),
}


def parse(arguments: list[str] | None = None) -> Options:
    """Options from the command line. A mistake ends the process with one message and exit code 2."""
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
            choices=_CHOICES.get(option.name),
            help=_HELP[option.name],
        )
    options = Options(**vars(parser.parse_args(arguments)))
    for option in fields(Options):
        value = getattr(options, option.name)
        least = 0 if option.name in _MAY_BE_ZERO else None
        if isinstance(value, int | float) and (value < 0 or (value == 0 and least is None)):
            flag = "--" + option.name.replace("_", "-")
            parser.error(f"{flag} {value}: must be {'at least' if least == 0 else 'greater than'} 0")
    if options.width % options.heads:
        parser.error(f"--width {options.width}: must be a multiple of --heads {options.heads}")
    if not options.dropout < 1:
        parser.error(f"--dropout {options.dropout}: must be below 1")
    if options.data and not os.path.exists(options.data):
        parser.error(f"--data {options.data}: no such file or folder")
    if "://" in options.checkpoint_dir and not options.staging_dir:
        parser.error(f"--checkpoint-dir {options.checkpoint_dir}: a URL also needs --staging-dir, a local folder")
    return options
