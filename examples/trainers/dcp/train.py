"""Data-parallel training with distributed checkpoints, after PyTorch's recipe "Getting Started with DCP".

    torchrun --nproc-per-node 2 train.py --steps 200 --checkpoints checkpoints

It goes on from the newest checkpoint that is there.
"""

import argparse
import pathlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class AppState(Stateful):
    """All that a checkpoint holds."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self) -> dict:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2048, 32, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].sin().sum(1, keepdim=True))


def newest(folder: pathlib.Path) -> pathlib.Path | None:
    """The newest folder that was finished: `.metadata` is written last."""
    done = [path.parent for path in folder.glob("step-*/.metadata")]
    return max(done, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--checkpoints", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    options = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 1)))
    app = AppState(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    found = newest(options.checkpoints)
    if found:
        dcp.load({"app": app}, checkpoint_id=found)

    data = dataset()
    sampler = DistributedSampler(data, seed=2)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    while app.step < options.steps:
        epoch, skip = divmod(app.step, len(loader))
        sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(loader):
            if number < skip or app.step == options.steps:
                continue
            loss = nn.functional.mse_loss(model(inputs), targets)
            app.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            app.optimizer.step()
            app.step += 1
            if app.step % options.save_every == 0:
                dcp.save({"app": app}, checkpoint_id=options.checkpoints / f"step-{app.step}")
                if dist.get_rank() == 0:
                    print(f"step {app.step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
