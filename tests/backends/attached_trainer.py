"""Somebody's own trainer: no line of ours, one all-reduce a step over gloo, a number in its log; until a file is there."""

import itertools
import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in itertools.count(1):
    asked = torch.tensor([float(os.path.exists(sys.argv[1]))])
    dist.all_reduce(asked)  # so that all ranks end at the same step
    print(f"step {step}", flush=True)
    if asked.item():
        break
    time.sleep(0.05)
dist.barrier()
dist.destroy_process_group()
