"""Data-parallel training on a streamed dataset: a loader with a state of its own, as litdata's README shows.

    torchrun --nproc-per-node 2 train.py --steps 110 --checkpoints checkpoints

The chunks are written once, into a folder of this host that all jobs share.
"""

import argparse
import os
import pathlib
import shutil
import tempfile

import litdata
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SAMPLES, BATCH = 512, 8


def sample(index: int) -> dict:
    inputs = np.random.default_rng(index).standard_normal(32, dtype=np.float32)
    return {"inputs": inputs, "target": np.sin(inputs[:4]).sum(keepdims=True).astype(np.float32)}


def chunks() -> str:
    """Returns the folder with the chunks; the first process to finish them gives them their name."""
    place = pathlib.Path(tempfile.gettempdir()) / f"litdata-example-{SAMPLES}"
    if not place.exists():
        mine = tempfile.mkdtemp(prefix="litdata-example-")
        litdata.optimize(sample, list(range(SAMPLES)), mine, chunk_size=32, num_workers=1, verbose=False)
        try:
            os.rename(mine, place)
        except OSError:  # another one was faster
            shutil.rmtree(mine)
    return str(place)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=110)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--checkpoints", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    options = parser.parse_args()
    options.checkpoints.mkdir(parents=True, exist_ok=True)

    folder = chunks()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dataset = litdata.StreamingDataset(folder, shuffle=True, drop_last=True, seed=1)
    loader = litdata.StreamingDataLoader(dataset, batch_size=BATCH)
    step = 0
    saved = sorted(options.checkpoints.glob("step-*.pt"), key=lambda path: int(path.stem.removeprefix("step-")))
    if saved:
        state = torch.load(saved[-1], weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loaders"][rank])
        step = state["step"]
    parallel = DistributedDataParallel(model)

    while step < options.steps:
        for batch in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(parallel(batch["inputs"]), batch["target"])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % options.save_every == 0:
                loaders = [None] * world
                dist.all_gather_object(loaders, loader.state_dict())
                if rank == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    path = options.checkpoints / f"step-{step}.pt"
                    torch.save(state | {"loaders": loaders, "step": step}, path.with_suffix(".tmp"))
                    os.replace(path.with_suffix(".tmp"), path)
                    print(f"step {step} loss {loss.item():.4f}", flush=True)
                dist.barrier()
            if step == options.steps:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
