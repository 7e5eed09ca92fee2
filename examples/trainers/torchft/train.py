"""Data-parallel training whose replicas may come and go, after torchft's `train_ddp.py`.

    torchft_lighthouse --min_replicas 1 --quorum_tick_ms 100 --join_timeout_ms 10000 --bind [::]:29510 &
    TORCHFT_LIGHTHOUSE=http://localhost:29510 REPLICA_GROUP_ID=0 NUM_REPLICA_GROUPS=2 \
        torchrun --nproc-per-node 1 --master-port 29600 --max-restarts 3 train.py --steps 1500
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
    noise = torch.randn(8192, 1, generator=generator)  # which no model can learn, so that the loss never gets near zero
    return TensorDataset(inputs, inputs[:, :4].sin().sum(1, keepdim=True) + noise)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--print-every", type=int, default=100)
    options = parser.parse_args()

    replica, replicas = int(os.environ.get("REPLICA_GROUP_ID", 0)), int(os.environ.get("NUM_REPLICA_GROUPS", 2))
    data = dataset()
    sampler = DistributedSampler(
        data, replica_rank=replica, num_replica_groups=replicas, group_rank=0, num_replicas=1, shuffle=True, seed=2
    )
    loader = DataLoader(data, batch_size=16, sampler=sampler)

    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(32, 768), nn.Tanh(), nn.Linear(768, 768), nn.Tanh(), nn.Linear(768, 1))
    adam = torch.optim.AdamW(net.parameters(), lr=1e-4)

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
