"""A training loop of one's own with accelerate: `save_state`, `load_state` and `skip_first_batches`.

    accelerate launch --cpu --num_processes 2 train.py --steps 200 --checkpoints checkpoints

It goes on from the newest checkpoint that is there, as the library's `complete_nlp_example.py` does.
"""

import argparse
import pathlib

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2048, 32, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].sin().sum(1, keepdim=True))


def step_of(path: pathlib.Path) -> int:
    return int(path.name.removeprefix("step_"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--checkpoints", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    options = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(1)
    model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(dataset(), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    step = 0
    found = max(options.checkpoints.glob("step_*"), key=step_of, default=None)
    if found:
        accelerator.load_state(found)
        step = step_of(found)
    while step < options.steps:
        epoch, skip = divmod(step, len(loader))
        loader.set_epoch(epoch)
        for inputs, targets in accelerator.skip_first_batches(loader, skip) if skip else loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % options.save_every == 0:
                accelerator.save_state(options.checkpoints / f"step_{step}")
                accelerator.print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == options.steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
