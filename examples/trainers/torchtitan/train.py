"""torchtitan's debug model without a GPU: its own trainer, which asks CUDA, with answers on the CPU.

    TORCHDYNAMO_DISABLE=1 torchrun --nproc-per-node 2 train.py --training.steps 110 --checkpoint.interval 20 \
        --job.dump_folder checkpoints

The words and their tokenizer are made here. Without an option the ranks shard the model (FSDP2). By torchtitan's
default the save of the last step holds the model alone, so a longer job does not go on from it.
"""

import json
import os
import pathlib
import random
import sys
import tempfile
import types

import torch
import torch._utils
import torch.distributed as dist
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.distributed.fsdp import FSDPModule

WORDS, TEXTS, TEXT_WORDS = 200, 500, 300
USUAL = {
    "--model.name": "llama3",
    "--model.flavor": "debugmodel",
    "--training.dataset": "c4_test",
    "--training.seq_len": "128",
    "--training.local_batch_size": "2",
}


class OnCPU(types.ModuleType):
    """`torch.cpu`, and what torchtitan asks of a device beyond that."""

    def __getattr__(self, name):
        return getattr(torch.cpu, name)

    def current_device(self):
        return 0

    def get_device_name(self, device):
        return "CPU"

    def get_device_properties(self, device):
        return types.SimpleNamespace(total_memory=2**34)

    def memory_stats(self, device):
        return {}

    def set_device(self, *_):
        pass

    reset_peak_memory_stats = empty_cache = set_device


def stay_on_the_cpu() -> None:
    device, barrier, divide = OnCPU("on_cpu"), dist.barrier, FSDPModule.set_gradient_divide_factor

    def divided(module: FSDPModule, factor: float) -> None:
        divide(module, factor)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no other one with a factor

    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda _: device
    dist.barrier = lambda *args, device_ids=None, **options: barrier(*args, **options)
    FSDPModule.set_gradient_divide_factor = divided


def texts(folder: pathlib.Path) -> None:
    """Writes random texts, and a tokenizer with a number for each word."""
    chance, words = random.Random(0), [f"w{number}" for number in range(WORDS)]
    lines = [json.dumps({"text": " ".join(chance.choices(words, k=TEXT_WORDS))}) for _ in range(TEXTS)]
    (folder / "texts").mkdir()
    (folder / "texts" / "train.jsonl").write_text("\n".join(lines))
    special = ["<begin>", "<end>", "<unknown>"]
    numbers = {word: number for number, word in enumerate(special + words)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<begin>", "eos_token": "<end>"}))


def main() -> None:
    stay_on_the_cpu()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        texts(folder)
        os.environ["HF_HOME"] = name  # else each start would leave a copy of the texts on this host
        usual = USUAL | {"--model.hf_assets_path": name, "--training.dataset_path": str(folder / "texts")}
        sys.argv[1:] = ["--checkpoint.enable", *(word for pair in usual.items() for word in pair), *sys.argv[1:]]
        from torchtitan.train import Trainer
        from torchtitan.train import main as train

        train(Trainer)


if __name__ == "__main__":
    main()
