"""Recognises a training's command: launcher, script, number of ranks, framework. Neither the command nor the script is
run or imported."""

from __future__ import annotations

import ast
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.backends.contract import PLACEHOLDERS
from harness.errors import UsageError
from harness.trainers.shared import placeholders

FRAMEWORKS = {
    "transformers": "Hugging Face",
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "torchft": "torchft",
    "accelerate": "accelerate",
    "deepspeed": "DeepSpeed",
    "megatron": "Megatron",
    "ray": "Ray",
}
SOURCE_BYTES_MAX = 4 * 2**20
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Recognised:
    launcher: str
    script: str  # empty: a module
    trainer: dict[str, Any]  # as in a scenario
    ranks: int  # of the whole job, as the command asks
    framework: str
    left_out: tuple[str, ...] = ()  # options that the harness sets by itself
    nodes: int = 2  # each with a start of its own; two, so that one can be lost
    no_restarts: bool = False  # the command leaves its launcher's number of restarts at 0
    named: str = ""  # the script, or -m and a module; empty: the command names neither

    @property
    def words(self) -> list[str]:
        """Returns the trainer script's arguments or, if the command starts its own ranks, the whole command."""
        return list(self.trainer.get("args") or self.trainer.get("command") or ())


ON_NODES = {*PLACEHOLDERS, "node_rank"} - {"python", "run_dir"}  # a command with one of them is one of several
SCRIPTS = (".py", ".sh", ".bash")
TORCHRUN_FLAGS = {"standalone", "m", "module", "no-python", "run-path", "virtual-local-rank", "signals-to-handle"}
TORCHRUN_KEPT = {"max-restarts", "nproc-per-node", "nnodes", "m", "module"}
ACCELERATE_FLAGS = {"cpu", "multi-gpu", "m", "module", "no-python", "quiet", "debug", "use-deepspeed", "use-fsdp"}
ACCELERATE_KEPT = {"num-processes", "m", "module"}
DEEPSPEED_FLAGS = {"m", "module", "no-python", "no-local-rank", "force-multi", "no-ssh", "bind-cores-to-rank"}
DEEPSPEED_FLAGS |= {"elastic-training", "no-ssh-check"}
DEEPSPEED_KEPT = {"num-gpus", "num-nodes", "m", "module", "no-local-rank"}


def recognise(command: Sequence[str]) -> Recognised:
    """Finds the launcher, the script and the number of ranks in the command that starts a training. If the launcher is
    unknown, scenarios run the command unchanged, usually on one node. Raises `UsageError` if the command is empty, or
    if its program or its script cannot be found."""
    if not command:
        raise UsageError("write the command that starts your training after --: chaos init -- torchrun train.py")
    name, words, python = _program(list(command))
    return LAUNCHERS.get(name, _other)(words, python, command)


def _program(command: list[str]) -> tuple[str, list[str], str | None]:
    name = pathlib.PurePath(command[0]).name
    python = _interpreter(command[0])
    if name.startswith("python") and command[1:3] == ["-m", "torch.distributed.run"]:
        return "torchrun", command[3:], python
    if name.startswith("python") and command[1:3] == ["-m", "accelerate.commands.launch"]:
        return "accelerate", command[3:], python
    if name == "accelerate" and command[1:2] == ["launch"]:
        return "accelerate", command[2:], python
    return name, command[1:], python


def _interpreter(program: str) -> str | None:
    found = shutil.which(program)
    if found is None:
        quoted = "without quotes around it, " if " " in program else ""
        raise UsageError(
            f"unknown program {program!r}: it is not on the PATH; write the command {quoted}as you type it in your "
            "shell, with the environment of your training active, or with its whole path"
        )
    folder = pathlib.Path(found).parent
    python = pathlib.Path(found) if pathlib.Path(found).name.startswith("python") else folder / "python3"
    if not python.exists() or folder == pathlib.Path(sys.executable).parent:
        return None
    return os.path.abspath(python)


def _options(words: Sequence[str], flags: set[str]) -> tuple[dict[str, str], list[str]]:
    options, rest = dict[str, str](), list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        name, given, value = rest.pop(0).lstrip("-").partition("=")
        name = name.replace("_", "-")
        if not given and name not in flags and rest:
            value = rest.pop(0)
        options[name] = value
        if name in ("m", "module"):
            break
    return options, rest


def _torchrun(words: Sequence[str], python: str | None, command: Sequence[str]) -> Recognised:
    options, rest = _options(words, TORCHRUN_FLAGS)
    script, args = _script(options, rest, command)
    per_node = _count(options.get("nproc-per-node", "1"))
    nodes = _count(options.get("nnodes", "1").rpartition(":")[2])
    trainer: dict[str, Any] = {"torchrun": script, "args": args}
    if "max-restarts" in options:
        trainer["max_restarts"] = _count(options["max-restarts"])
    if per_node > 1 and per_node * nodes <= Recognised.nodes and THREADS not in os.environ:
        trainer["env"] = {THREADS: "1"}  # torchrun's own default for several ranks a node, of which one is left here
    found = _recognised("torchrun", script, trainer, python, per_node * nodes, options, TORCHRUN_KEPT)
    return replace(found, no_restarts="max-restarts" not in options)


def _accelerate(words: Sequence[str], python: str | None, command: Sequence[str]) -> Recognised:
    options, rest = _options(words, ACCELERATE_FLAGS)
    script, args = _script(options, rest, command)
    ranks = _count(options.get("num-processes", "1"))
    trainer: dict[str, Any] = {"accelerate": script, "args": args}
    found = _recognised("accelerate", script, trainer, python, ranks, options, ACCELERATE_KEPT)
    return replace(found, no_restarts=True)


def _deepspeed(words: Sequence[str], python: str | None, command: Sequence[str]) -> Recognised:
    options, rest = _options(words, DEEPSPEED_FLAGS)
    script, args = _script(options, rest, command)
    ranks = _count(options.get("num-gpus", "1")) * _count(options.get("num-nodes", "1"))
    trainer: dict[str, Any] = {"deepspeed": script, "args": args}
    if "no-local-rank" in options:
        trainer["local_rank_arg"] = False
    return _recognised("deepspeed", script, trainer, python, ranks, options, DEEPSPEED_KEPT)


def _python(words: Sequence[str], python: str | None, command: Sequence[str]) -> Recognised:
    script, args = _script(*_options(words, {"u", "O", "m"}), command)
    own = ["-m", script.removeprefix("-m ")] if script.startswith("-m ") else [script]
    return _started_once("python", script, [python or "{python}", *own, *args])


def _other(words: Sequence[str], _: str | None, command: Sequence[str]) -> Recognised:
    script = next((word for word in command if word.endswith(SCRIPTS) and os.path.isfile(word)), "")
    program = os.path.abspath(command[0]) if "/" in command[0] and command[0] != script else command[0]
    return _started_once(pathlib.PurePath(command[0]).name, script, [program, *words])


def _started_once(launcher: str, script: str, words: list[str]) -> Recognised:
    """Gives one node to a command that starts all ranks itself, because two nodes would run it as two separate jobs.
    Gives two nodes to a command that names its node by a placeholder such as `{index}`, or that uses torchft, whose
    replicas are started one by one."""
    found = _recognised(launcher, script, {"command": words}, None, 1, {}, set())
    of_several = any(name in ON_NODES for word in words for name in placeholders.names_in(word))
    return found if of_several or found.framework == "torchft" else replace(found, nodes=1)


LAUNCHERS: dict[str, Callable[[Sequence[str], str | None, Sequence[str]], Recognised]] = {
    "torchrun": _torchrun,
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
    "python": _python,
    "python3": _python,
}


def _script(options: dict[str, str], rest: Sequence[str], command: Sequence[str]) -> tuple[str, list[str]]:
    if not rest:
        raise UsageError(f"{' '.join(command)!r}: no script is named")
    script, *args = rest
    if {"m", "module"} & options.keys():
        return f"-m {script}", args
    if not pathlib.Path(script).is_file():
        raise UsageError(f"{script!r}: no such file; call chaos init in the folder from which you start your training")
    return script, args


def _count(text: str) -> int:
    """Parses the number of processes in a launcher's option. The texts `gpu` and `auto` count as one process."""
    return int(text) if text.isdecimal() else 1


def _recognised(
    launcher: str,
    script: str,
    trainer: dict[str, Any],
    python: str | None,
    ranks: int,
    options: dict[str, str],
    kept: set[str],
) -> Recognised:
    left_out = tuple(f"--{name}" for name in options if name not in kept)
    if python is not None:
        trainer["python"] = python
    trainer = {name: value for name, value in trainer.items() if value != []}
    file = "" if script.startswith("-m ") else script
    framework = framework_of(file or f"{script.removeprefix('-m ').replace('.', '/')}.py")
    return Recognised(launcher, file, trainer, max(1, ranks), framework, left_out, named=script)


def framework_of(script: str) -> str:
    """Returns the name of the framework that a script imports, or `plain PyTorch` if the script imports none."""
    try:
        with open(script, "rb") as file:
            tree = ast.parse(file.read(SOURCE_BYTES_MAX))
    except (OSError, SyntaxError, ValueError):
        return "framework not recognised"
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    tops = {name.partition(".")[0] for name in names}
    return next((title for top, title in FRAMEWORKS.items() if top in tops), "plain PyTorch")
