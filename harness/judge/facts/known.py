"""The strength of a fact's evidence. Each fact has its own strength, so no guarantee chooses one."""

import enum
from dataclasses import dataclass
from typing import Protocol


class By(enum.IntEnum):
    """Strength of evidence, from the strongest to the weakest."""

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
    """Returns the strength of a conclusion from all these facts. Without facts, the strength is `SEEN`."""
    return max((fact.by for fact in facts), default=By.SEEN)


@dataclass(frozen=True)
class Word:
    """A claim that only the trainer makes, and its time."""

    at: int
    by: By = By.TOLD


@dataclass(frozen=True)
class Abnormal:
    """An abnormal event that the log shows, in words. `survives`: its steps were not rolled back. `may_be_named`: the
    first and the last step that an alarm about this event may name; `None`: any step."""

    words: str
    step: int
    begin: int  # ns
    survives: bool
    may_be_named: tuple[int, int] | None


@dataclass(frozen=True)
class Odd:
    """A fact that a correct job and a correct log never show, in words."""

    words: str
    by: By = By.SEEN
