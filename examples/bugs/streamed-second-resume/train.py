"""A streamed data set whose state is saved, as the page "Stream" of datasets shows it.

    python train.py --steps 65 --checkpoints checkpoints

It goes on from the newest checkpoint that is there.
"""

import argparse
import os
import pathlib

import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=65)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--checkpoints", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    options = parser.parse_args()
    options.checkpoints.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(3200, 32, generator=torch.Generator().manual_seed(0))
    examples = {"inputs": inputs.tolist(), "target": inputs[:, :4].sin().sum(1, keepdim=True).tolist()}
    stream = Dataset.from_dict(examples).to_iterable_dataset(num_shards=8).with_format("torch")
    step = 0
    saved = max(options.checkpoints.glob("*.pt"), key=lambda path: int(path.stem), default=None)
    if saved:
        state = torch.load(saved, weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        stream.load_state_dict(state["stream"])
        step = int(saved.stem)

    for batch in DataLoader(stream, batch_size=32):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch["inputs"]), batch["target"])
        loss.backward()
        optimizer.step()
        step += 1
        if step % options.save_every == 0:
            path = options.checkpoints / f"{step}.pt"
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "stream": stream.state_dict()}
            torch.save(state, path.with_suffix(".tmp"))
            os.replace(path.with_suffix(".tmp"), path)
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step == options.steps:
            break


if __name__ == "__main__":
    main()
