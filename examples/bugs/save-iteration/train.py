"""A loop with accelerate that names its checkpoints automatically, as its page "Checkpointing" shows it.

    python train.py --steps 65 --checkpoints checkpoints

It goes on from the newest checkpoint that is there.
"""

import argparse
import pathlib

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(102400, 32, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].sin().sum(1, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=65)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--checkpoints", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    options = parser.parse_args()

    # The checkpoints are in its folder "checkpoints".
    project = ProjectConfiguration(project_dir=options.checkpoints, automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=project)
    set_seed(1)
    model = nn.Sequential(nn.Linear(32, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(dataset(), batch_size=1024)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    saved = list((options.checkpoints / "checkpoints").glob("checkpoint_*"))
    if saved:
        accelerator.load_state()
        step = options.save_every * len(saved)

    for inputs, targets in accelerator.skip_first_batches(loader, step):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        step += 1
        if step % options.save_every == 0:
            accelerator.save_state()
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step == options.steps:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
