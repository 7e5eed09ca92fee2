"""Defines every error that a user may get, and its exit code.

    ChaosError
    ├── UsageError            2   the command line names something that does not exist
    │   └── ScenarioError     2   a scenario file is wrong, at a given file:line:column
    ├── CannotRunError        4   this machine or backend cannot do what the plan asks
    ├── BackendError          3   the backend failed during a run, so that there is no verdict
    │   └── NodeGone          3   an operation was requested on a node that no longer exists
    ├── FaultError            3   a fault could not act or could not be undone
    └── EventLogError         3   an event log is damaged, apart from an incomplete last line

Exit codes: 0 pass · 1 fail · 2 usage · 3 inconclusive or invalid · 4 cannot run here · 130 interrupted.
Only `harness.cli.main` turns an error into an exit code.
"""

from __future__ import annotations

import difflib
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

INTERRUPTED = 130  # the exit code of a command that was stopped
WORD_MAX = 80  # characters of a name, as shown
CHOICES_MAX = 100  # names that are compared and shown


class ChaosError(Exception):
    """The base of all errors that the user sees as a message without a traceback."""

    exit_code = 3


class UsageError(ChaosError):
    exit_code = 2


class ScenarioError(UsageError):
    """A mistake in a scenario file, with its file, line and column. `problems` holds texts
    `file:line:column: message`."""

    def __init__(self, problems: list[str]):
        super().__init__("\n".join(problems))
        self.problems = problems


class CannotRunError(ChaosError):
    exit_code = 4


class BackendError(ChaosError):
    pass


class NodeGone(BackendError):
    pass


class FaultError(ChaosError):
    pass


class EventLogError(ChaosError):
    pass


def each(act: Callable[[T], object], items: Iterable[T]) -> None:
    """Calls a function on each item, even if some calls raise `BackendError`. At the end, raises one `BackendError`
    with the texts of all failures."""
    failed = []
    for item in items:
        try:
            act(item)
        except BackendError as error:
            failed.append(str(error))
    if failed:
        raise BackendError("; ".join(failed))


def described(error: BaseException) -> str:
    """Returns the kind and the text of an error. If the error is about an unknown member of an enumeration, the text
    also lists the known members."""
    members = getattr(getattr(error, "obj", None), "__members__", ()) if isinstance(error, AttributeError) else ()
    known = f"; choose one of: {', '.join(members)}" if members else ""
    return f"{type(error).__name__}: {error}{known}"


def choice(word: object, known: Iterable[object]) -> str:
    """Returns the end of a message about an unknown name, such as `did you mean b?` or `choose one of: a, b`."""
    names = tuple(dict.fromkeys(str(name)[:WORD_MAX] for name in itertools.islice(known, CHOICES_MAX)))
    return _choice(str(word)[:WORD_MAX], names)


@functools.lru_cache
def _choice(word: str, names: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, names, 1)
    if close:
        return f"did you mean {close[0]}?"
    return f"choose one of: {', '.join(names)}" if names else "none is defined here"
