"""A loop with accelerate that skips the batches before a save, as its page "Checkpointing" shows it.

    python train.py --steps 65 --checkpoints checkpoints

It goes on from the newest checkpoint that is there.
"""

import argparse
import pathlib

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


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

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    set_seed(1)
    model = nn.Sequential(nn.Linear(32, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(dataset(), batch_size=256, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    saved = max(options.checkpoints.glob("step_*"), key=lambda path: int(path.name[5:]), default=None)
    if saved:
        accelerator.load_state(saved)
        step = int(saved.name[5:])

    while step < options.steps:
        epoch, skip = divmod(step, len(loader))
        loader.set_epoch(epoch)
        for inputs, targets in accelerator.skip_first_batches(loader, skip) if skip else loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step % options.save_every == 0:
                accelerator.save_state(options.checkpoints / f"step_{step}")
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == options.steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
