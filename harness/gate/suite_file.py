"""Reads a suite file: a list of scenarios, each with an optional profile, number of runs, and overrides of values."""

from __future__ import annotations

import datetime
import pathlib
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from harness.parameters import Parameters
from harness.spec.document import Document, read_text
from harness.spec.scenario import REPEAT_MAX, Line, Name, Overrides, find_beside, find_scenario

SCENARIOS_MAX = 1000
LETTERS_MIN = 8  # fewest letters of the reason of a known failure


def _says_something(text: str) -> str:
    """Refuses a text with fewer than `LETTERS_MIN` letters, because a short text would match almost any reason of a
    failure."""
    if sum(map(str.isalpha, text)) < LETTERS_MIN:
        raise ValueError(f"{text!r} is too short; write at least {LETTERS_MIN} letters of the reason")
    return text


Because = Annotated[Line, AfterValidator(_says_something)]


class KnownFailure(Parameters):
    """A failure of a scenario that is expected until the day `until`, but only for the reasons in `because`."""

    ticket: Line = Field(description="Where it is being mended.")
    until: datetime.date = Field(description="The last day on which it may fail, like 2026-12-31.")
    because: Because | Annotated[list[Because], Field(min_length=1, max_length=20)] = Field(
        description="Every reason of a run that fails must say this, or one of these. At least 8 letters."
    )

    @property
    def texts(self) -> list[str]:
        return [self.because] if isinstance(self.because, str) else list(self.because)


class SuiteEntry(Parameters):
    scenario: Line
    matrix: Literal["resume"] | None = Field(
        None, description="Instead of its faults: a restart from each save of its job that matters."
    )
    profile: Line | None = None
    repeat: int | None = Field(None, ge=1, le=REPEAT_MAX)
    overrides: Overrides = Field(default_factory=dict)
    required: bool = Field(True, description="A gate that leaves it out is no full pass.")
    known_failure: KnownFailure | None = None

    @property
    def name(self) -> str:
        return self.named(self.scenario)

    def named(self, scenario: str) -> str:
        """Returns the suite entry's name, for example `SCENARIO`, `SCENARIO (PROFILE)` or `matrix resume SCENARIO`."""
        words = f"{scenario} ({self.profile})" if self.profile else scenario
        return f"matrix {self.matrix} {words}" if self.matrix else words


class Suite(Parameters):
    version: Literal[1]
    name: Name
    title: Line
    blindness_check: Line = Field(
        "blindness-check", description="The scenario that must fail; looked up beside the suite."
    )
    blindness_reason: Line | None = Field(
        None, description="What a reason of its failure must say: its own, no other one."
    )
    scenarios: list[Line | SuiteEntry] = Field(min_length=1, max_length=SCENARIOS_MAX)

    @property
    def entries(self) -> list[SuiteEntry]:
        return [SuiteEntry(scenario=each) if isinstance(each, str) else each for each in self.scenarios]


def load_suite(path: pathlib.Path) -> Suite:
    return parse_suite(read_text(path), str(path))


def parse_suite(text: str, source: str) -> Suite:
    document = Document(text, source)
    return document.valid(Suite, document.data)


def find_suite(name: str, scenarios: pathlib.Path) -> pathlib.Path:
    return find_scenario(name, scenarios / "suites", "suite")


def find_blindness_check(suite: Suite, path: pathlib.Path, scenarios: pathlib.Path) -> pathlib.Path:
    """Returns the file of the blindness check, a scenario that must fail. A blindness check that the suite names, or
    that lies beside the suite, is preferred to the shipped blindness check."""
    shipped = scenarios / "suites" / f"{suite.blindness_check}.yaml"
    own = "blindness_check" in suite.model_fields_set or (path.parent / shipped.name).exists()
    folder = path.parent if own or not shipped.exists() else shipped.parent
    return find_beside(suite.blindness_check, folder, folder)
