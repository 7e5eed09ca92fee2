"""A pipeline of torchdata.nodes whose Loader is saved, as its page "Getting Started" shows it.

    python train.py --steps 65 --checkpoints checkpoints

It goes on from the newest checkpoint that is there.
"""

import argparse
import os
import pathlib

import torch
import torchdata.nodes as tn
from torch import nn
from torch.utils.data import TensorDataset, default_collate
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(7680, 32, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].sin().sum(1, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=65)
    parser.add_argument("--save-every", type=int, default=40)
    parser.add_argument("--checkpoints", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    options = parser.parse_args()
    options.checkpoints.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = dataset()
    sampler = StatefulDistributedSampler(data, num_replicas=1, rank=0, shuffle=True)
    node = tn.MapStyleWrapper(map_dataset=data, sampler=sampler)
    loader = tn.Loader(tn.Mapper(tn.Batcher(node, batch_size=256), map_fn=default_collate))
    step = 0
    saved = max(options.checkpoints.glob("*.pt"), key=lambda path: int(path.stem), default=None)
    if saved:
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step = int(saved.stem)

    while step < options.steps:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            step += 1
            if step % options.save_every == 0:
                path = options.checkpoints / f"{step}.pt"
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                state["loader"] = loader.state_dict()
                torch.save(state, path.with_suffix(".tmp"))
                os.replace(path.with_suffix(".tmp"), path)
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == options.steps:
                break


if __name__ == "__main__":
    main()
