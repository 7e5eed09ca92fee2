"""Builds commands and environment variables that run programs of the harness on a node."""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Mapping, Sequence

OBSERVE_ENV = "CHAOS_OBSERVE"  # `auto`: a trainer is watched by `harness.node.observer`
GPU_ENV = "CHAOS_GPU"  # the folder of a library in the place of NVIDIA's, and of what it is to say
RDMA_ENV = "CHAOS_RDMA"  # the folder of a library that disturbs RDMA, and of what it is to do

# Like `python -m MODULE ARGUMENTS`, with what is at PLACE found first: -c CODE PLACE MODULE ARGUMENTS.
_CODE = (
    "import runpy, sys; sys.path.insert(0, sys.argv[1]); del sys.argv[:2]; "
    'runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)'
)


def place() -> str:
    return os.path.abspath(__file__).rpartition(f"{os.sep}harness{os.sep}node{os.sep}")[0]


def command(python: str, where: str, module: str, arguments: Sequence[str] = (), packages: bool = False) -> list[str]:
    """Returns the command that runs the Python module `module` from the folder or zip archive `where`. The command
    ignores the node's working folder and variables such as PYTHONPATH. If `packages` is True, the module can import
    installed packages."""
    return [python, "-I", *([] if packages else ["-S"]), "-c", _CODE, where, module, *arguments]


def with_delivered(env: Mapping[str, str], where: str) -> dict[str, str]:
    """Returns the environment `env` of a trainer, extended so that the trainer can import the harness and loads the C
    libraries that simulate faults."""
    if env.get(GPU_ENV):
        libraries = [env[GPU_ENV], *([env["LD_LIBRARY_PATH"]] if env.get("LD_LIBRARY_PATH") else [])]
        env = {**env, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}
    if env.get(RDMA_ENV):
        loaded = [f"{env[RDMA_ENV]}/libchaos-rdma.so", *([env["LD_PRELOAD"]] if env.get("LD_PRELOAD") else [])]
        env = {**env, "LD_PRELOAD": os.pathsep.join(loaded)}
    entry = [f"{where}/harness/node/observer/entry"] if env.get(OBSERVE_ENV) == "auto" else []
    others = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
    return {**env, "PYTHONPATH": os.pathsep.join([*entry, where, *others])}


def archive_digest() -> str:
    """Returns the SHA-256 digest of the zip archive that this process runs from, or an empty text if this process runs
    from a folder."""
    archive = pathlib.Path(place())
    return hashlib.sha256(archive.read_bytes()).hexdigest() if archive.is_file() else ""


def trainer_digest(folders: Sequence[str]) -> str:
    """Returns the digest of the reference trainer's code in the first of `folders` that has this code, or an empty
    text."""
    for folder in folders:
        files = sorted(pathlib.Path(folder).glob("reference_trainer/*.py"))
        if files:
            digest = hashlib.sha256()
            for path in files:
                digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
            return digest.hexdigest()[:16]
    return ""
