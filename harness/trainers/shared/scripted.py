"""Defines the base class of trainers in which a launcher runs a script or a module."""

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from harness.trainers.contract import WORDS_MAX, Path, Word, Workload
from harness.trainers.shared.custom import Command, CustomTrainer, beside_scenario, numbered


class ScriptTrainer(CustomTrainer):
    fixed_size: ClassVar[bool] = False  # its launcher cannot go on with fewer nodes

    args: list[Word] = Field([], max_length=WORDS_MAX, description="Arguments of the script.")
    python: Word = Field("{python}", min_length=1, description="The interpreter that has the trainer's packages.")

    @property
    def target(self) -> str:
        named: str = getattr(self, self.name)
        return named

    @property
    def as_module(self) -> str:
        return self.target.removeprefix("-m ").strip() if self.target.startswith("-m ") else ""

    @property
    def interpreter(self) -> str:
        return beside_scenario(self.python) if "/" in self.python else self.python

    def script(self) -> Command:
        what = ("-m", self.as_module) if self.as_module else (beside_scenario(self.target),)
        return (*what, *self.args)

    def words(self) -> dict[Path, str]:
        named: dict[Path, str] = {(self.name,): self.target, ("python",): self.python}
        return named | numbered("args", self.args)

    def scripts(self) -> list[str]:
        interpreter = [self.python] if "/" in self.python else []
        return interpreter if self.as_module else [self.target, *interpreter]

    def modules(self) -> list[str]:
        return [self.as_module] if self.as_module else []

    def in_words(self) -> str:
        return " ".join([self.name, self.target, *self.args])

    def problems(self, workload: Workload) -> Iterator[tuple[Path, str]]:
        yield from super().problems(workload)
        if self.fixed_size and workload.max_nodes != workload.nodes:
            yield ("max_nodes",), f"{self.name} starts a job on all nodes; torchrun leaves spare ones out"
        if self.fixed_size and workload.min_nodes != workload.max_nodes:
            yield ("min_nodes",), f"{self.name} starts a job on a fixed number of nodes; torchrun can go on with fewer"
