"""A trainer of one's own: `trainer: {command: [python, train.py]}`."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from harness.backends.contract import Workload as Launch
from harness.emitter.vocabulary import Tell
from harness.errors import UsageError
from harness.trainers.contract import WORDS_MAX, ForeignTrainer, Word, Workload

Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class CommandTrainer(ForeignTrainer):
    """Any trainer: its command on every node, and one beside the nodes (a rendezvous store, say)."""

    command: list[Word] = Field(min_length=1, max_length=WORDS_MAX)
    control: list[Word] | None = Field(None, max_length=WORDS_MAX)
    env: dict[Variable, Word] = Field(
        {}, description='Environment of both; secrets by reference: HF_TOKEN: "${HF_TOKEN}".'
    )
    tells: list[Tell] | None = Field(
        None, description="What its events tell; the rest is not judged. Default: what the log turns out to hold."
    )
    digest: list[str] = Field(
        [], description="Files that decide what the trainer does, besides those its commands name."
    )

    def launch(self, workload: Workload, run_id: str, seed: int) -> Launch:
        control = tuple(self.control) if self.control else None
        return Launch(tuple(self.command), workload.nodes, workload.ranks_per_node, self.observed(self.env), control)

    def files(self) -> list[pathlib.Path]:
        """Those that the scenario names, and every word of its commands that names a file here."""
        for name in self.digest:
            if not os.path.isfile(name):
                raise UsageError(f"workload.trainer.digest: {name!r} is not a file in the working directory")
        words = [*self.digest, *self.command, *(self.control or ())]
        return [pathlib.Path(word) for word in dict.fromkeys(words) if os.path.isfile(word)]

    def declares(self) -> frozenset[Tell] | None:
        return None if self.tells is None else frozenset(self.tells)

    def environment(self) -> Mapping[str, str]:
        return self.env

    def in_words(self) -> str:
        return " ".join(self.command)


TRAINER = CommandTrainer
