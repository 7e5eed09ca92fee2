"""timm's PlateauLRScheduler, stepped after each validation and saved by its own `state_dict`.

    python train.py --steps 65 --checkpoints checkpoints

It goes on from the newest checkpoint that is there.
"""

import argparse
import itertools
import os
import pathlib

import torch
from timm.scheduler import PlateauLRScheduler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(12800, 32, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].sin().sum(1, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=65)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--validate-every", type=int, default=2)
    parser.add_argument("--checkpoints", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    options = parser.parse_args()
    options.checkpoints.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = PlateauLRScheduler(optimizer, decay_rate=0.5, patience_t=6, threshold=0.9, mode="min")
    step = 0
    saved = max(options.checkpoints.glob("*.pt"), key=lambda path: int(path.stem), default=None)
    if saved:
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["lr_scheduler"])
        step = int(saved.stem)

    order = torch.Generator()
    loader = DataLoader(dataset(), batch_size=256, shuffle=True, generator=order)
    held_out = torch.randn(256, 32, generator=torch.Generator().manual_seed(2))
    while step < options.steps:
        epoch, skip = divmod(step, len(loader))
        order.manual_seed(epoch)
        for inputs, targets in itertools.islice(loader, skip, skip + options.steps - step):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            step += 1
            if step % options.validate_every == 0:
                with torch.no_grad():
                    error = nn.functional.mse_loss(model(held_out), held_out[:, :4].sin().sum(1, keepdim=True))
                scheduler.step(step // options.validate_every, error.item())
            if step % options.save_every == 0:
                path = options.checkpoints / f"{step}.pt"
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                state["lr_scheduler"] = scheduler.state_dict()
                torch.save(state, path.with_suffix(".tmp"))
                os.replace(path.with_suffix(".tmp"), path)
                print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
