"""Write-ahead undo journal, the reverter that outlives the harness, and `heal`.

Before a run touches anything that could outlive it, it appends a record to `undo.jsonl` and fsyncs it. A record
names a function (`harness.backends.local.backend:undo`) and its arguments; undoing is idempotent. The last record of a
clean run is `closed`. A reverter process waits for the harness to end, however it ends, and undoes what is open;
`chaos heal` does the same later for runs whose reverter died too.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import pathlib
import select
import subprocess
import sys
from typing import Any

from harness.errors import BackendError, FaultError

JOURNAL = "undo.jsonl"
_ALLOWED = ("harness.faults.", "harness.backends.", "harness.spec.secrets")


class Journal:
    """Append-only, fsynced, held under a lock for as long as the run lives."""

    def __init__(self, run_dir: pathlib.Path):
        self.run_dir = run_dir
        self._file = (run_dir / JOURNAL).open("ab", buffering=0)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def record(self, action: str, arguments: dict[str, Any]) -> None:
        """Durable before it returns."""
        self._write({"undo": action, "arguments": arguments})

    def close(self) -> None:
        """Undoes what is open, and says so durably. Raises `FaultError` for what could not be undone: it stays open."""
        with self._file:
            undo_open(self.run_dir)
            self._write({"closed": True})

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record).encode() + b"\n")
        os.fsync(self._file.fileno())


def start_reverter(run_dir: pathlib.Path) -> subprocess.Popen[bytes]:
    """A process of its own session that waits for this one to end and then undoes what is open."""
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


def is_closed(run_dir: pathlib.Path) -> bool:
    records = _records(run_dir)
    return not records or "closed" in records[-1]


def is_running(run_dir: pathlib.Path) -> bool:
    """Whether a living harness holds the journal."""
    try:
        with (run_dir / JOURNAL).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def heal(reports: pathlib.Path) -> tuple[list[str], list[str]]:
    """Undoes what dead runs left open. Returns the ids healed, and one message per thing that could not be."""
    healed, failed = [], []
    for journal in sorted([*reports.glob(f"*/{JOURNAL}"), *reports.glob(f".twins/*/{JOURNAL}")]):
        run_dir = journal.parent
        if is_closed(run_dir) or is_running(run_dir):
            continue
        try:
            undo_open(run_dir)
            _mark_closed(run_dir)
            healed.append(run_dir.name)
        except FaultError as error:
            failed.append(f"{run_dir.name}: {error}")
    return healed, failed


def heal_strays() -> tuple[list[str], list[str]]:
    """Ends what dead runs left on this machine, wherever their journals are or were. Returns as `heal` does.

    Only what names the process that made it, and that one is gone.
    """
    try:
        count = _resolve("harness.backends.local.backend:undo")()
    except BackendError as error:
        return [], [f"of runs that are not kept here: {error}"]
    return ([f"{count} thing{'s' if count > 1 else ''} of runs that are not kept here"] if count else []), []


def undo_open(run_dir: pathlib.Path) -> None:
    """Runs the undo functions of this journal, last first. Raises `FaultError` after having tried all."""
    errors = []
    for record in reversed(_records(run_dir)):
        if "undo" not in record:
            continue
        try:
            _resolve(record["undo"])(**record["arguments"])
        except Exception as error:  # one thing that cannot be undone must not keep the others from it
            errors.append(f"{record['undo']}: {error}")
    if errors:
        raise FaultError("could not be undone: " + "; ".join(errors))


def _resolve(action: str) -> Any:
    module, _, function = action.partition(":")
    if not module.startswith(_ALLOWED) or not function:
        raise FaultError(f"{action!r} is no undo function of this harness")
    return getattr(importlib.import_module(module), function)


def _mark_closed(run_dir: pathlib.Path) -> None:
    with (run_dir / JOURNAL).open("ab") as file:
        file.write(b"\n" + json.dumps({"closed": True}).encode() + b"\n")  # a line torn by a kill ends before it


def _records(run_dir: pathlib.Path) -> list[dict[str, Any]]:
    """The whole records; a torn one was never acted upon, as acting comes after the fsync."""
    path = run_dir / JOURNAL
    records = []
    for line in path.read_bytes().split(b"\n") if path.exists() else []:
        with contextlib.suppress(ValueError):
            records.append(json.loads(line))
    return records


def _revert_when_gone(run_dir: pathlib.Path, pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()
    if not is_closed(run_dir):
        undo_open(run_dir)
        _mark_closed(run_dir)


if __name__ == "__main__":
    _revert_when_gone(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
