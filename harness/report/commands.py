"""The commands and pages that results print. A command runs as it stands: the same job, file and seed again."""

import re
import shlex
from dataclasses import dataclass

from harness.report.words import plain

REHEARSALS = "rehearsals"  # in the folder of a game day: a folder each, with its report and its plan
FIND_RUNS = {"baseline", "compare", "export", "forecast", "gate", "history", "matrix", "preflight"}
FIND_RUNS |= {"report", "run", "score", "show"}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_PAGE = re.compile(r"\bdocs/([\w./-]+\.md(?:#[\w-]+)?)")
_STEP = re.compile(r"(.*?)(?:(chaos [a-z].*))?", re.DOTALL)


@dataclass
class Places:
    """The options by which commands find runs and scenarios. Empty: they find them by themselves. `docs`: the folder of
    the documentation, as people reach it; empty: it is not here, as in an installed copy."""

    reports: str = ""
    scenarios: str = ""
    docs: str = "docs"


here = Places()  # of the command that is at work


def command(*words: str) -> str:
    return shlex.join(["chaos", *words])


def copied(name: str) -> str:
    """Returns a name from a log for a command that people copy; `…` for a path, an option or several words."""
    return name if _NAME.fullmatch(name) else "…"


def run_again(name: str, *more: str) -> str:
    """Returns a command that runs the same plan under a new run id. `name`: by which commands find the run."""
    return " ".join(["chaos run --plan", name, *more])


def split(step: str) -> tuple[str, str]:
    """Splits a step into its words and the command after them. Nothing follows a command: people copy the line."""
    before, found = _STEP.fullmatch(plain(step)).groups("")  # type: ignore[union-attr]  # it fits anything
    return pages_here(before), as_here(found)


def step_here(step: str) -> str:
    """Returns the step with options by which its command finds runs and scenarios from here."""
    return "".join(split(step))


def pages_here(text: str) -> str:
    """Names pages of the documentation, as `docs/resumes.md`, so that they are found from here."""
    if here.docs:
        return _PAGE.sub(lambda page: f"{here.docs}/{page[1]}", text)
    return _PAGE.sub(lambda page: f"{page[1]} of the documentation", text)


def as_here(text: str) -> str:
    """Adds the places of runs and scenarios to a command, if it does not look there by itself."""
    verb = text.split()[1:2]
    if verb and verb[0] in FIND_RUNS and here.reports:
        text += f" --reports {shlex.quote(here.reports)}"
    if verb == ["gate"] and here.scenarios:
        text += f" --scenarios {shlex.quote(here.scenarios)}"
    return text
