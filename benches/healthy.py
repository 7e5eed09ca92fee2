"""`make healthy`: healthy jobs under faults, over all shipped scenarios and the stacks of `examples/trainers/`.

None may be accused; how many prove nothing is told, with the reasons.

    python -m benches.healthy [--runs 300] [--busy] [--at-once 2] [--folder reports/healthy] [--stored] [--keep]

Run N takes the N-th of all scenarios and stacks in turn. A round has five seeds, two rounds have the same, and all runs
share the folder of fault-free runs, so that most are compared with a kept one, as the runs of a team are. With `--busy`
every second run has two busy loops beside it; those come after the others. `--at-once` so many run together.
docs/healthy.json keeps what each run showed, with a digest of the code that made it (without comments and docstrings).
A run whose folder is there is judged anew by the judge of today. It is made again only where the code has changed that
made it, so what was interrupted goes on where it ended, on another machine, too. With `--keep` what earlier code made
stays, and `--stored` makes none. The table is docs/healthy.md.
"""

from __future__ import annotations

import argparse
import ast
import collections
import concurrent.futures
import contextlib
import functools
import hashlib
import itertools
import json
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from benches import league
from harness.errors import INTERRUPTED, CannotRunError
from harness.faults.contract import fault_names
from harness.node.run_folder_view import KEPT as CACHE
from harness.report import markdown
from harness.report.run_report import read

ROOT = league.ROOT
FAULTS = ROOT / "harness" / "faults"
PAGE = ROOT / "docs" / "healthy.md"
KEPT = ROOT / "docs" / "healthy.json"
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
MAKES_RUNS = ("run", "node", "backends", "faults", "trainers", "plan", "spec")  # what judges is left out
LIMIT_S = 1800
SEEDS = 5  # of a round
BUSY_LOOPS = 2
ENVIRONMENTS = threading.Lock()  # several stacks share one
BROKEN = {("accelerate", "rank-kill"), ("lightning", "rank-kill")}  # docs/league.md says what is wrong with them
HEAD = ("Run", "Seed", "Host", "Verdict", "Reason")
INTRODUCTION = """\
# Healthy runs

Jobs without a bug, under each shipped scenario, and the training stacks of `examples/trainers/` without a fault and
with a killed rank; on two virtual nodes of one machine. Made by `make healthy`. None may be accused.
"""


@dataclass(frozen=True)
class Run:
    number: int
    name: str
    seed: int
    code: str  # a digest of what made it
    folder: str
    busy: bool = False  # beside two busy loops
    verdict: str = ""
    reason: str = ""


def names() -> list[str]:
    """In turn: each scenario, and each stack with what it survives."""
    scenarios = [path.stem for path in sorted((ROOT / "scenarios").glob("*.yaml"))]
    pairs = [(stack.name, column) for stack in league.stacks(()) for column in league.MANY]
    return [*scenarios, *(f"{stack} {column}" for stack, column in pairs if (stack, column) not in BROKEN)]


def code(name: str) -> str:
    """A digest of the program that makes a run. Faults that its scenario does not name are no part of it."""
    stack, _, column = name.partition(" ")
    place = league.STACKS / stack if column else ROOT / "scenarios" / f"{stack}.yaml"
    named = column.replace("-", "_") if column else place.read_text()
    rooms = [ROOT / "harness" / room for room in MAKES_RUNS] + [ROOT / "reference_trainer"]
    files = [path for room in rooms for path in sorted(room.rglob("*.py"))]
    files = [path for path in files if path.parent != FAULTS or path.stem not in fault_names() or path.stem in named]
    digest = hashlib.sha256()
    for path in filter(pathlib.Path.is_file, [*files, *(sorted(place.glob("*")) if column else [place])]):
        digest.update(meaning(path).encode() if path.suffix == ".py" else path.read_bytes())
    return digest.hexdigest()[:12]


@functools.cache
def meaning(path: pathlib.Path) -> str:
    """The program without its comments and docstrings."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            node.body = [each for each in node.body if not _says_nothing(each)] or [ast.Pass()]
    return ast.unparse(tree)


def _says_nothing(statement: ast.stmt) -> bool:
    """Returns True for a docstring, and for the `...` of an empty body."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def make(number: int, name: str, seed: int, folder: pathlib.Path, busy: bool) -> Run:
    stack, _, column = name.partition(" ")
    path: Any = stack
    if column:
        (found,) = league.stacks((stack,))
        with ENVIRONMENTS:
            path = league.scenario(found, column)
    reports = folder / name.replace(" ", "-")
    reports.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (reports / CACHE).symlink_to(folder / CACHE)
    before = set(reports.glob("*/plan.json"))
    command = [sys.executable, "-m", "harness", "run", str(path), "--seed", str(seed), "--reports", str(reports)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    run = Run(number, name, seed, code(name), "", busy)
    if done.returncode == CannotRunError.exit_code:  # this machine cannot strike so
        return replace(run, verdict="refused", reason=done.stderr.strip().removeprefix("error: "))
    new = sorted(set(reports.glob("*/plan.json")) - before)
    if not new or done.returncode == INTERRUPTED:
        raise SystemExit(f"{name}: no whole run; exit {done.returncode}\n{done.stdout}{done.stderr}")
    return told(replace(run, folder=str(new[-1].parent.relative_to(folder))), folder)


def judged(run: Run, folder: pathlib.Path) -> Run:
    command = [sys.executable, "-m", "harness", "score", str(folder / run.folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return told(run, folder)


def told(run: Run, folder: pathlib.Path) -> Run:
    """With what its report says."""
    report = read(folder / run.folder / "report.json")
    reason = report.reasons[0].replace(f"{folder / run.folder}/", "") if report.reasons else ""
    return replace(run, verdict=str(report.verdict), reason=reason)


class Runs:
    """Those that are kept, by their numbers; several threads may make some."""

    def __init__(self, given: argparse.Namespace, folder: pathlib.Path) -> None:
        self.given, self.folder, self.lock = given, folder, threading.Lock()
        known = json.loads(KEPT.read_text()) if KEPT.exists() else ()
        self.kept = {each["number"]: Run(**each) for each in known}

    def one(self, number: int) -> Run | None:
        wheel = names()
        turn, place = divmod(number - 1, len(wheel))
        name, seed = wheel[place], 1 + place % SEEDS + turn // 2 * SEEDS
        run, busy = self.kept.get(number), self.is_busy(number)
        wanted = run is not None and (run.name, run.busy) == (name, busy)
        if not self.given.stored and not (wanted and run and (self.given.keep or run.code == code(name))):
            run = make(number, name, seed, self.folder, busy)
        elif run is None:
            return None
        elif run.folder and (self.folder / run.folder).is_dir():
            run = judged(run, self.folder)
        with self.lock:
            self.kept[number] = run
            kept = [asdict(self.kept[each]) for each in sorted(self.kept)]
            KEPT.write_text(json.dumps(kept, indent=1) + "\n")
        print(f"{number}/{self.given.runs} {run.name}: {run.verdict} {run.reason}", flush=True)
        return run

    def is_busy(self, number: int) -> bool:
        """In each of the two rounds with the same seeds another half."""
        turn, place = divmod(number - 1, len(names()))
        return self.given.busy and (turn + place) % 2 == 1

    def all(self) -> list[Run]:
        numbers = range(1, self.given.runs + 1)
        with concurrent.futures.ThreadPoolExecutor(self.given.at_once) as threads:
            quiet = [*threads.map(self.one, itertools.filterfalse(self.is_busy, numbers))]
            beside = busy_host() if self.given.busy and not self.given.stored else contextlib.nullcontext()
            with beside:
                busy = [*threads.map(self.one, filter(self.is_busy, numbers))]
        return sorted((run for run in (*quiet, *busy) if run), key=lambda run: run.number)


@contextlib.contextmanager
def busy_host() -> Iterator[None]:
    """Two loops that take all the CPU that they are given."""
    command = ("setpriv", "--pdeathsig", "KILL", sys.executable, "-c", "while True: pass")  # it ends with this process
    loops = [subprocess.Popen(command) for _ in range(BUSY_LOOPS)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def page(runs: list[Run]) -> str:
    verdicts = collections.Counter(run.verdict for run in runs)
    old = sum(run.code != code(run.name) for run in runs)
    counts = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())
    made = f" {old} of them were made by earlier code." if old else ""
    busy = sum(run.busy for run in runs)
    beside = f" {busy} of them ran beside two busy loops." if busy else ""
    odd = [run for run in runs if run.verdict != "pass"]
    rows = [(run.name, str(run.seed), "busy" if run.busy else "", run.verdict, run.reason) for run in odd]
    return f"{INTRODUCTION}\n{len(runs)} runs: {counts}.{beside}{made}\n\n{markdown.table(HEAD, rows)}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--busy", action="store_true", help="every second one beside two busy loops")
    parser.add_argument("--at-once", type=int, default=1, help="so many runs together")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "reports" / "healthy")
    parser.add_argument("--stored", action="store_true", help="make no run; judge those that are there")
    parser.add_argument("--keep", action="store_true", help="make only what is missing, whatever code made the others")
    given = parser.parse_args()
    folder = given.folder.resolve()
    (folder / CACHE).mkdir(parents=True, exist_ok=True)
    runs = Runs(given, folder).all()
    PAGE.write_text(page(runs))
    return int(any(run.verdict == "fail" for run in runs))


if __name__ == "__main__":
    sys.exit(main())
