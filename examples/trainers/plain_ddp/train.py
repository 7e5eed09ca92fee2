"""
A small character-level GPT, trained with DistributedDataParallel.

    torchrun --standalone --nproc-per-node 2 train.py --out out --steps 200

Resumes from out/ckpt.pt if it is there.
"""

import argparse
import os
import pathlib
import pydoc_data.topics

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--out", default="out")
parser.add_argument("--data", default=pydoc_data.topics.__file__)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save-every", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--block-size", type=int, default=64)
parser.add_argument("--n-embd", type=int, default=64)
parser.add_argument("--n-layer", type=int, default=2)
parser.add_argument("--n-head", type=int, default=4)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--grad-clip", type=float, default=1.0)
args = parser.parse_args()


class Chars(Dataset):
    def __init__(self, path, block_size):
        self.data = torch.frombuffer(bytearray(pathlib.Path(path).read_bytes()), dtype=torch.uint8)
        self.block_size = block_size

    def __len__(self):
        return (len(self.data) - 1) // self.block_size

    def __getitem__(self, i):
        chunk = self.data[i * self.block_size : (i + 1) * self.block_size + 1].long()
        return chunk[:-1], chunk[1:]


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(256, args.n_embd)
        self.pos = nn.Embedding(args.block_size, args.n_embd)
        layer = nn.TransformerEncoderLayer(
            args.n_embd, args.n_head, 4 * args.n_embd, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, args.n_layer, enable_nested_tensor=False)
        self.head = nn.Linear(args.n_embd, 256)
        mask = nn.Transformer.generate_square_subsequent_mask(args.block_size)
        self.register_buffer("mask", mask)

    def forward(self, x, y):
        h = self.tok(x) + self.pos(torch.arange(x.shape[1], device=x.device))
        logits = self.head(self.blocks(h, mask=self.mask, is_causal=True))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
torch.manual_seed(1337)

model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
ckpt_path = os.path.join(args.out, "ckpt.pt")
iter_num = 0
if os.path.exists(ckpt_path):
    ckpt = torch.load(ckpt_path, map_location=device)
    model.load_state_dict(ckpt["model"])
    optimizer.load_state_dict(ckpt["optimizer"])
    iter_num = ckpt["iter_num"]
    if rank == 0:
        print(f"resuming from {ckpt_path} at iteration {iter_num}")
model = DistributedDataParallel(model, device_ids=[local_rank] if cuda else None)

dataset = Chars(args.data, args.block_size)
sampler = DistributedSampler(dataset, seed=1337, drop_last=True)
loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, drop_last=True)

while iter_num < args.steps:
    epoch, done = divmod(iter_num, len(loader))
    sampler.set_epoch(epoch)
    for i, (x, y) in enumerate(loader):
        if i < done:  # trained on before the restart
            continue
        loss = model(x.to(device), y.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
        optimizer.step()
        iter_num += 1
        if rank == 0 and iter_num % 10 == 0:
            print(f"iter {iter_num}: loss {loss.item():.4f}", flush=True)
        if iter_num % args.save_every == 0:
            if rank == 0:
                os.makedirs(args.out, exist_ok=True)
                state = {
                    "model": model.module.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "iter_num": iter_num,
                }
                torch.save(state, ckpt_path)
            dist.barrier()
        if iter_num >= args.steps:
            break

dist.destroy_process_group()
