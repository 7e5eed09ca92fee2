"""Lightning's Trainer with `ModelCheckpoint`.

    torchrun --nproc-per-node 2 train.py --steps 200 --checkpoints checkpoints

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
        self.model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2048, 32, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].sin().sum(1, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--checkpoints", default="checkpoints")
    options = parser.parse_args()

    pl.seed_everything(1, verbose=False)
    saving = ModelCheckpoint(options.checkpoints, every_n_train_steps=options.save_every, save_top_k=1, save_last=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy="ddp",
        max_steps=options.steps,
        callbacks=[saving],
        logger=False,
        enable_progress_bar=False,
        gradient_clip_val=1.0,
    )
    loader = DataLoader(dataset(), batch_size=16, shuffle=True)
    trainer.fit(Regression(), loader, ckpt_path="last")


if __name__ == "__main__":
    main()
