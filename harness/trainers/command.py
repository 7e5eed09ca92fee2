"""A trainer of one's own: `trainer: {command: [python, train.py]}`."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from harness.backends.contract import Workload as Launch
from harness.emitter.vocabulary import Tell
from harness.errors import UsageError
from harness.trainers.contract import WORDS_MAX, Trainer, Word, Workload
from harness.trainers.readers.contract import Read, Reader

Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class CommandTrainer(Trainer):
    """Any trainer: its command on every node, and one beside the nodes (a rendezvous store, say)."""

    command: list[Word] = Field(min_length=1, max_length=WORDS_MAX)
    control: list[Word] | None = Field(None, max_length=WORDS_MAX)
    env: dict[Variable, Word] = Field(
        {}, description='Environment of both; secrets by reference: HF_TOKEN: "${HF_TOKEN}".'
    )
    tells: list[Tell] | None = Field(
        None, description="What its events tell; the rest is not judged. Default: what the log turns out to hold."
    )
    read: Read | None = Field(None, description="What the trainer writes by itself, where it tells no events.")
    digest: list[str] = Field(
        [], description="Files that decide what the trainer does, besides those its commands name."
    )

    def launch(self, workload: Workload, run_id: str, seed: int) -> Launch:
        control = tuple(self.control) if self.control else None
        return Launch(tuple(self.command), workload.nodes, workload.ranks_per_node, self.env, control)

    def files(self) -> list[pathlib.Path]:
        """Those that the scenario names, and every word of its commands that names a file here."""
        for name in self.digest:
            if not os.path.isfile(name):
                raise UsageError(f"workload.trainer.digest: {name!r} is not a file in the working directory")
        words = [*self.digest, *self.command, *(self.control or ())]
        return [pathlib.Path(word) for word in dict.fromkeys(words) if os.path.isfile(word)]

    def declares(self) -> frozenset[Tell] | None:
        if self.tells is None:
            return None if self.read is None else self.read.tells
        return frozenset(self.tells)

    @property
    def teller(self) -> str:
        return "its trainer" if self.read is None else f"the reader {self.read.name}"

    def reader(self) -> Reader | None:
        return self.read

    def to_json(self) -> dict[str, Any]:
        """One that tells its events itself looks as in plans of older versions."""
        data = self.model_dump(mode="json")
        return {name: value for name, value in data.items() if (name, value) != ("read", None)}

    def environment(self) -> Mapping[str, str]:
        return self.env

    def in_words(self) -> str:
        return " ".join(self.command)


TRAINER = CommandTrainer
