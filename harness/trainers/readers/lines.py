"""Reads steps from the output lines of any trainer, by a regular expression in the scenario.

    read: {lines: {regex: 'step (?P<step>\\d+) .*loss (?P<loss>\\S+)'}}

The expression must have a group `step`, and can have groups `loss`, `grad_norm` and `lr`. Write `first_step: 0` for a
trainer that counts its steps from 0. Without `file`, the standard output of the nodes is read.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Annotated, Literal

import regex  # unlike `re`, it can be told how long a search may take
from pydantic import AfterValidator, Field

from harness.node.emitter import Tell
from harness.trainers.readers.contract import (
    EXPRESSION_CHARS_MAX,
    LineSource,
    Reader,
    Source,
    Told,
    count,
    known,
    number,
)

LINE_S = 0.001  # that a search may take in each line, on average; a good expression takes a hundredth
SEARCH_S_MAX = 0.05  # in one line: some expressions take twice as long for each further character
BEHIND_S_MAX = 0.5
GROUPS = ("step", "loss", "grad_norm", "lr")


def _checked(pattern: str) -> str:
    try:
        groups = set(regex.compile(pattern).groupindex)
    except regex.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    if "step" not in groups or groups - set(GROUPS):
        raise ValueError(f"{pattern!r} must have a group (?P<step>…); it may have {', '.join(GROUPS[1:])} and no other")
    return pattern


class LinesSource(LineSource):
    chars_max = EXPRESSION_CHARS_MAX

    def __init__(self, expression: str, offset: int) -> None:
        super().__init__()
        self._expression, self._offset = regex.compile(expression), offset
        self._behind_s = 0.0

    def line(self, text: str) -> Iterator[Told]:
        told = self._groups(text) if self._behind_s < BEHIND_S_MAX else {}
        step = count(told.get("step"))
        if step is not None:
            figures = {name: number(told.get(name)) for name in GROUPS[1:]}
            yield Told("step", {"step": step + self._offset, **known(**figures)})

    def _groups(self, text: str) -> dict[str, str | None]:
        begin_s, found = time.thread_time(), None
        with contextlib.suppress(TimeoutError):
            found = self._expression.search(text, timeout=SEARCH_S_MAX)
        self._behind_s = max(0.0, self._behind_s + time.thread_time() - begin_s - LINE_S)
        if self._behind_s >= BEHIND_S_MAX:
            raise ValueError(
                f"the search for {self._expression.pattern!r} takes far more than {LINE_S * 1000:.0f} ms in a line, so "
                "no further line is searched. Write it without one repeat in another"
            )
        return found.groupdict() if found else {}


class Lines(Reader):
    tells = frozenset[Tell]({"steps", "loss"})

    regex: Annotated[str, Field(max_length=1000), AfterValidator(_checked)]
    first_step: Literal[0, 1] = 1

    def open(self) -> Source:
        return LinesSource(self.regex, 1 - self.first_step)


READER = Lines
