"""A plain script with `torch.save` and no checks, as many teams have: it loads the newest file, and tells its steps."""

from __future__ import annotations

import pathlib
import sys
import time

import torch
from torch import nn

from harness.emitter import Emitter


def main(run_dir: str, steps: int) -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    root = pathlib.Path(run_dir) / "checkpoints"
    emit = Emitter.open("trainer", rank=0, local_rank=0, world_size=1)
    emit("started")
    emit("rendezvous", world_size=1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    files = sorted(root.glob("ckpt_*.pt"), key=lambda path: int(path.stem[5:]))
    if files:
        saved = torch.load(files[-1])
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    emit("restored", step=first, source=str(files[-1]) if files else "scratch")
    begin_ns = time.monotonic_ns()
    for step in range(first + 1, steps + 1):
        time.sleep(0.02)
        batch = torch.randn(32, 64, generator=torch.Generator().manual_seed(step))
        loss = (model(batch).squeeze() - batch.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        begin_ns = emit("step", step=step, begin_ns=begin_ns, loss=loss.item())
        if step % 10 == 0:
            content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(content, root / f"ckpt_{step}.pt")
            emit("checkpoint.committed", step=step, kind="periodic", path=str(root / f"ckpt_{step}.pt"))
    emit("exiting", code=0, reason="completed", step=steps)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
