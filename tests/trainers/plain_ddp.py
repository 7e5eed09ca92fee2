"""A plain DDP script as people write it, for torchrun: it saves and loads with torch.save, and tells its steps."""

import argparse
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from harness.events import Emitter


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rank, local_rank, world_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    emit = Emitter.open("trainer", rank=rank, local_rank=local_rank, world_size=world_size)
    emit("started")
    dist.init_process_group("gloo")
    emit("rendezvous", world_size=world_size)
    torch.manual_seed(options.seed)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    latest, done = options.checkpoints / "latest.pt", 0
    if latest.exists():
        saved = torch.load(latest)
        model.load_state_dict(saved["model"])
        done = saved["step"]
    emit("restored", step=done, source=f"step-{done}" if done else "scratch", fallback=[])
    begin_ns = time.monotonic_ns()
    for step in range(done + 1, options.steps + 1):
        generator = torch.Generator().manual_seed(options.seed * 1_000_000 + step * 1000 + rank)
        inputs = torch.randn(8, 16, generator=generator)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(options.step_s)
        begin_ns = emit("step", step=step, begin_ns=begin_ns, loss=loss.item())
        if step % 10 == 0:
            dist.barrier()
            if rank == 0:
                partial = latest.with_suffix(".partial")
                torch.save({"step": step, "model": model.state_dict()}, partial)
                os.replace(partial, latest)
                emit("checkpoint.committed", step=step)
    emit("exiting", code=0, reason="completed", step=options.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
