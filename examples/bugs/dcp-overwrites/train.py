"""Checkpoints of torch.distributed.checkpoint that replace each other in one folder.

    python train.py --steps 65 --checkpoints checkpoints

It goes on from the checkpoint that is there.
"""

import argparse
import pathlib

import torch
import torch.distributed.checkpoint as dcp
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=65)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--checkpoints", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    options = parser.parse_args()

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    if (options.checkpoints / "last" / ".metadata").exists():
        state = {"model": model.state_dict(), "step": step}
        dcp.load(state, checkpoint_id=options.checkpoints / "last")
        model.load_state_dict(state["model"])
        step = state["step"]

    while step < options.steps:
        inputs = torch.randn(64, 32, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :4].sin().sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        step += 1
        if step % options.save_every == 0:
            state = {"model": model.state_dict(), "step": step}
            dcp.save(state, checkpoint_id=options.checkpoints / "last")
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
