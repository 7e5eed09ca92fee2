"""Collects the state for a checkpoint, from which training can continue in the same way with any world size."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from reference_trainer.checkpoint import State
from reference_trainer.options import BadInput
from reference_trainer.precision import Precision

CPU_RNG_BYTES = torch.get_rng_state().numel()


def seed_everything(seed: int, rank: int, step: int) -> None:
    mixed = int(np.random.SeedSequence([seed, rank, step]).generate_state(1)[0])
    random.seed(mixed)
    np.random.seed(mixed)
    torch.manual_seed(mixed)


def capture(
    model: nn.Module,
    optimizer: Optimizer,
    schedule: LRScheduler,
    precision: Precision,
    step: int,
    identity: dict[str, Any],
    divergence: dict[str, Any] | None = None,
    alone: bool = False,
) -> State:
    """Returns the state after `step` steps as a flat dictionary.

    All ranks must call `capture` together, because it gathers the random state of every rank. With `alone`, a single
    rank can call `capture`, and the captured state holds no random state.
    """
    state: State = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    of_optimizer = optimizer.state_dict()
    # One long vector for each kind of state: a file format that keeps an archive for each tensor reads four
    # times as long otherwise, and a restart waits for that.
    per_parameter = of_optimizer["state"].values()
    for kind in next(iter(per_parameter), ()):
        state[f"optimizer/{kind}"] = torch.cat([entries[kind].flatten() for entries in per_parameter])
    if not alone:
        state["rng"] = gather(_rng_state())
    progress = {
        "step": step,  # also the data cursor: the order of the data is a function of seed and step alone
        "param_groups": of_optimizer["param_groups"],
        "schedule": schedule.state_dict(),
        "precision": precision.state(),
        "identity": identity,
        "divergence": divergence or {},  # what is usual, and which samples were left out
    }
    state["progress"] = json.dumps(progress)  # text: readable without unpickling anything, floats exact
    return state


def apply(
    state: State,
    model: nn.Module,
    optimizer: Optimizer,
    schedule: LRScheduler,
    precision: Precision,
    identity: dict[str, Any],
) -> dict[str, Any]:
    """Restores a captured state, and returns the state of `Divergence`. Raises `BadInput` if the state comes from
    another job."""
    progress = json.loads(state["progress"])
    if progress["identity"] != identity:
        raise BadInput(f"this checkpoint belongs to another job: {progress['identity']}; this one is {identity}")
    model.load_state_dict({name: state[f"model/{name}"] for name in model.state_dict()})
    parameters = list(model.parameters())
    per_parameter: dict[int, dict[str, Tensor]] = {index: {} for index in range(len(parameters))}
    for name in (name for name in state if name.startswith("optimizer/")):
        vector = state[name]
        of_scalars = vector.numel() == len(parameters)  # the step counts
        parts = vector.split([1 if of_scalars else parameter.numel() for parameter in parameters])
        for index, (part, parameter) in enumerate(zip(parts, parameters, strict=True)):
            value = part.reshape(()) if of_scalars else part.view_as(parameter)
            per_parameter[index][name.removeprefix("optimizer/")] = value.clone()
    rates = [group["initial_lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict({"state": per_parameter, "param_groups": progress["param_groups"]})
    schedule.load_state_dict(progress["schedule"])
    take_rates(rates, optimizer, schedule)
    precision.restore(progress.get("precision", {}))
    if "rng" in state:
        _restore_rng(state["rng"], identity["seed"], progress["step"])
    divergence: dict[str, Any] = progress.get("divergence", {})
    return divergence


def take_rates(rates: list[float], optimizer: Optimizer, schedule: LRScheduler) -> None:
    """Sets the learning rates that this process was started with, because a checkpoint holds the rates of an earlier
    start."""
    if schedule.base_lrs != rates:
        print(f"the learning rate is {rates[0]:g} from now on; it was {schedule.base_lrs[0]:g} when this was saved")
    for group, before, rate in zip(optimizer.param_groups, schedule.base_lrs, rates, strict=True):
        group["initial_lr"], group["lr"] = rate, group["lr"] * (rate / before)
    schedule.base_lrs = [*rates]


def _rng_state() -> Tensor:
    parts = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        parts.append(torch.cuda.get_rng_state())
    return torch.cat(parts)


def gather(mine: Tensor) -> Tensor:
    """Gathers a tensor of the shape (n,) from each rank into a tensor of the shape (world, n) on every rank."""
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    return torch.stack(rows)


def _restore_rng(rows: Tensor, seed: int, step: int) -> None:
    rank = dist.get_rank()
    if rows.shape != (dist.get_world_size(), _rng_state().numel()):
        seed_everything(seed, rank, step)  # another world: nobody's old random state belongs to anybody
        return
    # Clones: torch crashes on a state that is a view into something larger.
    torch.set_rng_state(rows[rank][:CPU_RNG_BYTES].clone())
    if torch.cuda.is_initialized():
        torch.cuda.set_rng_state(rows[rank][CPU_RNG_BYTES:].clone())
