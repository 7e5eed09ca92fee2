"""A pipeline of torchdata.nodes whose Loader torch.distributed.checkpoint saves, like all that has a `state_dict`.

    python train.py --steps 65 --checkpoints checkpoints

It goes on from the newest checkpoint that is there.
"""

import argparse
import pathlib

import torch
import torch.distributed.checkpoint as dcp
import torchdata.nodes as tn
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.utils.data import SequentialSampler, TensorDataset, default_collate


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(25600, 32, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].sin().sum(1, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=65)
    parser.add_argument("--save-every", type=int, default=40)
    parser.add_argument("--checkpoints", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    options = parser.parse_args()

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = dataset()
    node = tn.MapStyleWrapper(map_dataset=data, sampler=SequentialSampler(data))
    loader = tn.Loader(tn.Mapper(tn.Batcher(node, batch_size=256), map_fn=default_collate))
    step = 0
    saved = [path.parent for path in options.checkpoints.glob("*/.metadata")]
    if saved:
        newest = max(saved, key=lambda path: int(path.name))
        weights, moments = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": moments, "loader": loader}, checkpoint_id=newest)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        step = int(newest.name)

    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        step += 1
        if step % options.save_every == 0:
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "loader": loader}
            dcp.save(state, checkpoint_id=options.checkpoints / str(step))
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step == options.steps:
            break


if __name__ == "__main__":
    main()
