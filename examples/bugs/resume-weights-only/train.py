"""mmengine's Runner, set up as its page "15 minutes to get started" shows it, with `resume=True`.

    python train.py --steps 65 --checkpoints checkpoints

It goes on from the newest checkpoint that is there.
"""

import argparse
import pathlib

import torch
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import TensorDataset


class Regression(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor, mode: str) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.mse_loss(self.layers(inputs), targets)}


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(51200, 32, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].sin().sum(1, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=65)
    parser.add_argument("--save-every", type=int, default=40)
    parser.add_argument("--checkpoints", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    options = parser.parse_args()

    runner = Runner(
        model=Regression(),
        work_dir=str(options.checkpoints),
        train_dataloader={
            "dataset": dataset(),
            "sampler": {"type": "DefaultSampler", "shuffle": True},
            "collate_fn": {"type": "default_collate"},
            "batch_size": 1024,
            "num_workers": 0,
        },
        train_cfg={"by_epoch": False, "max_iters": options.steps},
        optim_wrapper={"optimizer": {"type": "AdamW", "lr": 1e-3}},
        default_hooks={"checkpoint": {"type": "CheckpointHook", "by_epoch": False, "interval": options.save_every}},
        randomness={"seed": 1},
        resume=True,
    )
    runner.train()


if __name__ == "__main__":
    main()
