"""Lightning's Trainer with a checkpoint after each epoch, and a loader with workers.

    torchrun --nproc-per-node 2 train.py --epochs 3 --checkpoints checkpoints

It goes on from the last checkpoint (`ckpt_path="last"`), as the library's docs recommend.
"""

import argparse
import os

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(32, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.model(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(5120, 32, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].sin().sum(1, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--checkpoints", default="checkpoints")
    options = parser.parse_args()

    pl.seed_everything(1, verbose=False)
    saving = ModelCheckpoint(options.checkpoints, every_n_epochs=1, save_top_k=1, monitor=None, save_last=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy="ddp",
        max_epochs=options.epochs,
        callbacks=[saving],
        logger=False,
        enable_progress_bar=False,
    )
    loader = DataLoader(dataset(), batch_size=128, shuffle=True, num_workers=1)
    trainer.fit(Regression(), loader, ckpt_path="last")


if __name__ == "__main__":
    main()
