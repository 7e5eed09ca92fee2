"""How a fact is known. Each fact that may break a guarantee tells it, and so no guarantee weighs for itself."""

import enum
from dataclasses import dataclass
from typing import Protocol


class By(enum.IntEnum):
    """From the strongest to the weakest."""

    SEEN = 0  # the harness saw it, or the one told it whom it speaks against
    TOLD = 1  # one word stands against another one, or nobody but the trainer could know
    MISSING = 2  # nobody told it: it follows from what is not there

    @property
    def by(self) -> "By":
        return self

    @property
    def sure(self) -> bool:
        return self is By.SEEN


class Known(Protocol):
    @property
    def by(self) -> By: ...


@dataclass(frozen=True)
class Word:
    """The trainer's own word, which nothing else bears out: when it was given."""

    at: int
    by: By = By.TOLD


@dataclass(frozen=True)
class Odd:
    """Something that must not be so, in words."""

    words: str
    by: By = By.SEEN
