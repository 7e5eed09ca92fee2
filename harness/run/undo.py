"""Undoes the changes of a run: at its end, by a reverter process that outlives the harness, or by `chaos heal`.

Before a run changes anything that could outlive the run, it adds a record to its undo journal (`harness.log.journal`).
A record in the journal names an action, such as `backends.local`, and its arguments. An action is the `UNDO` function
of a backend, a fault, an `--attach` plug-in, `run.drill` or `spec.secrets`. Undoing is idempotent. A reverter process
waits until the harness ends or is killed, and then carries out the open records. `chaos heal` carries out the open
records of runs whose reverter was also killed.
"""

import functools
import importlib
import inspect
import os
import pathlib
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import ConfigDict, ValidationError, validate_call

from harness.backends import attached
from harness.backends.contract import backend_module, backend_names, load_backend
from harness.errors import BackendError, FaultError, UsageError
from harness.faults.contract import RunPath, fault_module, fault_names
from harness.log import journal
from harness.log.journal import JOURNAL, Journal, is_closed, is_running
from harness.node import owner_names
from harness.plugins import entry_points

SECRETS = "spec.secrets"
DRILL = "run.drill"
_BELOW = RunPath.__metadata__[0]  # type: ignore[attr-defined]  # marks a path below the run's folder
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
AGAIN_AFTER_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)  # waits between the reverter's tries: two minutes in all


def close(kept: Journal) -> None:
    """Carries out the open records of an undo journal, and closes it. Raises `FaultError` if a record fails."""
    try:
        undo_open(kept.run_dir)
    except FaultError:
        kept.release()
        raise
    kept.mark_closed()


def start_reverter(run_dir: pathlib.Path) -> subprocess.Popen[bytes]:
    """Starts the reverter process, which waits until this process ends, and then carries out open undo records."""
    pidfd = os.pidfd_open(os.getpid())
    os.set_inheritable(pidfd, True)
    log = (run_dir / "logs" / "reverter.log").open("ab")
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "harness.run.undo", str(run_dir), str(pidfd)],
            pass_fds=[pidfd],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd=pathlib.Path(__file__).resolve().parents[2],
        )
    finally:
        log.close()
        os.close(pidfd)


# Of runs below the reports: their own, those that are kept, and those of a matrix. No node may write there.
PLACES = ("*", ".*/*", "*/base", "*/repeat", "*/cells/*", "*/resumed/*")


def heal(reports: pathlib.Path, dry_run: bool = False) -> tuple[list[str], list[str]]:
    """Carries out the open undo records of runs whose harness is gone. Returns the runs' ids and the failures."""
    healed, failed = [], []
    for path in sorted(path for place in PLACES for path in reports.glob(f"{place}/{JOURNAL}")):
        run_dir = path.parent
        try:
            if is_closed(run_dir) or is_running(run_dir):
                continue
            if not dry_run:
                undo_open(run_dir)
                journal.mark_closed(run_dir)
            healed.append(run_dir.name)
        except FaultError as error:
            failed.append(f"{run_dir.name}: {error}; mend that, or undo it by hand and remove {run_dir / JOURNAL}")
    return healed, failed


def heal_strays(dry_run: bool = False) -> tuple[list[str], list[str]]:
    """Removes leftovers of dead runs and probes, wherever their journals are.

    A leftover is removed if its name shows that the process that made it is gone. Returns the kind and name of each
    leftover, and a message for each failure.
    """
    healed, problems = owner_names.sweep_folders(dry_run)
    for name in backend_names():
        try:
            healed += load_backend(name).sweep(dry_run)
        except (BackendError, UsageError) as error:
            problems.append(str(error))
    return healed, [f"of runs that are not kept here: {problem}" for problem in problems]


def undo_open(run_dir: pathlib.Path) -> None:
    """Runs the undo functions of a journal's records, newest first. Raises `FaultError` at the end if one failed."""
    errors = []
    for record in reversed(list(journal.records(run_dir))):
        if "undo" not in record:
            continue
        try:
            _call(resolve(str(record["undo"])), record.get("arguments"), run_dir, "the undo journal is wrong")
        except Exception as error:  # one thing that cannot be undone must not keep the others from it
            errors.append(f"{record['undo']}: {error}")
    if errors:
        raise FaultError("could not be undone: " + "; ".join(errors))


def refuse_wrong(action: str, arguments: dict[str, Any], run_dir: pathlib.Path) -> None:
    """Raises `FaultError` if an undo record could not be carried out later. Changes nothing."""
    function = resolve(action)
    hints = get_type_hints(function, include_extras=True)
    if "run_dir" not in hints and any(_BELOW in getattr(each, "__metadata__", ()) for each in hints.values()):
        raise FaultError(f"{action}: its UNDO gets a path but not the folder it is in: UNDO(run_dir: pathlib.Path, …)")
    _call(functools.wraps(function)(lambda **_: None), arguments, run_dir, f"{action} cannot be undone so")


def _call(function: Callable[..., object], arguments: Any, run_dir: pathlib.Path, wrong: str) -> None:
    given: dict[str, Any] = dict(arguments) if isinstance(arguments, dict) else {}
    if "run_dir" in inspect.signature(function).parameters:
        given["run_dir"] = run_dir.absolute()  # where the journal lies, whatever the record says
    if not _RUN_ID.fullmatch(str(given.get("run_id", "x"))):
        raise FaultError(f"{wrong}: run_id {given['run_id']!r} is not a run id")
    try:
        validate_call(config=ConfigDict(strict=True))(function)(**given)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise FaultError(f"{wrong}: {told}") from error


def resolve(action: str) -> Callable[..., object]:
    """Returns the undo function that an undo record names. Raises `FaultError` if no such function exists."""
    kind, _, name = action.partition(".")
    try:
        if action in (SECRETS, DRILL):
            module = importlib.import_module(f"harness.{action}")
        elif kind == "backends" and name in backend_names():
            module = backend_module(name)
        elif kind == "attached" and name in (engines := entry_points(attached.GROUP)):
            module = importlib.import_module(engines[name].value)
        elif kind == "faults" and name in fault_names():
            module = fault_module(name)
        else:
            raise FaultError(f"unknown undo action {action!r}; choose one of: {', '.join(actions())}")
    except UsageError as error:  # a plug-in that cannot be loaded
        raise FaultError(f"undo action {action!r}: {error}") from error
    found: Callable[..., object] | None = getattr(module, "UNDO", None)
    if found is None:
        raise FaultError(f"unknown undo action {action!r}: {module.__name__} has no undo function")
    return found


def actions() -> list[str]:
    faults = [name for name in fault_names() if hasattr(fault_module(name), "UNDO")]
    kinds = {"backends": backend_names(), "attached": entry_points(attached.GROUP), "faults": faults}
    return [SECRETS, DRILL, *(f"{kind}.{name}" for kind, names in kinds.items() for name in names)]


def _revert_when_gone(run_dir: pathlib.Path, pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()
    for wait_s in (*AGAIN_AFTER_S, None):
        if is_closed(run_dir):
            return
        try:
            undo_open(run_dir)
        except FaultError as error:
            print(f"{error}", file=sys.stderr, flush=True)
            if wait_s is None:
                raise
            time.sleep(wait_s)
            continue
        journal.mark_closed(run_dir)


if __name__ == "__main__":
    _revert_when_gone(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
