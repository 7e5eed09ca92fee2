"""A job whose ranks hold parts of the model, as people write it; nothing of the harness is in it.

    torchrun --nproc-per-node 4 parallel_trainer.py --layout tp --checkpoints checkpoints

`--layout`: two groups of replicas (dp) of two tensor-parallel ranks (tp), of two experts (ep), or of two pipeline
stages (pp). The first rank of each part saves it. `--restart-layout dp` resumes with four whole replicas. `--broken`:
what is wrong with the resume; the bug shows only where ranks differ.
"""

import argparse
import pathlib
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

PARTS, WIDTH, HIDDEN, BATCH = 2, 16, 32, 16
dropout = 0.1
BROKEN = (
    "equal_random_state",
    "other_random_state",
    "older_part",
    "optimizer_lost",
    "optimizer_swapped",
    "part_lost",
    "parts_in_wrong_order",
    "stale_average",
    "schedule_ahead",
    "samples_by_rank",
)


class Sum(torch.autograd.Function):
    """The sum over a group, whose gradient is the same on all ranks."""

    @staticmethod
    def forward(context: Any, mine: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        total = mine.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class SumOfGradients(torch.autograd.Function):
    """The same values; their gradient is the sum over a group."""

    @staticmethod
    def forward(context: Any, mine: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        context.group = group
        return mine.view_as(mine)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradients[0].clone()
        dist.all_reduce(total, group=context.group)
        return total, None


class Parts(nn.Module):
    """A layer that all ranks hold, and this rank's part: some hidden units, or an expert, which has a weight of its own
    for each sample."""

    def __init__(
        self,
        part: int,
        parts: int,
        group: dist.ProcessGroup,
        own: torch.Generator,
        same: torch.Generator,
        experts: bool,
    ):
        super().__init__()
        torch.manual_seed(1)
        self.shared = nn.Linear(WIDTH, WIDTH)
        torch.manual_seed(2)
        up, down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, 1, bias=False)
        units = slice(part * HIDDEN // parts, (part + 1) * HIDDEN // parts)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN // parts), nn.Linear(HIDDEN // parts, 1, bias=False)
        with torch.no_grad():
            self.up.weight.copy_(up.weight[units])
            self.up.bias.copy_(up.bias[units])
            self.down.weight.copy_(down.weight[:, units])
        self.group, self.own, self.same = group, own, same
        self.expert = part if experts else None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        shared = dropped(self.shared(inputs), self.same)
        mine = dropped(self.up(SumOfGradients.apply(shared, self.group)).tanh(), self.own)
        out = self.down(mine)
        if self.expert is not None:
            out = out * shared.softmax(1)[:, self.expert : self.expert + 1]
        return Sum.apply(out, self.group)


def dropped(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return values * (torch.rand(values.shape, generator=generator) >= dropout)


def stage_of(part: int) -> nn.Module:
    torch.manual_seed(3 + part)
    first = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh())
    return nn.Sequential(nn.Linear(HIDDEN, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)) if part else first


def newest(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the finished saves, the oldest first."""
    return sorted(folder.glob("step-*/"), key=lambda save: int(save.name.removeprefix("step-")))


def merged(states: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The whole of some parts: hidden units one after the other."""
    along = {"up.weight": 0, "up.bias": 0, "down.weight": 1}
    first = states[0]
    return {
        name: torch.cat([state[name] for state in states], along[name]) if name in along else first[name]
        for name in first
    }


def whole(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A save of one part that holds all of them."""
    names = [*parts[0]["model"]]
    optimizer = parts[0]["optimizer"]
    moments = [
        [{name: part["optimizer"]["state"][at][kind] for at, name in enumerate(names)} for part in parts]
        for kind in ("exp_avg", "exp_avg_sq")
    ]
    state = {
        at: {"step": optimizer["state"][at]["step"]}
        | {kind: merged(each)[name] for kind, each in zip(("exp_avg", "exp_avg_sq"), moments, strict=True)}
        for at, name in enumerate(names)
    }
    return {
        **parts[0],
        "model": merged([part["model"] for part in parts]),
        "average": merged([part["average"] for part in parts]),
        "optimizer": {"state": state, "param_groups": optimizer["param_groups"]},
    }


def resumed(
    bug: str,
    saves: list[pathlib.Path],
    part: int,
    parts: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    own: torch.Generator,
    same: torch.Generator,
) -> tuple[int, dict[str, torch.Tensor]]:
    """Loads the newest save; returns its step and the average of the weights."""
    state = state_of(saves[-2] if bug == "older_part" and part else saves[-1], part, parts)
    fresh = {name: value.detach().clone() for name, value in model.named_parameters()}
    if bug == "parts_in_wrong_order":
        state["model"]["up.weight"] = state["model"]["up.weight"].roll(HIDDEN // PARTS, 0)
    model.load_state_dict(fresh if bug == "part_lost" and part else state["model"])
    if bug == "optimizer_swapped":
        optimizer.load_state_dict(torch.load(saves[-1] / f"part{1 - part}.pt")["optimizer"])
    elif not (bug == "optimizer_lost" and part):
        optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    if bug == "schedule_ahead":
        schedule.step()
    whose = 0 if bug == "equal_random_state" else dist.get_rank()
    random = torch.load(saves[-1] / f"random{whose}.pt")
    own.set_state(random["own"])
    if not (bug == "other_random_state" and part):
        same.set_state(random["same"])
    now = {name: value.detach().clone() for name, value in model.named_parameters()}
    step = torch.load(saves[-1] / "part0.pt")["step"]
    return step, now if bug == "stale_average" else state["average"]


def state_of(save: pathlib.Path, part: int, parts: int) -> dict[str, Any]:
    files = sorted(save.glob("part*.pt"))
    if len(files) == parts:
        return torch.load(save / f"part{part}.pt")
    return whole([torch.load(file) for file in files])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--layout", choices=["tp", "ep", "pp"], default="tp")
    parser.add_argument("--restart-layout", choices=["dp"])
    parser.add_argument("--broken", choices=BROKEN, default="")
    parser.add_argument("--steps", type=int, default=75)
    options = parser.parse_args()
    bug = options.broken
    if options.restart_layout:  # other layouts draw other random numbers
        global dropout
        dropout = 0.0
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    saves = newest(options.checkpoints)
    parts = 1 if saves and options.restart_layout else PARTS
    if options.layout == "pp":
        mesh = init_device_mesh("cpu", (parts, world // parts), mesh_dim_names=("pp", "dp"))
    else:
        mesh = init_device_mesh("cpu", (world // parts, parts), mesh_dim_names=("dp", options.layout))
    part, replica = mesh.get_local_rank(options.layout), mesh.get_local_rank("dp")
    own, same = torch.Generator().manual_seed(10 + rank), torch.Generator().manual_seed(100 + replica)
    model, learn = built(options.layout, mesh, part, parts, own, same)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 20))
    average = {name: value.detach().clone() for name, value in model.named_parameters()}

    step = 0
    if saves:
        step, average = resumed(bug, saves, part, parts, model, optimizer, schedule, own, same)

    inputs = torch.randn(options.steps * BATCH, WIDTH, generator=torch.Generator().manual_seed(7))
    dataset = TensorDataset(inputs, inputs.cos().sum(1, keepdim=True))
    by_rank = bug == "samples_by_rank" and saves
    shares, share = (world, rank) if by_rank else (world // parts, replica)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(dataset, shares, share)
    for number, (batch, targets) in enumerate(DataLoader(dataset, BATCH // shares, sampler=sampler)):
        if number < step:
            continue
        optimizer.zero_grad()
        learn(batch, targets)
        for gradient in [each.grad for each in model.parameters() if each.grad is not None]:
            dist.all_reduce(gradient, group=mesh.get_group("dp"))
            gradient /= world // parts
        optimizer.step()
        schedule.step()
        for name, value in model.named_parameters():
            average[name].lerp_(value.detach(), 0.1)
        step += 1
        time.sleep(0.05)
        if step % 10 == 0:
            save(options.checkpoints, step, part, replica, own, same, model, optimizer, schedule, average)
    dist.destroy_process_group()


def built(
    layout: str, mesh: DeviceMesh, part: int, parts: int, own: torch.Generator, same: torch.Generator
) -> tuple[nn.Module, Callable[[torch.Tensor, torch.Tensor], None]]:
    """Returns this rank's part of the model, and what one batch does to its gradients."""
    if layout == "pp":
        stage_model = stage_of(part)
        stage = PipelineStage(stage_model, part, parts, torch.device("cpu"), group=mesh.get_group("pp"))
        pipeline = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
        return stage_model, lambda batch, targets: pipeline.step(target=targets) if part else pipeline.step(batch)
    model = Parts(part, parts, mesh.get_group(layout), own, same, layout == "ep")
    return model, lambda batch, targets: nn.functional.mse_loss(model(batch), targets).backward()


def save(
    folder: pathlib.Path,
    step: int,
    part: int,
    replica: int,
    own: torch.Generator,
    same: torch.Generator,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    average: dict[str, torch.Tensor],
) -> None:
    """Writes elsewhere, and takes its name when all ranks are done."""
    unfinished = folder / f"unfinished-{step}"
    unfinished.mkdir(parents=True, exist_ok=True)
    torch.save({"own": own.get_state(), "same": same.get_state()}, unfinished / f"random{dist.get_rank()}.pt")
    if replica == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "average": average}
        torch.save({**state, "schedule": schedule.state_dict(), "step": step}, unfinished / f"part{part}.pt")
    dist.barrier()
    if dist.get_rank() == 0:
        unfinished.rename(folder / f"step-{step}")
    dist.barrier()


if __name__ == "__main__":
    main()
