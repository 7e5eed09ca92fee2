"""Epochs on a StatefulDataLoader, saved after each, as the README of torchdata shows it.

    python train.py --epochs 4 --checkpoints checkpoints

It goes on from the newest checkpoint that is there.
"""

import argparse
import os
import pathlib

import torch
from torch import nn
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(6400, 32, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].sin().sum(1, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--checkpoints", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    options = parser.parse_args()
    options.checkpoints.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(2)
    loader = StatefulDataLoader(dataset(), batch_size=256, shuffle=True, generator=order)
    step = done = 0
    saved = max(options.checkpoints.glob("*.pt"), key=lambda path: int(path.stem), default=None)
    if saved:
        state = torch.load(saved, weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step, done = int(saved.stem), state["epochs"]

    for epoch in range(done, options.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            step += 1
        path = options.checkpoints / f"{step}.pt"
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"loader": loader.state_dict(), "epochs": epoch + 1}
        torch.save(state, path.with_suffix(".tmp"))
        os.replace(path.with_suffix(".tmp"), path)
        print(f"epoch {epoch + 1} step {step}", flush=True)


if __name__ == "__main__":
    main()
