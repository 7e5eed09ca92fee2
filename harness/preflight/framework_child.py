"""Loads checkpoint files with the frameworks of this program's Python, in which the harness is not installed.

Reads lines `{"kind": …, "path": …}` from standard input, and answers each line with `{"path": …, "loaded": yes · no ·
not tried, "why": …}`."""

from __future__ import annotations

import importlib
import json
import resource
import sys


def torch_file(path: str) -> None:
    importlib.import_module("torch").load(path, map_location="cpu", weights_only=True)


def safetensors_file(path: str) -> None:
    with importlib.import_module("safetensors").safe_open(path, "numpy") as opened:
        for name in [*opened.keys()]:
            opened.get_slice(name)[:]


def dcp_folder(path: str) -> None:
    torch, dcp = (importlib.import_module(name) for name in ("torch", "torch.distributed.checkpoint"))
    told = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    sizes = {name: getattr(each, "size", None) for name, each in told.items()}
    empty = {
        name: None if size is None else torch.empty(size, dtype=told[name].properties.dtype)
        for name, size in sizes.items()
    }
    dcp.load(empty, checkpoint_id=path, no_dist=True)


KINDS = {"torch": torch_file, "safetensors": safetensors_file, "dcp": dcp_folder}


def answer(kind: str, path: str) -> tuple[str, str]:
    try:
        KINDS[kind](path)
    except ImportError as error:
        return "not tried", str(error)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError) or "can't allocate memory" in text:
            return "not tried", "it needs more memory than it may have"
        if "Unsupported global" in text or "add_safe_globals" in text:
            return "not tried", "it holds more than weights, which loading would run"
        return "no", text[:500]
    return "yes", ""


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
    for line in sys.stdin:
        job = json.loads(line)
        loaded, why = answer(job["kind"], job["path"])
        print(json.dumps({"path": job["path"], "loaded": loaded, "why": why}), flush=True)
