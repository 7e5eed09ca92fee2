"""Defines what all trainers except the reference trainer have in common, such as files and placeholders."""

import abc
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from harness.backends.contract import Launch
from harness.backends.run_folder import CHECKPOINTS
from harness.errors import UsageError
from harness.node.boot import OBSERVE_ENV
from harness.node.emitter import STORE_ENV, Tell
from harness.trainers.contract import Checkpoint, Path, Trainer, Variable, Word, Workload
from harness.trainers.readers.contract import Read, Reader
from harness.trainers.shared import named_files, placeholders

Command = tuple[str, ...]


class CustomTrainer(Trainer):
    """The base of all trainers except the reference trainer. A subclass defines the commands that start the trainer."""

    last: ClassVar[str] = "args"  # the key whose words its command ends with

    env: dict[Variable, Word] = Field(
        {}, description='Environment of its commands; secrets by reference: HF_TOKEN: "${HF_TOKEN}".'
    )
    tells: list[Tell] | None = Field(
        None, description="What its events report; the rest is not judged. Default: whatever the log holds."
    )
    read: Read | None = Field(None, description="What the trainer writes by itself, if it reports no events.")
    digest: list[str] = Field(
        [], description="Files that decide what the trainer does, besides those its commands name."
    )
    observe: Literal["auto", "off"] = Field(
        "auto", description="auto: watch it from within Python, without changing it; off: only its own events count."
    )
    scenario_dir: str | None = Field(None, description="Where its files are; default: the scenario file's folder.")

    @abc.abstractmethod
    def commands(self, workload: Workload, run_id: str) -> tuple[Command, Command | None]:
        """Returns the command for every node, and the command that runs once outside of the nodes. Placeholders in the
        commands are not filled yet."""

    @abc.abstractmethod
    def words(self) -> dict[Path, str]:
        """Maps the place of each argument in the scenario (the keys below `trainer`) to the argument."""

    def scripts(self) -> list[str]:
        """Returns the file paths in the trainer's command; relative paths start at the scenario's folder."""
        return []

    def modules(self) -> list[str]:
        """Returns the Python modules that the trainer starts; modules after `-m` in its command may be left out."""
        return []

    def settings(self, workload: Workload) -> Mapping[str, str]:
        """Returns the environment variables that this kind of trainer sets, unless the scenario sets them."""
        return {}

    def launch(self, workload: Workload, run_id: str, seed: int) -> Launch:
        command, control = self.commands(workload, run_id)
        values = known(workload, run_id, seed)
        if self.scenario_dir is not None:
            values["scenario_dir"] = placeholders.escaped(self.scenario_dir)
        given = {**self.settings(workload), **self.env}
        fixed, late, fitting = placeholders.fill_variables(given, values)
        fixed[OBSERVE_ENV] = self.observe if self.read is None else "off"
        if fixed[OBSERVE_ENV] == "auto":
            fixed[STORE_ENV] = workload.checkpoint.folder
        return Launch(
            (*late, *placeholders.fill(command, values)),
            workload.nodes,
            workload.ranks_per_node,
            fixed,
            None if control is None else (*fitting, *placeholders.fill(control, values)),
            sources=() if self.scenario_dir is None else (self.scenario_dir,),
        )

    def also_with(self, workload: Workload, words: Sequence[str]) -> Workload:
        trainer = self.model_copy(update={self.last: [*getattr(self, self.last), *words]})
        return workload.model_copy(update={"trainer": trainer})

    def beside(self, folder: pathlib.Path) -> Trainer:
        used = "scenario_dir" in self._used() or self.scripts()
        return self.model_copy(update={"scenario_dir": str(folder)}) if used and not self.scenario_dir else self

    def files(self) -> list[pathlib.Path]:
        for name in self.digest:
            if not os.path.isfile(name):
                raise UsageError(f"workload.trainer.digest: {name!r} is not a file in the working directory")
        here = {"scenario_dir": self.scenario_dir or "."}
        named = placeholders.fill([*self.words().values(), *map(beside_scenario, self.scripts())], here)
        (path,) = placeholders.fill([self.env.get("PYTHONPATH", "")], here)
        folders = [os.getcwd(), *filter(None, path.split(os.pathsep))]
        return named_files.named_files([*self.digest, *named], folders, self.modules())

    def problems(self, workload: Workload) -> Iterator[tuple[Path, str]]:
        places = self._places()
        for word in self.scripts():
            if beside_scenario(word) != word and not os.path.isfile(os.path.join(self.scenario_dir or ".", word)):
                folder = f"in {self.scenario_dir}, the folder of the scenario"
                yield ("trainer", self.name), f"no file {word!r} {folder}; an absolute path is a path on the node"
        for place, word in places.items():
            if (why := placeholders.unknown_in(word)) is not None:
                yield ("trainer", *place), why
        if placeholders.for_nodes(self.env.get("PYTHONPATH", "")):
            yield ("trainer", "env", "PYTHONPATH"), "may only hold what the plan knows, such as {scenario_dir}"
        used = self._used()
        if "steps" in used and workload.steps is None:
            yield ("trainer",), "{steps} is in its command, but the workload has no steps: key"
        yield from _ignored(workload, used, list(places.values()))

    def _places(self) -> dict[Path, str]:
        return {("env", name): value for name, value in self.env.items()} | self.words()

    def _used(self) -> set[str]:
        return {name for word in self._places().values() for name in placeholders.names_in(word)}

    def declares(self) -> frozenset[Tell] | None:
        if self.tells is None:
            return None if self.read is None else self.read.tells
        return frozenset(self.tells)

    @property
    def teller(self) -> str:
        return "its trainer" if self.read is None else f"the reader {self.read.name}"

    def paced_by(self, checkpoint: Checkpoint) -> bool:
        return "checkpoint_every" in self._used() or "every_steps" in checkpoint.model_fields_set

    def reader(self) -> Reader | None:
        return self.read

    def environment(self) -> Mapping[str, str]:
        return self.env

    def to_json(self) -> dict[str, Any]:
        data = self.model_dump(mode="json")
        common = {name: data.pop(name) for name in CustomTrainer.model_fields}
        unsaid = {name for name in ("scenario_dir", "read") if common[name] is None}
        return data | {name: value for name, value in common.items() if name not in unsaid}


def known(workload: Workload, run_id: str, seed: int) -> dict[str, object]:
    found = {
        "checkpoint_every": workload.checkpoint.every_steps,
        "checkpoints": f"{{run_dir}}/{CHECKPOINTS}",
        "data": "{run_dir}/data",
        "keep": workload.checkpoint.keep,
        "min_nodes": workload.min_nodes,
        "node_rank": "{index}",
        "nodes": workload.max_nodes,
        "ranks": workload.world_size,
        "ranks_per_node": workload.ranks_per_node,
        "run_id": run_id,
        "seed": seed,
    }
    return found if workload.steps is None else found | {"steps": workload.steps}


def _ignored(workload: Workload, used: set[str], words: Sequence[str]) -> Iterator[tuple[Path, str]]:
    if workload.args:
        yield ("args",), "is for the reference trainer; write the arguments of this one inside trainer:"
    if workload.env:
        yield ("env",), "is for the reference trainer; write the variables of this one inside trainer:"
    if workload.data is not None and "data" not in used and not any("{run_dir}/data" in word for word in words):
        yield ("data",), "makes files that this trainer does not read: its command has no {data}"
    checkpoint = workload.checkpoint
    for key, name in (("every_steps", "checkpoint_every"), ("keep", "keep")):
        number = str(getattr(checkpoint, key))  # it may stand in a word, written out: --save-every=20
        handed = name in used or any(number in re.findall(r"\d+", word) for word in words)
        if key in checkpoint.model_fields_set and not handed:
            text = f"the trainer never gets this value: write {{{name}}} into its arguments, or remove the key"
            yield ("checkpoint", key), text
    if checkpoint.every is not None:
        yield ("checkpoint", "every"), "is for the reference trainer; write how often this one saves inside trainer:"
    if checkpoint.store != "directory":
        yield ("checkpoint", "store"), "is for the reference trainer: this trainer does not get a store"


def numbered(key: str, words: Sequence[str]) -> dict[Path, str]:
    return {(key, place): word for place, word in enumerate(words)}


def beside_scenario(word: str) -> str:
    return word if word.startswith(("/", "{")) else f"{{scenario_dir}}/{word}"
