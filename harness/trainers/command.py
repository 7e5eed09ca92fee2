"""A trainer that runs a user's own command, in YAML for example `trainer: {command: [python, train.py]}`."""

import re
from collections.abc import Sequence

from pydantic import Field

from harness.errors import UsageError
from harness.trainers.contract import WORDS_MAX, Path, Word, Workload
from harness.trainers.shared.custom import Command, CustomTrainer, numbered

_SHELL = re.compile(r"(?:.*/)?(?:ba|da|k|z)?sh")
_HEARS_WORDS = re.compile(r"\$\{?[@*1]")


class CommandTrainer(CustomTrainer):
    """Runs `command` on every node, and `control` (such as a rendezvous store) once outside of the nodes."""

    last = "command"

    command: list[Word] = Field(min_length=1, max_length=WORDS_MAX)
    control: list[Word] | None = Field(None, max_length=WORDS_MAX)

    def commands(self, workload: Workload, run_id: str) -> tuple[Command, Command | None]:
        return tuple(self.command), tuple(self.control) if self.control else None

    def also_with(self, workload: Workload, words: Sequence[str]) -> Workload:
        script = _script(self.command)
        last = script == len(self.command) - 1
        if words and script is not None and (last or not _HEARS_WORDS.search(self.command[script])):
            why = 'end the script with "$@", and the command with one more word, as in: sh -c \'train.py "$@"\' sh'
            raise UsageError(f"what a shell is given with -c hears no further words; {why}")
        return super().also_with(workload, words)

    def words(self) -> dict[Path, str]:
        return numbered("command", self.command) | numbered("control", self.control or ())

    def in_words(self) -> str:
        return " ".join(self.command)


def _script(command: Sequence[str]) -> int | None:
    """Returns the index of the script after a shell's -c, as in `bash -euo pipefail -c …`, or `None` without -c."""
    shell = next((at for at, word in enumerate(command) if _SHELL.fullmatch(word)), len(command))
    for at in range(shell + 1, len(command) - 1):
        if re.fullmatch(r"-\w*c\w*", command[at]):
            return at + 1
        if not command[at].startswith("-") and not re.fullmatch(r"-\w*o", command[at - 1]):
            break
    return None


TRAINER = CommandTrainer
