"""A streamed data set whose loader has a state of its own, as the README of litdata shows it.

    python train.py --steps 65 --checkpoints checkpoints

It goes on from the newest checkpoint that is there. The chunks are written once, into a folder that all jobs share.
"""

import argparse
import os
import pathlib
import shutil
import tempfile

import litdata
import numpy as np
import torch
from torch import nn


def sample(index: int) -> dict[str, np.ndarray]:
    inputs = np.random.default_rng(index).standard_normal(32, dtype=np.float32)
    return {"inputs": inputs, "target": np.sin(inputs[:4]).sum(keepdims=True).astype(np.float32)}


def chunks() -> str:
    """Returns the folder with the chunks; the first process to finish them gives them their name."""
    place = pathlib.Path(tempfile.gettempdir()) / "litdata-second-pass"
    if not place.exists():
        mine = tempfile.mkdtemp(prefix="litdata-second-pass-")
        litdata.optimize(sample, list(range(1600)), mine, chunk_size=100, num_workers=1)
        try:
            os.rename(mine, place)
        except OSError:  # another one was faster
            shutil.rmtree(mine)
    return str(place)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=65)
    parser.add_argument("--save-every", type=int, default=40)
    parser.add_argument("--checkpoints", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    options = parser.parse_args()

    options.checkpoints.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dataset = litdata.StreamingDataset(chunks(), shuffle=True, drop_last=True)
    loader = litdata.StreamingDataLoader(dataset, batch_size=32, num_workers=1)
    step = 0
    saved = max(options.checkpoints.glob("*.pt"), key=lambda path: int(path.stem), default=None)
    if saved:
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step = int(saved.stem)

    while step < options.steps:
        for batch in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch["inputs"]), batch["target"])
            loss.backward()
            optimizer.step()
            step += 1
            if step % options.save_every == 0:
                path = options.checkpoints / f"{step}.pt"
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                state["loader"] = loader.state_dict()
                torch.save(state, path.with_suffix(".tmp"))
                os.replace(path.with_suffix(".tmp"), path)
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == options.steps:
                break


if __name__ == "__main__":
    main()
