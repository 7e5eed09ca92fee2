"""Lines of any trainer, by a regular expression of the scenario's.

    read: {lines: {regex: 'step (?P<step>\\d+) .*loss (?P<loss>\\S+)'}}

Groups: `step` (needed), `loss`, `grad_norm`, `lr`; with `first_step: 0` the trainer counts its steps from 0. Without
`file`, the standard output of the nodes is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from harness.emitter.vocabulary import Tell
from harness.trainers.readers.contract import LineSource, Reader, Source, Told, count, known, number

LINE_CHARS_MAX = 2000  # that the expression is tried on: some take very long over long lines
GROUPS = ("step", "loss", "grad_norm", "lr")


def _checked(pattern: str) -> str:
    try:
        groups = set(re.compile(pattern).groupindex)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    if "step" not in groups or groups - set(GROUPS):
        raise ValueError(f"{pattern!r} must have a group (?P<step>…); it may have {', '.join(GROUPS[1:])} and no other")
    return pattern


class LinesSource(LineSource):
    def __init__(self, regex: str, offset: int) -> None:
        super().__init__()
        self._regex, self._offset = re.compile(regex), offset

    def line(self, text: str) -> Iterator[Told]:
        found = self._regex.search(text[:LINE_CHARS_MAX])
        told = found.groupdict() if found else {}
        step = count(told.get("step"))
        if step is not None:
            figures = {name: number(told.get(name)) for name in GROUPS[1:]}
            yield Told("step", {"step": step + self._offset, **known(**figures)})


class Lines(Reader):
    tells = frozenset[Tell]({"steps", "loss"})

    regex: Annotated[str, Field(max_length=1000), AfterValidator(_checked)]
    first_step: Literal[0, 1] = 1

    def open(self) -> Source:
        return LinesSource(self.regex, 1 - self.first_step)


READER = Lines
