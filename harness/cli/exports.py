"""Defines exports, which pass the results of runs to other tools. Each export is a command-line option of the same
name.

An export is an entry point of the group `chaos_harness.exports`: a file that defines an `Export`, and a line in
pyproject.toml. Other packages may add exports.
"""

import contextlib
import functools
import inspect
import pathlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from harness.campaign.campaign_observers import CampaignObserver, Together
from harness.cli.output import err, say
from harness.errors import UsageError
from harness.extras import needed
from harness.judge.score import Scorecard
from harness.plugins import entry_points

GROUP = "chaos_harness.exports"
Live = contextlib.AbstractContextManager[tuple[CampaignObserver, str]]


@dataclass(frozen=True)
class Export:
    """An export of runs to another tool. `metavar` and `help` describe the export's command-line option. `extra` is the
    optional dependency group (extra) of this package that the export needs. At least one of `stored` and `live` must be
    set.

    `stored` checks the option's value, and returns a function that exports the run in a given folder and returns a
    message. If `each` is True, runs are also exported as soon as they are judged. `live` takes the option's value, and
    the share of GPU time that a job may waste if its plan sets no limit. `live` returns a context manager, which yields
    an observer of the job and a text that says where to see the data.
    """

    metavar: str
    help: str
    extra: str = ""
    stored: Callable[[str], Callable[[pathlib.Path], str]] | None = None
    each: bool = False
    live: Callable[[str, float | None], Live] | None = None


Chosen = Mapping[str, tuple[Export, str]]  # by its name: an export, and the value of its option


@functools.cache
def exports() -> Mapping[str, Export]:
    """Returns all exports by name. An export that cannot be loaded is left out, with an error on stderr."""
    found = {}
    for name, point in entry_points(GROUP).items():
        try:
            found[name] = point.load()
        except Exception as error:  # a package's own code
            why = f"{type(error).__name__}: {error}"
            err.print(f"The export {name!r} of {point.value} is left out: {why}", soft_wrap=True)
    return found


def offering(wanted: Callable[[Export], bool]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the options of all exports that `wanted` accepts to a command. The exports that the user chose are passed to
    the command as the argument `chosen`."""

    def offer(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        offered = {name: export for name, export in exports().items() if wanted(export)}
        for name in offered.keys() & own.parameters.keys():
            raise UsageError(f"the export {name!r} and an option of chaos {command.__name__} have the same name")

        @functools.wraps(command)
        def with_exports(**given: Any) -> None:
            values = {name: given.pop(name) for name in offered}
            command(**given, chosen={name: (offered[name], value) for name, value in values.items() if value})

        options = []
        for name, export in offered.items():
            about = export.help + (f" Needs the extra {export.extra}." if export.extra else "")
            option = typer.Option(f"--{name.replace('_', '-')}", metavar=export.metavar, help=about)
            kind = Annotated[str, option]
            options.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default="", annotation=kind))
        kept = [each for name, each in own.parameters.items() if name != "chosen"]
        with_exports.__signature__ = own.replace(parameters=[*kept, *options])  # type: ignore[attr-defined]
        return with_exports

    return offer


def writers(chosen: Chosen) -> list[Callable[[pathlib.Path], str]]:
    """Returns functions that export a run's folder to the chosen tools. Raises `UsageError` or `CannotRunError` if an
    export cannot be used."""
    found = []
    for name, (export, value) in chosen.items():
        if export.stored is not None:
            with needed(f"--{name}", export.extra):
                found.append(export.stored(value))
    return found


class Telling(CampaignObserver):
    """Passes each judged run to the chosen exports. An error in an export is printed, and changes no verdict."""

    def __init__(self, chosen: Chosen, *others: Callable[[pathlib.Path], str | None]) -> None:
        self._tell = [*others, *writers(chosen)]

    def judged(self, card: Scorecard, files: Mapping[str, pathlib.Path]) -> None:
        for tell in self._tell:
            try:
                if told := tell(files["report.json"].parent):
                    say(told, "dim")
            except Exception as error:  # whatever breaks here, the verdict is already known
                say(f"The verdict stands, but others could not be told of it: {error}")


@contextlib.contextmanager
def watched(observer: CampaignObserver, chosen: Chosen, budget: float | None = None) -> Iterator[CampaignObserver]:
    """Yields an observer that also lets the chosen exports observe a running job.

    `budget` is the share of GPU time (0 to 1) that the job may waste if its plan sets no limit.
    """
    with contextlib.ExitStack() as stack:
        watching = [observer]
        for name, (export, value) in chosen.items():
            if export.live is not None:
                with needed(f"--{name}", export.extra, ", or leave the option out"):
                    live = export.live(value, budget)
                more, shown = stack.enter_context(live)
                say(f"  {name}: {shown}", "dim")
                watching.append(more)
        yield Together(*watching)
