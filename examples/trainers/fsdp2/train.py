"""Fully sharded training (FSDP2) with checkpoints saved in the background, after PyTorch's FSDP2 and DCP tutorials.

    torchrun --nproc-per-node 2 train.py --steps 200 --checkpoints checkpoints

It goes on from the newest checkpoint that is there.
"""

import argparse
import pathlib
from concurrent.futures import Future

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2048, 32, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].sin().sum(1, keepdim=True))


def newest(folder: pathlib.Path) -> pathlib.Path | None:
    """The newest folder that was finished: `.metadata` is written last."""
    done = [path.parent for path in folder.glob("step-*/.metadata")]
    return max(done, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def load(path: pathlib.Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Puts the state back, and returns its step."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "step": 0}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return state["step"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--checkpoints", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    options = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = newest(options.checkpoints)
    step = load(found, model, optimizer) if found else 0

    data = dataset()
    sampler = DistributedSampler(data, seed=2)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    beside = dist.new_group(backend="gloo")  # saving in the background must not meet the training's collectives
    saving: Future | None = None
    while step < options.steps:
        epoch, skip = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(loader):
            if number < skip or step == options.steps:
                continue
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % options.save_every == 0:
                if saving:
                    saving.result()
                model_state, optimizer_state = get_state_dict(model, optimizer)
                state = {"model": model_state, "optimizer": optimizer_state, "step": step}
                saving = dcp.async_save(state, checkpoint_id=options.checkpoints / f"step-{step}", process_group=beside)
                if dist.get_rank() == 0:
                    print(f"step {step} loss {loss.item():.4f}", flush=True)
    if saving:
        saving.result()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
