"""Reads from a launch command and its script how many steps and ranks a job has, and how the job resumes. Neither the
command nor the script is run."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Sequence

from harness.node.emitter import Axis

READ_MAX = 2**20  # bytes of a script
# An option that says how long the whole job is, with its number: --steps 200, --max_steps=200, trainer.max_steps=200,
# --train-iters 200 of Megatron, --training.steps 200 of torchtitan.
STEPS = re.compile(
    r"(?!.*(?:eval|valid|test|warmup|save|log))(?:--?|\+{1,2})?(?:\w+\.)*"
    r"(?:(?:max|total|num|n|train|training)[-_])*(?:steps|iters|iterations)[ =](?P<number>[1-9]\d*)"
)
_AXES: dict[str, Axis] = {
    "pp": "pp",
    "pipeline": "pp",
    "tp": "tp",
    "tensor": "tp",
    "cp": "cp",
    "context": "cp",
    "ep": "ep",
    "expert": "ep",
    "data_parallel_shard": "fsdp",
    "data_parallel_replicate": "dp",
}
# --tensor-model-parallel-size 2 of Megatron, --parallelism.tensor_parallel_degree 2 of torchtitan, --tp 2
_PARALLEL = re.compile(
    rf"(?:--?|\+{{1,2}})?(?:\w+\.)*(?P<axis>{'|'.join(_AXES)})(?:[-_](?:model[-_])?parallel)?(?:[-_](?:size|degree))?"
    r"[ =](?P<number>[1-9]\d*)"
)
_RESUME = re.compile(r"add_argument\(\s*(?:[\"']-\w[\"'],\s*)?[\"'](--(?:resume|load|restore|continue)[\w-]*)[\"']")
_LAUNCHER = re.compile(
    r"(?:^|[\s/'\"])(torchrun|ft_launcher|deepspeed|accelerate launch|torch\.distributed\.run)(?=\s)"
)
ELSEWHERE = {
    **dict.fromkeys(
        ("srun", "sbatch", "mpirun", "mpiexec", "horovodrun", "pdsh"),
        "asks others for nodes, and these are virtual. Write what it starts on each of them; which one it is on stands "
        "for {index}, and the first one's name for {head}. A job of Slurm itself: chaos run --backend slurm",
    ),
    **dict.fromkeys(
        ("docker", "podman", "kubectl", "apptainer", "singularity", "enroot"),
        "starts the training where it cannot be watched from here. Write the command inside the image, and run the "
        "scenarios with --backend docker or kubernetes",
    ),
    "ray": "hands the training to a cluster that this look does not see. Write what it submits: python train.py",
}


def numbers(words: Sequence[str], option: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
    """Yields the index and the regular-expression match of each command-line option that holds a number, such as
    `--steps 200`."""
    for at, (before, word) in enumerate(zip(["", *words], words, strict=False)):
        if match := option.fullmatch(word) or option.fullmatch(f"{before} {word}"):
            yield at, match


def steps_asked(words: Sequence[str]) -> int:
    """Returns how many steps the command's options ask for, or 0 if the options give no number of steps or different
    numbers."""
    asked = {int(match["number"]) for _, match in numbers(words, STEPS)}
    return asked.pop() if len(asked) == 1 else 0


def sizes_asked(words: Sequence[str]) -> dict[Axis, int]:
    """Returns how many ranks the command's options ask for along each axis of the mesh. The order of the axes cannot be
    read from the options."""
    found = {_AXES[match["axis"]]: int(match["number"]) for _, match in numbers(words, _PARALLEL)}
    return {axis: size for axis, size in found.items() if size > 1}


def resume_option(script: str, words: Sequence[str]) -> str:
    """Returns the script's option to resume, such as `--resume`, or an empty text if the script has none or if the
    command sets one."""
    options = _RESUME.findall(_text(script)) if script.endswith(".py") else []
    given = " ".join(words).replace("_", "-")
    return "" if any(each.replace("_", "-") in given for each in options) else next(iter(options), "")


def another_launcher(command: Sequence[str], script: str) -> str:
    """Returns advice to the user if a shell script or another program hides the launcher (such as torchrun). The advice
    is an empty text if nothing hides the launcher."""
    program = pathlib.PurePath(command[0]).name
    if program in ELSEWHERE:
        return f"{program} {ELSEWHERE[program]}"
    words = " ".join(command[1:]) + " "
    if (found := _LAUNCHER.search(words)) and not re.search(r"\b(?:until|while)\b", words):  # a loop starts it again
        return f"{program} stands in front of {found[1]}. For a job on two nodes, write the command from {found[1]} on"
    for number, line in enumerate(_text(script).splitlines() if script.endswith((".sh", ".bash")) else (), 1):
        if not line.lstrip().startswith("#") and (found := _LAUNCHER.search(f" {line} ")):
            return f"{script} calls {found[1]} in line {number}. For a job on two nodes, write that command itself"
    return ""


def _text(script: str) -> str:
    try:
        with open(script, "rb") as file:
            return file.read(READ_MAX).decode(errors="replace")
    except OSError:
        return ""
