"""Runs the `chaos` command. Only this module turns an error into an exit code (see `harness.errors`).

Commands are imported after the signal handler is set, inside the `try` block of `main`, so that even a broken
installation ends with one clear line and a defined exit code.
"""

from __future__ import annotations

import errno
import importlib
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.errors import INTERRUPTED, CannotRunError, ChaosError, UsageError

if TYPE_CHECKING:
    import typer

UNEXPECTED = 3
WORD_MAX = 400  # characters of a path or a name, as shown
NAMES_IN_WORDS = "a name may have 255 bytes, a whole path 4095"

HELP = """Break a distributed training on purpose, and measure whether it survives.

chaos launches a trainer, injects a real fault from a scenario, undoes it, and scores recovery time, wasted \
GPU-hours and loss continuity. The verdict is the exit code: 0 pass, 1 fail, 2 usage error, 3 inconclusive or \
invalid, 4 this machine cannot run it.

Examples:

  chaos run spot-evict           one scenario, on virtual nodes of this machine

  chaos runs --since 7d          the runs of the last week and their verdicts

  chaos --help --all             all commands; this page has the usual ones
"""

FIRST_PAGE = {"run", "gate", "gameday", "init", "list", "plan", "preflight", "doctor"}
FIRST_PAGE |= {"runs", "show", "compare", "score", "forecast", "heal"}

# By group, the name of each command: where it is in `harness` (`:` its function, if that has another name), and the
# first line of its help.
COMMANDS = {
    "Run": {
        "run": ("cli.run", "Run a scenario and judge it."),
        "gate": ("gate.gate_command", "Run a suite and give one verdict. A scenario that must fail runs first."),
        "gameday": ("gameday.day_command", "Run a schedule of scenarios on one job, with a live page."),
        "init": ("adopt.init_command", "Watch your own training, unchanged, and write scenarios for it."),
        "matrix": ("matrix.matrix_command", "Restart a job on damaged saves, or from each save that matters."),
        "explore": (
            "explore.explore_command:explore_",
            "Try the job's restore on each state that a crash during a save may leave.",
        ),
        "fuzz": ("fuzz.fuzz_command", "Search for schedules of faults that a job does not survive."),
    },
    "Before a run": {
        "list": ("cli.listing:list_", "List scenarios, suites and game days, or the keys of `expect:`."),
        "faults": ("cli.listing", "List the faults, and which backends inject them here; with a name, its parameters."),
        "guarantees": ("cli.listing", "List the guarantees that each run must keep; with a name, its details."),
        "plan": ("cli.scenarios", "Say what a scenario would do, or print the engine's request. Launches nothing."),
        "checkpoint": ("preflight.checkpoint_command", "Say which saves are whole, and which file or tensor is bad."),
        "preflight": ("preflight.preflight_command", "Test a cluster for a job, or say what stored results prove."),
        "doctor": ("cli.machine", "Say which backends, faults and scenarios work here, and what the rest lacks."),
    },
    "After a run": {
        "runs": ("cli.listing", "List the stored runs and their verdicts, newest first."),
        "show": ("cli.runs", "Show a stored run from its report.json, without judging it again."),
        "compare": ("gate.history_command", "Say which phase, rank and waste explain how two runs differ."),
        "score": ("cli.runs", "Judge a stored run again, by its event log; or any job's restarts, by its own logs."),
        "forecast": ("forecast.forecast_command", "Say what this stack will cost at scale, by runs and failure rates."),
        "explain-failure": (
            "diagnosis.explain_command:explain_failure",
            "Say what broke first in a stored run, who it was, why, and what to do.",
        ),
        "diagnose": ("diagnosis.diagnose_command:diagnose", "Grade a diagnoser's answers about runs."),
        "heal": ("cli.machine", "Undo what killed runs left behind on this machine, and name it."),
    },
    "More": {
        "history": ("gate.history_command", "Show verdicts, recovery and waste over time, and what changed."),
        "baseline": ("gate.gate_command", "Keep, list and show baselines, which gates are compared with."),
        "report": ("cli.runs", "Write a stored run's report files again. Exits 0 whatever the verdict."),
        "export": ("monitoring.export_command", "Write a stored run in other formats. Exits 0 whatever the verdict."),
        "validate": ("cli.validate", "Check scenarios with all profiles, suites and plans of game days. Runs nothing."),
        "plugins": ("cli.plugins", "List the plug-ins that other packages added, and why one cannot be used."),
        "new": ("cli.new:app", "Write the repository of a plug-in, with its test."),
        "schema": ("cli.validate", "Print the JSON Schema of scenario files or, with --events, of the event log."),
    },
}


def make_app(loaded: Callable[[], None] = lambda: None) -> typer.Typer:
    """Returns the command-line application. The code of a command is imported only when the user calls the command. The
    function `loaded` is called after the import of a command's code."""
    import typer
    from typer.core import TyperCommand, TyperGroup

    class Command(TyperCommand):
        """A command of the command line, whose code is imported only when the user calls the command."""

        def __init__(self, name: str, where: str, about: str, panel: str):
            super().__init__(name, help=about, rich_help_panel=panel)
            self.where = where

        def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
            command = self.load()
            loaded()
            return command.make_context(info_name, args, parent, **extra)

        def load(self) -> Any:
            place, _, function = self.where.partition(":")
            module, function = importlib.import_module(f"harness.{place}"), function or str(self.name)
            found = getattr(module, function)
            if not isinstance(found, typer.Typer):  # a group of commands is one already
                one = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
                one.command(self.name, cls=getattr(module, "PARSED_BY", {}).get(function))(found)
                found = one
            command = typer.main.get_command(found)
            for each in (command, *getattr(command, "commands", {}).values()):
                _without_bool(each.get_params(typer.Context(each)))
            return command

    class Group(TyperGroup):
        def __init__(self, **attributes: Any):
            super().__init__(**attributes)
            for panel, commands in COMMANDS.items():
                self.commands.update({name: Command(name, *each, panel) for name, each in commands.items()})

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            ctx.meta[__name__] = FIRST_PAGE.union(self.commands if "--all" in args else ())
            return super().parse_args(ctx, args)

        def list_commands(self, ctx: Any) -> list[str]:
            return sorted(ctx.meta.get(__name__, FIRST_PAGE).intersection(self.commands), key=[*self.commands].index)

        def get_params(self, ctx: Any) -> list[Any]:
            return _without_bool(super().get_params(ctx))

    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=HELP, cls=Group)

    def chaos(
        version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True, callback=_version),
        every: bool = typer.Option(False, "--all", help="With --help: list all commands."),
    ) -> None:
        """Defines the options of `chaos` itself, which are given before the name of a command."""

    app.callback()(chaos)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        import typer

        sys.stdout.write(f"chaos-harness {importlib.metadata.version('chaos-harness')}\n")
        raise typer.Exit


def _without_bool(options: list[Any]) -> list[Any]:
    """Removes the type of the value from the help of flags, because a flag takes no value."""
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""
    return options


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        # Without standalone mode the exit code is what comes back, and nothing turns it into this process's own.
        code = make_app(_stop_on_signals)(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except (KeyboardInterrupt, Exception) as error:
        sys.exit(_exit_code(error))


def _stop_on_signals() -> None:
    """Makes signals ask the run to stop and to undo its faults, so that they do not end the program at once."""
    from harness.run.stop import stop

    stop.on_signals()


def _exit_code(error: BaseException) -> int:
    if isinstance(error, ChaosError):
        _say(f"error: {error}")
        return error.exit_code
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        _say("interrupted", "")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):  # the reader of the output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return UNEXPECTED
    if (show := getattr(error, "show", None)) is not None:  # the command line's own mistakes, in its own words
        show()
        if type(error).__name__ == "NoSuchOption":  # it may be that of an export
            from harness.cli.exports import GROUP
            from harness.plugins import not_installed

            if told := not_installed(GROUP):
                _say(told)
        return 2
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # nobody but the user gives such names
        _say(f"error: {error.strerror}: {os.fsdecode(error.filename or '')}; {NAMES_IN_WORDS}")
        return UsageError.exit_code
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        from harness.cli import shared_options

        named = pathlib.Path(os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else "")
        # A write itself does not tell what could not be written; then it is the folder of the runs.
        place = named if named.is_absolute() else shared_options.in_use.absolute()
        _say(f"error: {error.strerror}: {place} ({_free(place)} free on its disk)")
        return UNEXPECTED
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, (str, bytes)):
        kept = "" if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else _kept(error)
        _say(f"error: {error.strerror}: {os.fsdecode(error.filename)}{kept}")
        return UNEXPECTED
    if isinstance(error, ModuleNotFoundError) and str(error.name).startswith("harness."):
        _say(f"error: this installation lacks {error.name}, which the command needs; install the whole package")
        return CannotRunError.exit_code
    _say(f"error: unexpected {type(error).__name__}: {error}{_kept(error)}")
    return UNEXPECTED


def _kept(error: BaseException) -> str:
    try:
        descriptor, name = tempfile.mkstemp(prefix="chaos-error-", suffix=".txt")
        with open(descriptor, "w", errors="replace") as file:
            file.writelines(traceback.format_exception(error))
    except OSError:
        return ""
    return f"\nThe traceback is in {name}"


def _say(text: str, style: str = "red") -> None:
    text = re.sub(rf"\S{{{WORD_MAX + 1},}}", lambda word: f"{word[0][: WORD_MAX - 1]}…", text)
    try:
        from rich.text import Text

        from harness.cli.output import err
        from harness.report.words import plain

        err.print(Text(plain(text), style=style), soft_wrap=True)
    except Exception:
        sys.stderr.write(ascii(text)[1:-1].replace("\\n", "\n") + "\n")


def _free(place: pathlib.Path) -> str:
    for folder in (place, *place.parents):
        try:
            return f"{shutil.disk_usage(folder).free / 2**20:.0f} MiB"
        except OSError:
            continue
    return "unknown space"
