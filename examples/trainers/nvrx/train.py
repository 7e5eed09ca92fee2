"""Data-parallel training under ft_launcher of NVIDIA Resiliency Extension, which kills a rank that hangs in a section.

    ft_launcher --nproc-per-node 2 --max-restarts 3 --ft-rank-section-timeouts init:60,step:30,checkpoint:30 \
        --ft-rank-out-of-section-timeout 60 train.py --steps 200 --checkpoints checkpoints

It goes on from the newest checkpoint that is there, and skips the samples of its epoch, as the library's examples
`train_ddp_sections_api.py` and `dist_utils.py` do.
"""

import argparse
import itertools
import os
import pathlib

import nvidia_resiliency_ext.fault_tolerance as fault_tolerance
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH = 8


class ResumableSampler(DistributedSampler):
    """Skips the first `start` samples of each epoch."""

    start = 0

    def __iter__(self):
        return itertools.islice(super().__iter__(), self.start, None)


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(1024, 32, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].sin().sum(1, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--checkpoints", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    options = parser.parse_args()
    options.checkpoints.mkdir(parents=True, exist_ok=True)

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    client = fault_tolerance.RankMonitorClient()
    client.init_workload_monitoring()
    client.start_section("init")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    progress = {"epoch": 0, "batch": 0, "step": 0}
    saved = sorted(options.checkpoints.glob("step-*.pt"), key=lambda path: int(path.stem.removeprefix("step-")))
    if saved:
        state = torch.load(saved[-1], weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        progress.update(state["progress"])
    parallel = DistributedDataParallel(model)
    sampler = ResumableSampler(dataset(), drop_last=True)
    client.end_section("init")

    while progress["step"] < options.steps:
        sampler.start = progress["batch"] * BATCH
        sampler.set_epoch(progress["epoch"])
        for inputs, targets in DataLoader(sampler.dataset, BATCH, sampler=sampler, drop_last=True):
            client.start_section("step")
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(parallel(inputs), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            client.end_section("step")
            progress["batch"] += 1
            progress["step"] += 1
            if progress["step"] % options.save_every == 0:
                client.start_section("checkpoint")
                if rank == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "progress": progress}
                    path = options.checkpoints / f"step-{progress['step']}.pt"
                    torch.save(state, path.with_suffix(".tmp"))
                    os.replace(path.with_suffix(".tmp"), path)
                    print(f"step {progress['step']} loss {loss.item():.4f}", flush=True)
                dist.barrier()
                client.end_section("checkpoint")
            if progress["step"] == options.steps:
                break
        progress["epoch"] += 1
        progress["batch"] = 0
    client.shutdown_workload_monitoring()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
