"""Saves of six layouts as their frameworks write them, and sixty damages."""

import json
import os
import pathlib
import pickle
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from checkpoint_files import save, save_safetensors

from harness.preflight.verification import State

STEPS = (20, 40, 60, 100)
STEP, OLDER = 60, 20  # the one that is damaged, and another one
SIZES = {"a.weight": 3000, "a.bias": 7, "b.weight": 2000}


def tensors(step: int, part: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + part)
    return {name: torch.randn(size, generator=generator) for name, size in SIZES.items()}


def write_dcp(root: pathlib.Path, step: int) -> None:
    """In two files, as two ranks would."""
    folder = root / f"step-{step}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = dcp.FileSystemWriter(folder, thread_count=2)
        dcp.save({"model": tensors(step), "n": step}, storage_writer=writer, no_dist=True)


def _weights(folder: pathlib.Path, step: int) -> None:
    where = {name: f"model-0000{1 + name.startswith('b')}-of-00002.safetensors" for name in SIZES}
    for file in set(where.values()):
        save_safetensors(folder / file, {name: tensors(step)[name] for name in SIZES if where[name] == file})
    index = {"metadata": {"total_size": 20028}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_hugging_face(root: pathlib.Path, step: int) -> None:
    folder = root / f"checkpoint-{step}"
    _weights(folder, step)
    moments = {0: {"exp_avg": tensors(step, 1)["a.weight"]}}
    save(folder / "optimizer.pt", {"state": moments, "param_groups": [{"lr": 0.1}]})
    save(folder / "scheduler.pt", {"last_epoch": step, "_step_count": step + 1})
    (folder / "config.json").write_text("{}")
    history: list[dict[str, Any]] = [{"step": step - 10, "loss": 2.5}, {"step": step, "loss": 2.25}]
    history.append({"step": step, "eval_loss": float("nan")})
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": history}))


def write_lightning(root: pathlib.Path, step: int) -> None:
    path = root / "version_0" / f"epoch=0-step={step}.ckpt"
    save(path, {"epoch": 0, "global_step": step, "state_dict": tensors(step), "lr_schedulers": []})
    last = path.with_name("last.ckpt")
    last.unlink(missing_ok=True)
    last.symlink_to(path.name)


def write_megatron(root: pathlib.Path, step: int) -> None:
    import argparse

    args = argparse.Namespace(tensor_model_parallel_size=2, pipeline_model_parallel_size=1)
    for rank in range(2):
        content = {"args": args, "iteration": step, "model": tensors(step, rank), "checkpoint_version": 3.0}
        save(root / f"iter_{step:07d}" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt", content)
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))


def write_deepspeed(root: pathlib.Path, step: int) -> None:
    folder = root / f"global_step{step}"
    model = {"module": tensors(step), "global_steps": step, "dp_world_size": 2, "mp_world_size": 1}
    save(folder / "mp_rank_00_model_states.pt", model)
    for rank in range(2):
        content = {"optimizer_state_dict": {"fp32": tensors(step, 1 + rank)["a.weight"]}, "ds_version": "0.16"}
        save(folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", content)
    (root / "latest").write_text(f"global_step{step}")


WRITERS: dict[str, Callable[[pathlib.Path, int], None]] = {
    "dcp": write_dcp,
    "safetensors": lambda root, step: _weights(root / f"step_{step}", step),
    "hugging_face": write_hugging_face,
    "lightning": write_lightning,
    "megatron": write_megatron,
    "deepspeed": write_deepspeed,
}
FOLDERS = {
    "dcp": "step-{}",
    "safetensors": "step_{}",
    "hugging_face": "checkpoint-{}",
    "lightning": "version_0/epoch=0-step={}.ckpt",
    "megatron": "iter_{:07d}",
    "deepspeed": "global_step{}",
}


def write_all(root: pathlib.Path, layout: str) -> None:
    for step in STEPS:
        WRITERS[layout](root, step)


# What is done to a file


def cut(path: pathlib.Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def short(path: pathlib.Path) -> None:
    os.truncate(path, path.stat().st_size - 16)


def empty(path: pathlib.Path) -> None:
    os.truncate(path, 0)


def more(path: pathlib.Path) -> None:
    """What torch does not read: it finds the end of an archive before it."""
    path.write_bytes(path.read_bytes() + b"x" * 1000)


def twice(path: pathlib.Path, tensor: bytes) -> None:
    """A damaged archive, which torch reads, and a whole one behind it."""
    whole = path.read_bytes()
    flip(path, tensor)
    path.write_bytes(path.read_bytes() + whole)


def missing(path: pathlib.Path) -> None:
    path.unlink()


def head(path: pathlib.Path) -> None:
    """Its first block was never written."""
    write_at(path, 0, bytes(64))


def tail(path: pathlib.Path) -> None:
    write_at(path, path.stat().st_size - 64, bytes(64))


def flip(path: pathlib.Path, tensor: bytes) -> None:
    """One bit in the middle of a tensor."""
    content = path.read_bytes()
    at = content.index(tensor) + len(tensor) // 2
    write_at(path, at, bytes([content[at] ^ 4]))


def zeros(path: pathlib.Path, tensor: bytes) -> None:
    write_at(path, path.read_bytes().index(tensor), bytes(5000))


def write_at(path: pathlib.Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[pathlib.Path], None]:
    def edited(path: pathlib.Path) -> None:
        values = json.loads(path.read_text())
        change(values)
        path.write_text(json.dumps(values))

    return edited


def edit_metadata(change: Callable[[Any], object]) -> Callable[[pathlib.Path], None]:
    def edited(path: pathlib.Path) -> None:
        values = pickle.loads(path.read_bytes())
        change(values)
        path.write_bytes(pickle.dumps(values))

    return edited


def _drop_place(metadata: Any) -> None:
    metadata.storage_data = {key: place for key, place in metadata.storage_data.items() if key.fqn != "model.b.weight"}


def _drop_tensor(path: pathlib.Path) -> None:
    """Saved again without one of its tensors: nothing of it is damaged, and it is less."""
    content = torch.load(path, weights_only=False)
    del content["state_dict"]["b.weight"]
    save(path, content)


def edit_map(*gone: str, **more: str) -> Callable[[pathlib.Path], None]:
    """The index names no longer what is `gone`, and `more` in these files."""

    def changed(index: dict[str, Any]) -> None:
        where = index["weight_map"]
        index["weight_map"] = {name: file for name, file in where.items() if name not in gone} | more

    return edit(changed)


def say(text: str) -> Callable[[pathlib.Path], object]:
    return lambda path: path.write_text(text)


@dataclass(frozen=True)
class Damage:
    """`file`: in the place of the saves. `told`: the state without a manifest, with what is named; `tensor`: which is
    hit. `of_pointer`: it hits what points to a save, and no save."""

    layout: str
    what: str
    file: str
    do: Callable[..., object]
    told: State
    names: tuple[str, ...] = ()
    tensor: str = ""
    part: int = 0
    of_pointer: bool = False

    @property
    def id(self) -> str:
        return f"{self.layout}-{self.what}-{self.file}"

    def make(self, root: pathlib.Path) -> None:
        path = root / self.file
        if self.do is other:
            older = FOLDERS[self.layout].format(OLDER)
            shutil.copyfile(root / self.file.replace(FOLDERS[self.layout].format(STEP), older), path)
        elif self.tensor:
            self.do(path, tensors(STEP, self.part)[self.tensor].numpy().tobytes())
        else:
            self.do(path)


def other(path: pathlib.Path) -> None:
    """The same file of another save."""


D, S, W, U = State.DAMAGED, State.SUSPICIOUS, State.WHOLE, State.UNKNOWN
_DCP, _META, _SHARD = "step-60/__0_0.distcp", "step-60/.metadata", "model-00001-of-00002.safetensors"
_SAFE, _INDEX, _HF = f"step_60/{_SHARD}", "step_60/model.safetensors.index.json", f"checkpoint-60/{_SHARD}"
_OPT, _SCHEDULER, _CONFIG = (f"checkpoint-60/{name}" for name in ("optimizer.pt", "scheduler.pt", "config.json"))
_STATE, _CKPT, _LAST = "checkpoint-60/trainer_state.json", *(f"version_0/epoch=0-step={n}.ckpt" for n in (60, 100))
_RANK, _POINTER = "iter_0000060/mp_rank_01/model_optim_rng.pt", "latest_checkpointed_iteration.txt"
_ZERO, _MODEL = (f"global_step60/{name}_states.pt" for name in ("zero_pp_rank_1_mp_rank_00_optim", "mp_rank_00_model"))


def _rename(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"__0_1.distcp", b"__9_9.distcp"))


DAMAGES = [
    Damage("dcp", "cut", _DCP, cut, D, ("model.",)),
    Damage("dcp", "short", "step-60/__0_1.distcp", short, D, ("model.",)),
    Damage("dcp", "flip", _DCP, flip, D, ("model.a.weight",), "a.weight"),
    Damage("dcp", "zeros", _DCP, zeros, D, ("model.a.weight",), "a.weight"),
    Damage("dcp", "empty", _DCP, empty, D, ("is empty",)),
    Damage("dcp", "missing", _DCP, missing, D, ("model.a.weight", "the file is missing")),
    Damage("dcp", "head", _DCP, head, D),
    Damage("dcp", "other", _DCP, other, S, ("step-20",)),
    Damage("dcp", "missing", _META, missing, D, ("written last",)),
    Damage("dcp", "empty", _META, empty, D, ("is empty",)),
    Damage("dcp", "cut", _META, cut, D, ("cannot be read",)),
    Damage("dcp", "lacks what is there", _META, edit_metadata(_drop_place), D, ("model.b.weight",)),
    Damage("dcp", "names what is not there", _META, _rename, D, ("__9_9.distcp",)),
    Damage("safetensors", "cut", _SAFE, cut, D, ("a.",)),
    Damage("safetensors", "short", _SAFE, short, D, ("a.bias",)),
    Damage("safetensors", "flip", _SAFE, flip, W, (), "a.weight"),
    Damage("safetensors", "zeros", _SAFE, zeros, S, ("a.weight", "zero bytes in holes"), "a.weight"),
    Damage("safetensors", "empty", _SAFE, empty, D, ("is empty",)),
    Damage("safetensors", "missing", _SAFE, missing, D, ("is missing",)),
    Damage("safetensors", "head", _SAFE, head, D, ("header",)),
    Damage("safetensors", "other", _SAFE, other, S, ("step_20",)),
    Damage("safetensors", "names what is not there", _INDEX, edit_map(c=_SHARD), D, ("c is not in it",)),
    Damage("safetensors", "names a lost file", _INDEX, edit_map(c="x.safetensors"), D, ("x.safetensors",)),
    Damage("safetensors", "lacks what is there", _INDEX, edit_map("a.bias"), D, ("a.bias",)),
    Damage("safetensors", "cut", _INDEX, cut, D, ("no JSON",)),
    Damage("safetensors", "a list", _INDEX, say("[]"), D, ("weight_map",)),
    Damage("safetensors", "names nothing", _INDEX, say('{"weight_map": {}}'), D, ("weight_map",)),
    Damage("safetensors", "null", _INDEX, say('{"weight_map": null}'), D, ("weight_map",)),
    Damage("safetensors", "missing", _INDEX, missing, S, ("index.json: is missing, and most",)),
    Damage("hugging_face", "cut", _HF, cut, D, ("a.",)),
    Damage("hugging_face", "flip", _HF, flip, W, (), "a.weight"),
    Damage("hugging_face", "flip", _OPT, flip, D, ("state.0.exp_avg", "checksum"), "a.weight", 1),
    Damage("hugging_face", "zeros", _OPT, zeros, D, ("state.0.exp_avg",), "a.weight", 1),
    Damage("hugging_face", "cut", _OPT, cut, D, ("cut off",)),
    Damage("hugging_face", "tail", _OPT, tail, D, ("cut off",)),
    Damage("hugging_face", "empty", _SCHEDULER, empty, D, ("is empty",)),
    Damage("hugging_face", "missing", _HF, missing, D, ("is missing, one of 2",)),
    Damage("hugging_face", "missing", _OPT, missing, D, ("optimizer.pt: is missing, and most",)),
    Damage("hugging_face", "missing", _STATE, missing, D, ("written last: trainer_state.json",)),
    Damage("hugging_face", "other", _STATE, other, D, ("is of step 20",)),
    Damage("hugging_face", "null", _STATE, say("null"), D, ("global_step",)),
    Damage("hugging_face", "no int", _STATE, say('{"global_step": 20.0}'), D, ("got `float`",)),
    Damage("hugging_face", "missing", _SCHEDULER, missing, D, ("scheduler.pt: is missing, and most",)),
    Damage("hugging_face", "missing", _CONFIG, missing, S, ("config.json: is missing, and most",)),
    Damage("hugging_face", "other", _HF, other, S, ("checkpoint-20",)),
    Damage("lightning", "cut", _CKPT, cut, D, ("cut off",)),
    Damage("lightning", "short", _CKPT, short, D, ("cut off",)),
    Damage("lightning", "flip", _CKPT, flip, D, ("state_dict.a.weight", "checksum"), "a.weight"),
    Damage("lightning", "zeros", _CKPT, zeros, D, ("state_dict.b.weight",), "b.weight"),
    Damage("lightning", "more", _CKPT, more, U, ("1,000 bytes lie behind its end",)),
    Damage("lightning", "twice", _CKPT, twice, D, (), "a.weight"),
    Damage("lightning", "empty", _CKPT, empty, D, ("is empty",)),
    Damage("lightning", "head", _CKPT, head, D, ("00 00",)),
    Damage("lightning", "other", _CKPT, other, D, ("is of step 20",)),
    Damage("lightning", "less", _CKPT, _drop_tensor, S, ("state_dict.b.weight",)),
    Damage("lightning", "missing", _LAST, missing, D, ("last.ckpt", "names no save"), of_pointer=True),
    Damage("megatron", "cut", _RANK, cut, D, ("mp_rank_01",)),
    Damage("megatron", "flip", _RANK, flip, D, ("model.a.weight",), "a.weight", 1),
    Damage("megatron", "zeros", _RANK, zeros, D, ("model.b.weight",), "b.weight", 1),
    Damage("megatron", "empty", _RANK, empty, D, ("mp_rank_01", "is empty")),
    Damage("megatron", "missing", _RANK, missing, D, ("tells of 2 parts of the model",)),
    Damage("megatron", "missing", _RANK.replace("01", "00"), missing, D, ("tells of 2 parts of the model",)),
    Damage("megatron", "other", _RANK, other, D, ("is of step 20",)),
    Damage("megatron", "names what is not there", _POINTER, say("300"), D, ("names no save",), of_pointer=True),
    Damage("megatron", "zeros", _POINTER, say("\0\0\0"), D, ("names no save",), of_pointer=True),
    Damage("deepspeed", "cut", _ZERO, cut, D, ("zero_pp_rank_1",)),
    Damage("deepspeed", "flip", _ZERO, flip, D, ("optimizer_state_dict.fp32",), "a.weight", 2),
    Damage("deepspeed", "zeros", _ZERO, zeros, D, ("optimizer_state_dict.fp32",), "a.weight", 2),
    Damage("deepspeed", "empty", _ZERO, empty, D, ("is empty",)),
    Damage("deepspeed", "missing", _ZERO, missing, D, ("tells of 2 ranks",)),
    Damage("deepspeed", "missing", _ZERO.replace("rank_1", "rank_0"), missing, D, ("tells of 2 ranks",)),
    Damage("deepspeed", "flip", _MODEL, flip, D, ("module.b.weight",), "b.weight"),
    Damage("deepspeed", "other", _MODEL, other, D, ("is of step 20",)),
    Damage("deepspeed", "other", _ZERO, other, S, ("global_step20",)),
    Damage("deepspeed", "names a lost save", "latest", say("global_step300"), D, ("names no save",), of_pointer=True),
]
