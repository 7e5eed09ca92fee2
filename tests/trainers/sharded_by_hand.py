"""Each rank trains a share of a sum and saves it in a file of its own, as people shard by hand; nothing of ours in it.

`--via cp`: a program brings each file to its place. `--broken other`: each rank resumes with the part of rank 0.
"""

import argparse
import datetime
import pathlib
import subprocess
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def put(state: dict[str, Any], target: pathlib.Path, via: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if via == "direct":
        torch.save(state, target)
        return
    with tempfile.TemporaryDirectory() as elsewhere:
        written = pathlib.Path(elsewhere) / target.name
        torch.save(state, written)
        subprocess.run(["cp", str(written), str(target)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--via", choices=["direct", "cp"], default="direct")
    parser.add_argument("--broken", choices=["other"])
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    share = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(share.parameters(), lr=0.01)
    inputs = torch.randn(45 * 8, 16, generator=torch.Generator().manual_seed(7))
    loader = DataLoader(TensorDataset(inputs, inputs.cos().sum(1, keepdim=True)), batch_size=8)
    whole = [save for save in options.checkpoints.glob("*/") if len(list(save.iterdir())) == dist.get_world_size()]
    step, saves = 0, sorted(whole, key=lambda save: save.name)
    if saves:
        state = torch.load(saves[-1] / f"part{0 if options.broken else rank}.pt")
        step = state["done"]
        share.load_state_dict(state["share"])
        optimizer.load_state_dict(state["optimizer"])
    for number, (batch, wanted) in enumerate(loader):
        if number < step:
            continue
        mine = share(batch)
        total = mine.detach().clone()
        dist.all_reduce(total)
        loss = nn.functional.mse_loss(mine + (total - mine.detach()), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(0.05)
        if step % 10 == 0:
            names = [f"{datetime.datetime.now():checkpoint_%Y-%m-%d_%H-%M-%S.%f}"]
            dist.broadcast_object_list(names)
            state = {"share": share.state_dict(), "optimizer": optimizer.state_dict(), "done": step}
            put(state, options.checkpoints / names[0] / f"part{rank}.pt", options.via)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
