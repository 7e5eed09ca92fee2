"""Hugging Face's Trainer with its own checkpoints.

    torchrun --nproc-per-node 2 train.py --steps 200 --checkpoints checkpoints

It goes on from the last checkpoint that `get_last_checkpoint` finds, as the library's examples do.
"""

import argparse
import os

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class Sequences(Dataset):
    """Counting sequences with a stride of their own."""

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (index + (1 + index % 7) * torch.arange(16)) % 64
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--checkpoints", default="checkpoints")
    options = parser.parse_args()

    set_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        output_dir=options.checkpoints,
        max_steps=options.steps,
        save_steps=options.save_every,
        logging_steps=options.save_every,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        use_cpu=True,
        seed=1,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Sequences())
    last = get_last_checkpoint(options.checkpoints) if os.path.isdir(options.checkpoints) else None
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
