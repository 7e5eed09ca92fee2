"""Makes the commands and page names that reports print, so that a reader can copy each command and run it."""

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
    """The folders of runs, scenarios and documentation that printed commands name. An empty text means the default
    folder; an empty `docs` means that the documentation is not installed."""

    reports: str = ""
    scenarios: str = ""
    docs: str = "docs"


here = Places()  # of the command that is at work


def command(*words: str) -> str:
    return shlex.join(["chaos", *words])


def copied(name: str) -> str:
    """Returns a name from a log for use in a printed command, or `…` if the name is a path, an option or several
    words."""
    return name if _NAME.fullmatch(name) else "…"


def run_again(name: str, *more: str) -> str:
    return " ".join(["chaos run --plan", name, *more])


def split(step: str) -> tuple[str, str]:
    """Splits advice such as "Run it again: chaos run …" into the words and the command at the end ("" if there is no
    command)."""
    before, found = _STEP.fullmatch(plain(step)).groups("")  # type: ignore[union-attr]  # it fits anything
    return pages_here(before), as_here(found)


def step_here(step: str) -> str:
    return "".join(split(step))


def pages_here(text: str) -> str:
    """Replaces names of documentation pages, such as `docs/resumes.md`, by their paths on this machine."""
    if here.docs:
        return _PAGE.sub(lambda page: f"{here.docs}/{page[1]}", text)
    return _PAGE.sub(lambda page: f"{page[1]} of the documentation", text)


def as_here(text: str) -> str:
    """Adds the folder of runs or scenarios to a command as an option, unless this folder is the default."""
    verb = text.split()[1:2]
    if verb and verb[0] in FIND_RUNS and here.reports:
        text += f" --reports {shlex.quote(here.reports)}"
    if verb == ["gate"] and here.scenarios:
        text += f" --scenarios {shlex.quote(here.scenarios)}"
    return text
