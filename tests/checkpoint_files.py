"""Checkpoints of every layout, written with torch as the frameworks write them; safetensors by hand."""

import hashlib
import json
import pathlib
import struct
import warnings
from collections.abc import Callable
from typing import Any

import torch

ELEMENTS = 3000


def state(step: int, **more: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    model = {"a.weight": torch.randn(ELEMENTS, generator=generator), "a.bias": torch.randn(7, generator=generator)}
    moments = {0: {"step": torch.tensor(float(step)), "exp_avg": torch.randn(50, generator=generator)}}
    return {"model": model, "optimizer": {"state": moments, "param_groups": [{"lr": 0.1, "step": 3}]}} | more


def save(path: pathlib.Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)


def save_dcp(folder: pathlib.Path, content: dict[str, Any]) -> None:
    import torch.distributed.checkpoint as dcp  # slow, and every worker imports this file

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(content, checkpoint_id=folder, no_dist=True)


def save_safetensors(path: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    """The format is eight bytes with the length of a JSON header, that header, and the tensors' bytes."""
    header, place = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * 4
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    content = b"".join(tensor.numpy().tobytes() for tensor in tensors.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)


def torch_file(root: pathlib.Path, step: int) -> None:
    save(root / f"ckpt_{step}.pt", state(step))
    (root / "latest").write_text(f"ckpt_{step}.pt\n")


def torch_folder(root: pathlib.Path, step: int) -> None:
    for name, content in state(step).items():
        save(root / f"step_{step}" / f"{name}.pt", content)
    (root / f"step_{step}" / "config.json").write_text("{}")


def save_dcp_layout(root: pathlib.Path, step: int) -> None:
    save_dcp(root / f"step-{step}", {"model": state(step)["model"], "n": step, "text": "hello"})


def hugging_face(root: pathlib.Path, step: int) -> None:
    folder = root / f"checkpoint-{step}"
    save_safetensors(folder / "model.safetensors", state(step)["model"])
    save(folder / "optimizer.pt", state(step)["optimizer"])
    (folder / "config.json").write_text("{}")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))


def lightning(root: pathlib.Path, step: int) -> None:
    path = root / "lightning_logs" / "version_0" / "checkpoints" / f"epoch=0-step={step}.ckpt"
    save(path, {"epoch": 0, "global_step": step, "state_dict": state(step)["model"]})
    last = path.with_name("last.ckpt")
    last.unlink(missing_ok=True)
    last.symlink_to(path.name)


def safetensors(root: pathlib.Path, step: int) -> None:
    folder, tensors = root / f"step_{step}", state(step)["model"]
    for number, (name, tensor) in enumerate(tensors.items()):
        save_safetensors(folder / f"model-{number}.safetensors", {name: tensor})
    index = {name: f"model-{number}.safetensors" for number, name in enumerate(tensors)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    save(folder / "optimizer.bin", state(step)["optimizer"])


def megatron(root: pathlib.Path, step: int) -> None:
    save(root / f"iter_{step:07d}" / "mp_rank_00" / "model_optim_rng.pt", state(step, iteration=step))
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))


def deepspeed(root: pathlib.Path, step: int) -> None:
    folder = root / f"global_step{step}"
    save(folder / "mp_rank_00_model_states.pt", state(step)["model"])
    for rank in range(2):
        save(folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", state(step)["optimizer"])
    (root / "latest").write_text(f"global_step{step}")


def reference(root: pathlib.Path, step: int) -> None:
    folder = root / f"step-{step:08d}"
    save_dcp(folder, state(step)["model"])
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    files = {name: {"bytes": len(it), "sha256": hashlib.sha256(it).hexdigest()} for name, it in contents.items()}
    (folder / "manifest.json").write_text(json.dumps({"step": step, "files": files}))


WRITERS: dict[str, Callable[[pathlib.Path, int], None]] = {
    "reference": reference,
    "megatron": megatron,
    "deepspeed": deepspeed,
    "hugging_face": hugging_face,
    "lightning": lightning,
    "dcp": save_dcp_layout,
    "safetensors": safetensors,
    "torch_folder": torch_folder,
    "torch_file": torch_file,
}
POINTED = {"megatron", "deepspeed", "lightning", "torch_file"}


def write(root: pathlib.Path, layout: str, *steps: int) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for step in steps:
        WRITERS[layout](root, step)
