"""Restores a job from many states of its checkpoint folder, one after the other, in processes forked from this program.

After the first restore, this program imports the modules that the restore used, so that no later restore waits for
them. The program is started as `python forked_restores.py ORDERS STATES`, with a JSON file ORDERS from the harness. The
folders `STATES/00000`, `STATES/00001`, … hold one state of the checkpoint folder each, and a file `go` with orders once
the state is complete. For each state, the program starts the ranks, waits until the ranks have done some steps or have
ended, kills the ranks, and writes `ended.json`. If `until_saved` is set in `go`, the program also waits until the ranks
log their next save as finished. The program ends once `STATES/end` exists."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import pathlib
import re
import runpy
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

LOOK_S = 0.004
GONE_S_MAX = 10.0
PR_SET_CHILD_SUBREAPER = 36
STEP, COMMITTED = b'"event":"step"', b'"event":"checkpoint.committed"'
NUMBER = re.compile(rb'"step":(\d{1,18})\b')
MODULES = "modules.json"


def main(orders_file: str, states_folder: str) -> None:
    orders, states = json.loads(pathlib.Path(orders_file).read_text()), pathlib.Path(states_folder)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what a rank leaves behind becomes our child
    number = 0
    while not (states / "end").exists():
        folder = states / f"{number:05d}"
        if not (folder / "go").exists():
            time.sleep(LOOK_S)
            continue
        begin, own = time.monotonic(), orders | json.loads((folder / "go").read_text())
        for attempt in range(own["attempts"]):  # as a launcher starts failed ranks again
            clear_events(folder, attempt)
            told = restore(own, folder, first=number == 0)
            if told["enough"] or not any(told["codes"]):
                break
        told |= {"seconds": time.monotonic() - begin, "attempts": attempt + 1}
        write(folder / "ended.json", json.dumps(told))
        if number == 0:
            import_as(folder / MODULES)
        number += 1


def clear_events(folder: pathlib.Path, attempt: int) -> None:
    events = folder / "events"
    if attempt:
        before = events.rename(folder / f"events-{attempt}")
        for ledger in before.glob("*/*.ledger"):
            (events / ledger.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(ledger, events / ledger.parent.name)
    (events / "node0").mkdir(parents=True, exist_ok=True)


def restore(orders: dict[str, Any], folder: pathlib.Path, first: bool) -> dict[str, Any]:
    """Starts all ranks, waits until the ranks have done all that was requested, have ended or reach the time limit, and
    kills the ranks. Returns the ranks' exit codes, and `enough`: True if the ranks restored and did all that was
    requested."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = {fork(orders, folder, rank, port, first): rank for rank in range(len(orders["ranks"]))}
    codes: list[int | None] = [None] * len(ranks)
    progress = Progress(folder / "events" / "node0")
    deadline, enough = time.monotonic() + orders["limit_s"], False
    while time.monotonic() < deadline and not enough and None in codes and not any(codes):
        reap(ranks, codes)
        enough = progress.enough(orders)
        time.sleep(LOOK_S)
    enough = enough or progress.enough(orders)
    kill_all(ranks)
    return {"enough": enough, "codes": codes}


class Progress:
    def __init__(self, events: pathlib.Path) -> None:
        self._events = events
        self._read: dict[str, int] = {}  # writer → bytes
        self._steps: dict[str, int] = {}  # writer → how many
        self._saved: dict[str, int] = {}  # writer → step of its last finished save
        self._first = 2**63  # step after the restore

    def enough(self, orders: dict[str, Any]) -> bool:
        for path in self._events.glob("*.jsonl"):
            with contextlib.suppress(OSError), path.open("rb") as file:
                file.seek(self._read.get(path.name, 0))
                new = file.read(1 << 20)
                new = new[: new.rfind(b"\n") + 1]
                self._read[path.name] = self._read.get(path.name, 0) + len(new)
                self._take(path.name, new)
        stepped = sum(count >= orders["steps"] for count in self._steps.values())
        saved = sum(step >= self._first for step in self._saved.values())
        return stepped >= orders["tellers"] and (not orders["until_saved"] or saved >= orders["savers"])

    def _take(self, writer: str, new: bytes) -> None:
        for line in new.splitlines():
            number = NUMBER.search(line) if STEP in line or COMMITTED in line else None
            if number and STEP in line:
                self._steps[writer] = self._steps.get(writer, 0) + 1
                self._first = min(self._first, int(number[1]))
            elif number:
                self._saved[writer] = int(number[1])


def fork(orders: dict[str, Any], folder: pathlib.Path, rank: int, port: int, first: bool) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if first and rank == 0:
            threading.Thread(target=tell_modules, args=(folder / MODULES,), daemon=True).start()
        code = become(orders["ranks"][rank], folder, port, orders["observed"])
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def become(rank: dict[str, Any], folder: pathlib.Path, port: int, observed: bool) -> int:
    """Runs a rank's script in this process, as Python does. Returns the script's exit code."""
    place = {"@RUN_DIR@": str(folder), "@PORT@": str(port)}

    def filled(word: str) -> str:
        for mark, value in place.items():
            word = word.replace(mark, value)
        return word

    os.environ.update({name: filled(value) for name, value in rank["env"].items()})
    words = [filled(word) for word in rank["words"]]
    if observed:
        from harness.node.observer import imports

        imports.wait()
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 255
        print(end.code, file=sys.stderr)
        return 1
    return 0


def reap(ranks: dict[int, int], codes: list[int | None]) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if pid in ranks:
                codes[ranks[pid]] = os.waitstatus_to_exitcode(status)


def kill_all(ranks: dict[int, int]) -> None:
    deadline = time.monotonic() + GONE_S_MAX
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(rank, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid:
                continue
            for child in pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            time.sleep(LOOK_S)


def tell_modules(path: pathlib.Path) -> None:
    """Writes the names of the imported modules again and again, because the process is killed without warning."""
    known = 0
    while True:
        names = [*sys.modules]
        if len(names) > known:
            known = len(names)
            write(path, json.dumps(names))
        time.sleep(0.1)


def import_as(path: pathlib.Path) -> None:
    """Imports the installed modules that a file lists, but not the trainer's own, which may depend on the rank."""
    roots = tuple({os.path.realpath(place) + os.sep for place in (sys.prefix, sys.base_prefix)})
    with contextlib.suppress(OSError, ValueError):
        for name in json.loads(path.read_text()):
            top = name.partition(".")[0]
            with contextlib.suppress(BaseException):
                spec = importlib.util.find_spec(top)
                origin = os.path.realpath(spec.origin or "") if spec else ""
                if origin.startswith(roots) or top == "reference_trainer":
                    importlib.import_module(name)


def write(path: pathlib.Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
