"""`make healthy`: healthy jobs under faults, over all shipped scenarios and the stacks of `examples/trainers/`.

None may be accused; how many prove nothing is told, with the reasons.

    python benches/healthy.py [--runs 200] [--folder reports/healthy] [--stored] [--keep]

Run N takes the N-th of all scenarios and stacks in turn. Two rounds have the same seeds, so that every second run is
compared with a fault-free run that is kept, as the runs of a team are. Each run is kept, with a digest of the code
that made it, and judged anew by the judge of today. It is made again only where that code has changed, so what was
interrupted goes on where it ended; with `--keep` what earlier code made stays, and `--stored` makes none. The table is
docs/healthy.md.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import league

from harness.report.run_report import read

ROOT = league.ROOT
PAGE = ROOT / "docs" / "healthy.md"
MAKES_RUNS = ("run", "node", "backends", "faults", "trainers", "plan", "spec")  # what judges is left out
LIMIT_S = 1800
BROKEN = {("accelerate", "rank-kill"), ("lightning", "rank-kill")}  # docs/league.md says what is wrong with them
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
    verdict: str = ""
    reason: str = ""


def names() -> list[str]:
    """In turn: each scenario, and each stack with what it survives."""
    scenarios = [path.stem for path in sorted((ROOT / "scenarios").glob("*.yaml"))]
    pairs = [(stack.name, column) for stack in league.stacks(()) for column in league.MANY]
    return [*scenarios, *(f"{stack} {column}" for stack, column in pairs if (stack, column) not in BROKEN)]


def code(name: str) -> str:
    rooms = [ROOT / "harness" / room for room in MAKES_RUNS] + [ROOT / "reference_trainer"]
    files = [path for room in rooms for path in sorted(room.rglob("*.py"))]
    stack, _, column = name.partition(" ")
    files += sorted((league.STACKS / stack).glob("*")) if column else [ROOT / "scenarios" / f"{stack}.yaml"]
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()[:12]


def make(number: int, name: str, seed: int, folder: pathlib.Path) -> Run:
    stack, _, column = name.partition(" ")
    path: Any = stack
    if column:
        (found,) = league.stacks((stack,))
        path = league.scenario(found, column)
    reports = folder / name.replace(" ", "-")
    before = set(reports.glob("*/plan.json"))
    command = [sys.executable, "-m", "harness", "run", str(path), "--seed", str(seed), "--reports", str(reports)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    new = sorted(set(reports.glob("*/plan.json")) - before)
    if not new:
        raise SystemExit(f"{name}: no run; exit {done.returncode}\n{done.stdout}{done.stderr}")
    return Run(number, name, seed, code(name), str(new[-1].parent.relative_to(folder)))


def judged(run: Run, folder: pathlib.Path) -> Run:
    place = folder / run.folder
    command = [sys.executable, "-m", "harness", "score", str(place)]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    report = read(place / "report.json")
    reason = report.reasons[0].replace(f"{place}/", "") if report.reasons else ""
    return replace(run, verdict=str(report.verdict), reason=reason)


def all_runs(count: int, folder: pathlib.Path, stored_only: bool, keep: bool) -> Iterator[Run]:
    kept_in, wheel = folder / "runs.json", names()
    kept = {each["number"]: Run(**each) for each in (json.loads(kept_in.read_text()) if kept_in.exists() else ())}
    for number in range(1, count + 1):
        before, place = divmod(number - 1, len(wheel))
        name, seed = wheel[place], 1 + place + before // 2 * len(wheel)
        run = kept.get(number)
        if stored_only and run is None:
            continue
        made = run is not None and run.name == name and (keep or run.code == code(name))
        if run is None or not (made or stored_only):
            run = make(number, name, seed, folder)
        kept[number] = judged(run, folder)
        kept_in.write_text(json.dumps([asdict(kept[each]) for each in sorted(kept)], indent=1) + "\n")
        yield kept[number]


def page(runs: list[Run]) -> str:
    verdicts = collections.Counter(run.verdict for run in runs)
    old = sum(run.code != code(run.name) for run in runs)
    counts = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())
    made = f" {old} of them were made by earlier code, and judged by that of today." if old else ""
    lines = [
        INTRODUCTION,
        f"{len(runs)} runs: {counts}.{made}",
        "",
        "| Run | Seed | Verdict | Reason |",
        "|---|---|---|---|",
    ]
    lines += [f"| {run.name} | {run.seed} | {run.verdict} | {run.reason} |" for run in runs if run.verdict != "pass"]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "reports" / "healthy")
    parser.add_argument("--stored", action="store_true", help="make no run; judge those that are there")
    parser.add_argument("--keep", action="store_true", help="make only what is missing, whatever code made the others")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for run in all_runs(given.runs, folder, given.stored, given.keep):
        runs.append(run)
        print(f"{run.number}/{given.runs} {run.name}: {run.verdict} {run.reason}", flush=True)
    PAGE.write_text(page(runs))
    return int(any(run.verdict == "fail" for run in runs))


if __name__ == "__main__":
    sys.exit(main())
