"""A trainer of one's own: `trainer: {command: [python, train.py]}`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import Field

from harness.errors import UsageError
from harness.trainers.contract import WORDS_MAX, Path, Word, Workload
from harness.trainers.shared.custom import Command, CustomTrainer, numbered


class CommandTrainer(CustomTrainer):
    """Any trainer: its command on every node, and one beside the nodes (a rendezvous store, say)."""

    last = "command"

    command: list[Word] = Field(min_length=1, max_length=WORDS_MAX)
    control: list[Word] | None = Field(None, max_length=WORDS_MAX)

    def commands(self, workload: Workload, run_id: str) -> tuple[Command, Command | None]:
        return tuple(self.command), tuple(self.control) if self.control else None

    def also_with(self, workload: Workload, words: Sequence[str]) -> Workload:
        if words and re.fullmatch(r".*sh -\w*c", " ".join(self.command[:-1])):
            why = 'end the script with "$@", and the command with one more word, as in: sh -c \'train.py "$@"\' sh'
            raise UsageError(f"what a shell is given with -c hears no further words; {why}")
        return super().also_with(workload, words)

    def words(self) -> dict[Path, str]:
        return numbered("command", self.command) | numbered("control", self.control or ())

    def in_words(self) -> str:
        return " ".join(self.command)


TRAINER = CommandTrainer
