"""Defines how strong the evidence for a fact can be. Each fact carries the strength of its evidence."""

import enum
from dataclasses import dataclass
from typing import Protocol


class By(enum.IntEnum):
    """The strength of the evidence for a fact, from the strongest to the weakest."""

    SEEN = 0  # the harness saw the fact, or the accused process logged it
    TOLD = 1  # one process contradicts another, or only the trainer could know the fact
    MISSING = 2  # the fact follows from missing evidence

    @property
    def by(self) -> "By":
        return self

    @property
    def sure(self) -> bool:
        return self is By.SEEN


class Known(Protocol):
    @property
    def by(self) -> By: ...


def weakest(*facts: Known) -> By:
    """Returns the strength of a conclusion: the strength of its weakest fact, or `SEEN` if no fact is given."""
    return max((fact.by for fact in facts), default=By.SEEN)


@dataclass(frozen=True)
class Word:
    """The time and the strength of a claim for which the trainer's log is the only evidence."""

    at: int
    by: By = By.TOLD


@dataclass(frozen=True)
class Odd:
    """A description of something that never happens if both the job and its log are correct."""

    words: str
    by: By = By.SEEN
