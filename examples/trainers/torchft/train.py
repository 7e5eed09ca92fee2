"""Data-parallel training whose replicas may come and go, after torchft's `train_ddp.py`.

    torchft_lighthouse --min_replicas 1 --join_timeout_ms 1000 --bind [::]:29510 &
    TORCHFT_LIGHTHOUSE=http://localhost:29510 REPLICA_GROUP_ID=0 NUM_REPLICA_GROUPS=2 \
        torchrun --nproc-per-node 1 --master-port 29600 --max-restarts 3 train.py --steps 200
    # the same with REPLICA_GROUP_ID=1 and another port

A replica that comes back takes the state from one that is still there.
"""

import argparse
import os
from datetime import timedelta

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8192, 32, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].sin().sum(1, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--print-every", type=int, default=20)
    options = parser.parse_args()

    replica, replicas = int(os.environ.get("REPLICA_GROUP_ID", 0)), int(os.environ.get("NUM_REPLICA_GROUPS", 2))
    data = dataset()
    sampler = DistributedSampler(
        data, replica_rank=replica, num_replica_groups=replicas, group_rank=0, num_replicas=1, shuffle=True, seed=2
    )
    loader = DataLoader(data, batch_size=16, sampler=sampler)

    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 1))
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def load_state_dict(state: dict) -> None:
        net.load_state_dict(state["model"])
        adam.load_state_dict(state["optimizer"])

    def state_dict() -> dict:
        return {"model": net.state_dict(), "optimizer": adam.state_dict()}

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=1,
        timeout=timedelta(seconds=30),
        replica_id=f"replica_{replica}",
    )
    model, optimizer = DistributedDataParallel(manager, net), Optimizer(manager, adam)
    while manager.current_step() < options.steps:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if manager.current_step() % options.print_every == 0:
                print(f"step {manager.current_step()} loss {loss.item():.4f}", flush=True)
            if manager.current_step() >= options.steps:
                break
    manager.shutdown()


if __name__ == "__main__":
    main()
