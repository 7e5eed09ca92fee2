"""The `chaos` command. Only here does an error become an exit code: see `harness.errors`.

Commands are imported after the signal handler and inside the net that catches what they raise, so that even a broken
installation ends with one clear line and exit code 3.
"""

from __future__ import annotations

import errno
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.errors import INTERRUPTED, ChaosError, UsageError

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

  chaos list --runs --since 7d   the runs of the last week and their verdicts
"""


def make_app() -> typer.Typer:
    """The command line with all its commands."""
    import typer

    from harness.adopt.init_command import InitCommand, init
    from harness.cli import export, listing, machine, options, run, runs, scenarios
    from harness.gameday import day_command
    from harness.gate.gate_command import GateCommand, baseline, gate
    from harness.gate.history_command import compare, history
    from harness.matrix.matrix_command import matrix

    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=HELP)
    panels: dict[str, list[Callable[..., None]]] = {
        "Run": [run.run, gate, init, matrix],
        "Scenarios": [listing.list_, scenarios.explain, scenarios.plan, scenarios.validate, scenarios.schema],
        "Stored runs": [runs.show, history, compare, runs.score, runs.report, export.export],
        "This machine": [machine.doctor, machine.heal],
    }
    own_parsing = {gate: GateCommand, init: InitCommand}
    for panel, commands in panels.items():
        for command in commands:
            cls = own_parsing.get(command)
            app.command(command.__name__.rstrip("_"), cls=cls, rich_help_panel=panel)(command)

    app.add_typer(baseline, name="baseline", rich_help_panel="Stored runs")
    app.add_typer(day_command.make_group(), name="gameday", rich_help_panel="Run")
    app.callback()(options.chaos)
    return app


def main() -> None:
    """Runs the command line; every way out is one clear message and a meaningful exit code."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        app = make_app()
        from harness.cli.run import stop

        # From now on a signal asks the run to stop, which then undoes everything; until now it just ended the start.
        stop.on_signals()
        # Without standalone mode the exit code is what comes back, and nothing turns it into this process's own.
        code = app(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except (KeyboardInterrupt, Exception) as error:
        sys.exit(_exit_code(error))


def _exit_code(error: BaseException) -> int:
    """Says what went wrong, and returns the exit code for it."""
    if isinstance(error, ChaosError):
        _say(f"error: {error}")
        return error.exit_code
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        _say("interrupted", "")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):  # whoever read the output has gone; nothing more can be said to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return UNEXPECTED
    if (show := getattr(error, "show", None)) is not None:  # the command line's own mistakes, in its own words
        show()
        return 2
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # nobody but the user gives such names
        _say(f"error: {error.strerror}: {os.fsdecode(error.filename or '')}; {NAMES_IN_WORDS}")
        return UsageError.exit_code
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = _place_of(error)
        _say(f"error: {error.strerror}: {place} ({_free(place)} free on its disk)")
        return UNEXPECTED
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, (str, bytes)):
        kept = "" if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else _kept(error)
        _say(f"error: {error.strerror}: {os.fsdecode(error.filename)}{kept}")
        return UNEXPECTED
    _say(f"error: unexpected {type(error).__name__}: {error}{_kept(error)}")
    return UNEXPECTED


def _kept(error: BaseException) -> str:
    """Where the traceback is; for whoever mends it, not for whoever reads the error."""
    try:
        descriptor, name = tempfile.mkstemp(prefix="chaos-error-", suffix=".txt")
        with open(descriptor, "w", errors="replace") as file:
            file.writelines(traceback.format_exception(error))
    except OSError:
        return ""
    return f"\nThe traceback is in {name}"


def _say(text: str, style: str = "red") -> None:
    """On standard error. Plain when what makes it pretty is what is broken."""
    text = re.sub(rf"\S{{{WORD_MAX + 1},}}", lambda word: f"{word[0][: WORD_MAX - 1]}…", text)
    try:
        from rich.text import Text

        from harness.cli.output import err
        from harness.report.words import plain

        err.print(Text(plain(text), style=style), soft_wrap=True)
    except Exception:
        sys.stderr.write(ascii(text)[1:-1].replace("\\n", "\n") + "\n")


def _as_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _place_of(error: OSError) -> pathlib.Path:
    """What could not be written. A write itself does not tell; then it is the folder of the runs."""
    from harness.cli import options

    named = pathlib.Path(os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else "")
    return named if named.is_absolute() else options.in_use.absolute()


def _free(place: pathlib.Path) -> str:
    """On its disk, also where it is not there itself."""
    for folder in (place, *place.parents):
        try:
            return f"{shutil.disk_usage(folder).free / 2**20:.0f} MiB"
        except OSError:
            continue
    return "unknown space"
