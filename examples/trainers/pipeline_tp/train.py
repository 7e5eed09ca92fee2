"""Two pipeline stages of tensor-parallel layers, after PyTorch's tutorials on pipelining and on tensor parallelism.

    torchrun --nproc-per-node 4 train.py --steps 120 --checkpoints checkpoints

It goes on from the newest checkpoint that is there.
"""

import argparse
import pathlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

STAGES, BATCH = 2, 16
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)  # else stages write one key for all their groups


def dataset() -> TensorDataset:
    inputs = torch.randn(2048, 32, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs[:, :4].sin().sum(1, keepdim=True))


def layers(stage: int) -> nn.Module:
    """Each stage has names of its own, so that a checkpoint holds all of them."""
    torch.manual_seed(1 + stage)
    wide = [nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32)]
    return nn.ModuleDict({f"stage{stage}": nn.Sequential(*wide, *([nn.Linear(32, 1)] if stage == STAGES - 1 else []))})


class Stage(nn.Module):
    def __init__(self, stage: int):
        super().__init__()
        self.layers, self.name = layers(stage), f"stage{stage}"

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers[self.name](inputs)


def newest(folder: pathlib.Path) -> pathlib.Path | None:
    """The newest folder that was finished: `.metadata` is written last."""
    done = [path.parent for path in folder.glob("step-*/.metadata")]
    return max(done, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--checkpoints", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    options = parser.parse_args()

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (STAGES, dist.get_world_size() // STAGES), mesh_dim_names=("pp", "tp"))
    place = mesh.get_local_rank("pp")
    model = Stage(place)
    plan = {f"layers.stage{place}.0": ColwiseParallel(), f"layers.stage{place}.2": RowwiseParallel()}
    parallelize_module(model, mesh["tp"], plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stage = PipelineStage(model, place, STAGES, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    step, data = 0, dataset()
    if found := newest(options.checkpoints):
        model_state, optimizer_state = get_state_dict(model, optimizer, options=FLAT)
        state = {"model": model_state, "optimizer": optimizer_state, "step": 0}
        dcp.load(state, checkpoint_id=found)
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=FLAT
        )
        step = state["step"]

    passes = len(data) // BATCH
    while step < options.steps:
        epoch, skip = divmod(step, passes)
        sampler = RandomSampler(data, generator=torch.Generator().manual_seed(2 + epoch))
        for number, (inputs, targets) in enumerate(DataLoader(data, batch_size=BATCH, sampler=sampler)):
            if number < skip or step == options.steps:
                continue
            optimizer.zero_grad()
            schedule.step(inputs) if place == 0 else schedule.step(target=targets)
            optimizer.step()
            step += 1
            if step % options.save_every == 0:
                model_state, optimizer_state = get_state_dict(model, optimizer, options=FLAT)
                state = {"model": model_state, "optimizer": optimizer_state, "step": step}
                dcp.save(state, checkpoint_id=options.checkpoints / f"step-{step}")
                if dist.get_rank() == 0:
                    print(f"step {step}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
