"""A small GPT with tensor and data parallelism, after Megatron Core's quick start (`run_simple_mcore_train_loop.py`).

    torchrun --nproc-per-node 4 train.py --steps 110 --save checkpoints

Beyond the quick start it has what Megatron-LM adds: Megatron's optimizer with its state in shards, the random states of
the tensor-parallel ranks, consumed samples, and a start from the newest checkpoint.

Megatron Core puts some buffers on `cuda` and has no setting for it. Without a GPU `OnCPU` answers with the CPU.
Gradient clipping, the distributed optimizer and the tracker of random states need CUDA and are left out: only the
dropout of the attention draws, from the CPU's generator.
"""

import argparse
import pathlib
from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDatasetConfig, MockGPTDataset
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.tokenizers import MegatronTokenizer
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

SEQUENCE, MICRO_BATCH, SEED = 64, 4, 123
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class OnCPU(TorchFunctionMode):
    """Makes on the CPU what is asked for on `cuda`."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs = kwargs | {"device": "cpu"}
        return function(*args, **kwargs)


def initialize(tensor_parallel: int) -> None:
    if DEVICE.type == "cpu":
        torch.cuda.current_device, torch.cuda.synchronize = lambda: "cpu", lambda *_: None
        OnCPU().__enter__()
    dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    parallel_state.initialize_model_parallel(tensor_parallel, 1)
    torch.manual_seed(SEED)  # the CPU initializes whole weights, and each rank takes its part of them
    model_parallel_cuda_manual_seed(SEED, inference_rng_tracker=DEVICE.type == "cpu")


def model_provider() -> GPTModel:
    config = TransformerConfig(
        num_layers=2,
        hidden_size=16,
        num_attention_heads=4,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.1,
        finalize_model_grads_func=finalize_model_grads,
    )
    spec = get_gpt_layer_local_spec()
    return GPTModel(config, spec, vocab_size=128, max_sequence_length=SEQUENCE).to(DEVICE)


class PretrainingSampler:
    """The batches of this data-parallel rank, from the consumed samples on, after Megatron-LM's sampler."""

    def __init__(self, total: int, consumed: int):
        self._total, self._consumed = total, consumed
        self._rank = parallel_state.get_data_parallel_rank()
        self._together = MICRO_BATCH * parallel_state.get_data_parallel_world_size()

    def __len__(self) -> int:
        return self._total // self._together

    def __iter__(self) -> Iterator[list[int]]:
        first = self._consumed + self._rank * MICRO_BATCH
        for start in range(first, self._total - MICRO_BATCH + 1, self._together):
            yield list(range(start, start + MICRO_BATCH))


def train_iterator(samples: int, consumed: int) -> Iterator[dict[str, torch.Tensor]]:
    config = GPTDatasetConfig(
        random_seed=0,
        sequence_length=SEQUENCE,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        tokenizer=MegatronTokenizer.from_pretrained(metadata_path={"library": "null"}, vocab_size=SEQUENCE),
        mid_level_dataset_surplus=0.005,
    )
    dataset = BlendedMegatronDatasetBuilder(MockGPTDataset, [samples, None, None], lambda: True, config).build()[0]
    own = torch.Generator()  # else the loader draws from the generator that was just restored
    return iter(DataLoader(dataset, batch_sampler=PretrainingSampler(samples, consumed), generator=own))


def forward_step(iterator: Iterator[dict[str, torch.Tensor]], model: torch.nn.Module):
    def loss_func(mask: torch.Tensor, output: torch.Tensor):
        loss = torch.sum(output.float().view(-1) * mask.view(-1)) / mask.sum()
        return loss, {"lm loss": loss.detach()}

    data = {name: tensor.to(DEVICE) for name, tensor in next(iterator).items()}
    output = model(data["tokens"], data["position_ids"], data["attention_mask"], labels=data["labels"])
    return output, partial(loss_func, data["loss_mask"].float())


def rng_state() -> ShardedObject:
    """The random state of this tensor-parallel rank; data-parallel ranks have the same one."""
    size, rank = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_rank()
    state = {"torch": torch.get_rng_state()}
    return ShardedObject("rng_state", state, (size,), (rank,), replica_id=parallel_state.get_data_parallel_rank())


def sharded_state(model: torch.nn.Module, optimizer: MegatronOptimizer, is_loading: bool) -> dict:
    weights = model.module.sharded_state_dict(prefix="")
    adam = optimizer.sharded_state_dict(weights, is_loading)
    return {"model": weights, "optimizer": adam, "rng_state": rng_state()}


def save(folder: pathlib.Path, step: int, consumed: int, model: torch.nn.Module, optimizer: MegatronOptimizer) -> None:
    path = folder / f"iter_{step:07d}"
    if dist.get_rank() == 0:
        path.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    state = sharded_state(model, optimizer, is_loading=False) | {"iteration": step, "consumed_samples": consumed}
    dist_checkpointing.save(state, str(path))
    if dist.get_rank() == 0:
        (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


def load(folder: pathlib.Path, model: torch.nn.Module, optimizer: MegatronOptimizer) -> tuple[int, int]:
    """Puts the state back, and returns its iteration and the consumed samples."""
    step = int((folder / "latest_checkpointed_iteration.txt").read_text())
    path = folder / f"iter_{step:07d}"
    state = dist_checkpointing.load(sharded_state(model, optimizer, is_loading=True), str(path))
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng_state"]["torch"])
    return state["iteration"], state["consumed_samples"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=110)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--tensor-parallel", type=int, default=2)
    parser.add_argument("--save", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    options = parser.parse_args()

    initialize(options.tensor_parallel)
    ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=False, overlap_grad_reduce=False)
    module = model_provider()
    model = DistributedDataParallel(module.config, ddp, module)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-3, clip_grad=0.0), [model])
    torch.manual_seed(SEED + 2718 + parallel_state.get_tensor_model_parallel_rank())
    step, consumed = 0, 0
    if (options.save / "latest_checkpointed_iteration.txt").exists():
        step, consumed = load(options.save, model, optimizer)

    together = MICRO_BATCH * parallel_state.get_data_parallel_world_size()
    iterator = train_iterator(options.steps * together, consumed)
    forward_backward = get_forward_backward_func()
    while step < options.steps:
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=forward_step,
            data_iterator=iterator,
            model=model,
            num_microbatches=1,
            seq_length=SEQUENCE,
            micro_batch_size=MICRO_BATCH,
            forward_only=False,
        )
        optimizer.step()
        step, consumed = step + 1, consumed + together
        if step % options.save_every == 0:
            save(options.save, step, consumed, model, optimizer)
            if dist.get_rank() == 0:
                print(f"iteration {step} lm loss {losses[0]['lm loss'].item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
