"""What observing costs: a loop under DDP, FSDP2 or tensor parallelism with and without it, in turns.

    python benches/observer.py [ddp | fsdp2 | tp] [PAIRS] [STEPS]

Two figures: what the hooks take of a step by their own timers, and the paired difference of the median step with its
95 % interval (bootstrapped over pairs). The first is the goal's (at most 1 % of a step of 50 ms); the second is noisy.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

from harness.backends import delivery
from harness.node.boot import OBSERVE_ENV, with_delivered

GOAL_MS = 0.5  # 1 % of a step of 50 ms
WARM = 5  # first steps, that are left out
LIMIT_S = 300
RANKS = min(2, len(list(pathlib.Path("/dev").glob("nvidia[0-9]*"))) or 2)
TRAIN = """
import gc, json, sys, time, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
torch.manual_seed(0)
device = torch.device("cuda", dist.get_rank()) if cuda else torch.device("cpu")
kind, steps, width = sys.argv[1], int(sys.argv[2]), 512
data = TensorDataset(torch.randn(64 * steps, width), torch.randn(64 * steps, 1))
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1)).to(device)
if kind == "ddp":
    model = DistributedDataParallel(model)
elif kind == "fsdp2":
    for layer in layers[::2]:
        fully_shard(layer)
    fully_shard(model)
else:
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": ColwiseParallel(), "6": RowwiseParallel()}
    plan["8"] = RowwiseParallel(input_layouts=Replicate())
    parallelize_module(model, init_device_mesh(device.type, (dist.get_world_size(),)), plan)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
took, spent = [], []
module = sys.modules.get("harness.node.observer.watch")
watches = [each for each in gc.get_objects() if module and isinstance(each, module.Watch)]
begin = time.perf_counter()
apart = {"num_replicas": 1, "rank": 0} if kind == "tp" else {}  # all ranks have the same batches
for x, y in DataLoader(data, batch_size=32, sampler=DistributedSampler(data, **apart)):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    end = time.perf_counter()
    took.append(end - begin)
    spent.append(sum(each.spent_ns for each in watches))
    begin = end
    if len(took) == steps:
        break
if dist.get_rank() == 0:
    print(json.dumps({"steps": took, "spent_ns": spent}))
dist.destroy_process_group()
"""


def measure(kind: str, steps: int, observed: bool) -> tuple[float, float]:
    """Milliseconds: the median step, and what the hooks took of the median one by their own timers."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "train.py").write_text(TRAIN)
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        env |= {"CHAOS_EVENTS": str(folder / "events"), OBSERVE_ENV: "auto"} if observed else {}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        done = subprocess.run(
            [*command, str(folder / "train.py"), kind, str(steps)],
            env=with_delivered(env, str(delivery.deliver(folder))),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    if done.returncode:
        raise SystemExit(done.stderr)
    told = json.loads(done.stdout.splitlines()[-1])
    spent = [after - before for before, after in itertools.pairwise(told["spent_ns"][WARM:])]
    return 1000 * statistics.median(told["steps"][WARM:]), statistics.median(spent) / 1e6


def interval(values: list[float]) -> tuple[float, float]:
    """Of the mean: 95 % of bootstrapped ones."""
    chance = random.Random(0)
    means = sorted(statistics.fmean(chance.choices(values, k=len(values))) for _ in range(10_000))
    return means[250], means[-251]


def main(kind: str = "ddp", pairs: int = 5, steps: int = 200) -> int:
    differences, hooks, alone = [], [], []
    for number in range(pairs):
        order = (True, False) if number % 2 else (False, True)
        found = {observed: measure(kind, steps, observed) for observed in order}
        differences.append(found[True][0] - found[False][0])
        hooks.append(found[True][1])
        alone.append(found[False][0])
    low, high = interval(differences)
    mine = statistics.median(hooks)
    runs = f"median of {pairs} runs of {steps} steps, {RANKS} ranks"
    print(f"a step of {kind} without: {statistics.median(alone):.2f} ms ({runs})")
    print(f"hooks by their own timers: {mine:.3f} ms a step; the goal is {GOAL_MS} ms")
    print(f"paired difference of the median step: {statistics.fmean(differences):+.2f} ms [{low:+.2f}, {high:+.2f}]")
    return int(mine > GOAL_MS)


if __name__ == "__main__":
    words = sys.argv[1:] if sys.argv[1:] and not sys.argv[1].isdigit() else ["ddp", *sys.argv[1:]]
    sys.exit(main(words[0], *map(int, words[1:])))
