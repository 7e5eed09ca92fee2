"""`make league`: how well known training stacks survive, each unchanged, as its own documentation sets it up.

    python benches/league.py [--stacks dcp,lightning] [--scenarios rank-kill] [--tries 10] [--again] [--render]

A stack is a folder of `examples/trainers/` with `train.py`, `stack.yaml` and `requirements.txt`; it gets an
environment of its own under `reports/league/environments/`. Every cell is kept and runs only once for the same files;
what was interrupted goes on where it ended. The tables are docs/league.md and reports/league/league.html.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import json
import os
import pathlib
import statistics
import subprocess
import sys
import venv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from harness.campaign.adoption.first_look import Facts
from harness.campaign.adoption.proposal import REHEARSALS, propose
from harness.emitter.vocabulary import TELLS
from harness.report.model import Report, read

ROOT = pathlib.Path(__file__).resolve().parents[1]
STACKS = ROOT / "examples" / "trainers"
PLACE = ROOT / "reports" / "league"
PAGE = ROOT / "docs" / "league.md"
FAULT_FREE = "no-fault"
COLUMNS = (FAULT_FREE, *(each.name for each in REHEARSALS))
MANY = (FAULT_FREE, "rank-kill")  # the columns with most tries
TRIES, TRIES_ELSEWHERE = 10, 3
RUN_LIMIT_S = 900
SILENTLY = "did not report the damage"  # in the reason of a run that loaded a damaged checkpoint
INTRODUCTION = """\
# League

How well known training stacks survive, on two virtual nodes of one machine without a GPU. Every stack is a small
script set up as its own documentation says, and unchanged: nothing of the harness is in it. A cell says how many runs
passed, of how many; with few runs it shows what can happen, not how often. `invalid` means that the fault could not
act, as damage to a checkpoint of a job that saves none. `inconclusive` means that the run does not tell.

Made by `make league`; one cell again: `make league ARGS='--stacks STACK --scenarios SCENARIO --again'`.
"""
SHOWN = ("torch", "torchft-nightly", "torchft", "lightning", "transformers", "accelerate")  # of its requirements


@dataclass(frozen=True)
class Stack:
    """One folder of `examples/trainers/`."""

    name: str
    title: str
    settings: str  # what its documentation recommends, in a few words
    workload: dict[str, Any]
    facts: Facts

    @property
    def folder(self) -> pathlib.Path:
        return STACKS / self.name

    def versions(self) -> str:
        """As `torch 2.13.0, lightning 2.6.6`."""
        pins = (line.split()[0].split("==") for line in (self.folder / "requirements.txt").read_text().splitlines())
        found = {pin[0]: pin[1] for pin in pins if len(pin) == 2}
        return ", ".join(f"{name} {found[name]}" for name in SHOWN if name in found)

    def digest(self) -> str:
        files = sorted(path for path in self.folder.iterdir() if path.is_file())
        return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def stacks(names: Iterable[str]) -> list[Stack]:
    found = [_stack(path.parent) for path in sorted(STACKS.glob("*/stack.yaml"))]
    wanted = set(names)
    if unknown := wanted - {stack.name for stack in found}:
        sys.exit(f"unknown stack {sorted(unknown)[0]!r}; choose from: {', '.join(stack.name for stack in found)}")
    return [stack for stack in found if not wanted or stack.name in wanted]


def _stack(folder: pathlib.Path) -> Stack:
    data = yaml.safe_load((folder / "stack.yaml").read_text())
    saves = range(data["save_every"], data["steps"] + 1, data["save_every"])
    times, elastic = (data["start_s"], data["step_s"]), data.get("elastic", False)
    facts = Facts(data["steps"], data["steps"], *times, tuple(saves), (), frozenset(TELLS), elastic=elastic)
    return Stack(folder.name, data["title"], data["settings"], data["workload"], facts)


def environment(stack: Stack) -> str:
    """The interpreter with what the stack requires; made once for each content of requirements.txt."""
    requirements = stack.folder / "requirements.txt"
    place = PLACE / "environments" / hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    if not (place / "complete").exists():
        print(f"Making the environment of {stack.title}", flush=True)
        venv.create(place, clear=True, with_pip=True)
        pip = [str(place / "bin" / "pip"), "--quiet", "--disable-pip-version-check", "install", "-r", str(requirements)]
        subprocess.run(pip, check=True)
        (place / "complete").touch()
    return str(place / "bin" / "python3")


def scenario(stack: Stack, column: str) -> pathlib.Path:
    """Writes the scenario of one cell beside the stack's script, which it is found from."""
    python = environment(stack)
    written = json.dumps(stack.workload).replace("$PYTHON", python).replace("$BIN", str(pathlib.Path(python).parent))
    text = propose(json.loads(written), stack.facts)["rank-kill.yaml" if column == FAULT_FREE else f"{column}.yaml"]
    data = yaml.safe_load(text)
    if column == FAULT_FREE:
        del data["faults"], data["expect"]["recovery_time"]
        data |= {"name": FAULT_FREE, "title": "Nothing happens"}
    data["workload"]["trainer"]["scenario_dir"] = str(stack.folder)
    path = PLACE / "scenarios" / stack.name / f"{column}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def cell(stack: Stack, column: str) -> pathlib.Path:
    return PLACE / "cells" / f"{stack.name}-{stack.digest()}" / column


def play(stack: Stack, column: str, tries: int) -> None:
    """Runs what a cell still lacks."""
    for number in range(1, tries + 1):
        kept = cell(stack, column) / f"{number}.json"
        if kept.exists():
            continue
        print(f"{stack.title}: {column}, {number} of {tries}", flush=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(_run(scenario(stack, column), stack)))


def _run(path: pathlib.Path, stack: Stack) -> dict[str, Any]:
    reports = PLACE / "runs" / stack.name
    command = [sys.executable, "-m", "harness", "run", str(path), "--reports", str(reports)]
    before = set(reports.glob("*/report.json"))
    done = subprocess.run(command, cwd=stack.folder, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)
    new = sorted(set(reports.glob("*/report.json")) - before)
    if not new:
        raise SystemExit(f"{path}: no report; exit {done.returncode}\n{done.stdout}{done.stderr}")
    return read(new[-1]).to_json()


def results(stack: Stack, column: str) -> list[Report]:
    return [Report.from_json(json.loads(path.read_text())) for path in sorted(cell(stack, column).glob("*.json"))]


def figures(reports: Sequence[Report]) -> dict[str, str]:
    """Medians with the range, of all runs of a cell in which it was measured."""
    lost = [report.metrics.get("steps_rolled_back") for report in reports]
    return {
        "recovery": _range([report.recovery_time.seconds for report in reports], "s"),
        "waste": _range([report.wasted_gpu_hours.percent_by_faults for report in reports], "%"),
        "steps lost": _range(lost, ""),
        "samples repeated": _range([report.loss_continuity.samples_repeated for report in reports], ""),
        "samples skipped": _range([report.loss_continuity.samples_skipped for report in reports], ""),
        "losses": _losses(reports),
        "damage loaded silently": _share(sum(SILENTLY in " ".join(each.reasons) for each in reports), reports),
    }


def _losses(reports: Sequence[Report]) -> str:
    """`identical` to the fault-free run's, how far the last ones are off, or a dash where nothing was compared."""
    differing = [report.loss_continuity for report in reports if report.loss_continuity.max_abs_diff is not None]
    if not differing:
        return "–"
    if not any(each.max_abs_diff for each in differing):
        return "identical"
    gaps = _range([abs(each.final_gap_percent) for each in differing if each.final_gap_percent is not None], "%")
    return f"differ; the last ones by {gaps}" if gaps != "–" else "differ"


def _share(count: int, reports: Sequence[Report]) -> str:
    return f"{count} of {len(reports)}" if count else "–"


def _range(values: Sequence[float | None], unit: str) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return "–"
    middle = f"{statistics.median(known):.3g}{unit and ' '}{unit}"
    return middle if known[0] == known[-1] else f"{middle} ({known[0]:.3g}–{known[-1]:.3g})"


def verdicts(reports: Sequence[Report]) -> str:
    """`9 of 10`, or a dash where nothing ran."""
    passed = sum(report.verdict == "pass" for report in reports)
    return f"{passed} of {len(reports)}" if reports else "–"


def worst(reports: Sequence[Report]) -> str:
    """The most frequent headline of those that did not pass."""
    texts = [f"{report.verdict}: {report.reasons[0]}" for report in reports if report.verdict != "pass"]
    return max(texts, key=texts.count) if texts else ""


def markdown(all_stacks: Sequence[Stack]) -> str:
    lines = [INTRODUCTION, "## Runs that passed", ""]
    lines += _table(["Stack", *COLUMNS], [[s.title, *(verdicts(results(s, c)) for c in COLUMNS)] for s in all_stacks])
    for stack in all_stacks:
        lines += ["", f"## {stack.title}", ""]
        lines += [f"{stack.settings} `examples/trainers/{stack.name}/`, {stack.versions()}.", ""]
        found = {column: results(stack, column) for column in COLUMNS}
        head = ["Scenario", "Passed", *(name.capitalize() for name in figures([])), "What was wrong"]
        rows = [[c, verdicts(r), *figures(r).values(), worst(r)] for c, r in found.items()]
        lines += _table(head, rows)
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    line = "|".join("---" for _ in head)
    cells = (" | ".join(text.replace("|", "\\|").replace("\n", " ") for text in row) for row in rows)
    return [f"| {' | '.join(head)} |", f"|{line}|", *(f"| {row} |" for row in cells)]


COLOURS = {"pass": "#1a7f37", "fail": "#cf222e", "inconclusive": "#9a6700", "invalid": "#6e7781"}
STYLE = """\
body{font:16px/1.5 system-ui,sans-serif;max-width:1200px;margin:2rem auto;padding:0 1rem;color:#1f2328;background:#fff}
table{border-collapse:collapse;width:100%}th,td{padding:.5rem .75rem;border:1px solid #d1d9e0;text-align:left}
td.cell{font-weight:600}td small{display:block;font-weight:400;color:#59636e;font-size:.8rem}
@media (prefers-color-scheme:dark){body{background:#0d1117;color:#f0f6fc}th,td{border-color:#3d444d}}
"""


def page(all_stacks: Sequence[Stack]) -> str:
    head = "".join(f"<th scope=col>{html.escape(column)}</th>" for column in COLUMNS)
    rows = "".join(
        f"<tr><th scope=row>{html.escape(stack.title)}</th>"
        + "".join(_cell(results(stack, column)) for column in COLUMNS)
        + "</tr>"
        for stack in all_stacks
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>League</title><style>{STYLE}</style><h1>League</h1>"
        "<p>Runs that passed, of all; below it the median recovery, and why the others did not pass.</p>"
        f"<table><thead><tr><th scope=col>Stack</th>{head}</tr></thead><tbody>{rows}</tbody></table></html>\n"
    )


def _cell(reports: Sequence[Report]) -> str:
    if not reports:
        return "<td>–</td>"
    bad = [report for report in reports if report.verdict != "pass"]
    colour = COLOURS[str((bad or reports)[0].verdict)]
    details = " · ".join(text for text in (figures(reports)["recovery"], worst(reports)) if text not in ("", "–"))
    return f'<td class=cell style="color:{colour}">{verdicts(reports)}<small>{html.escape(details)}</small></td>'


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stacks", type=_names, default=())
    parser.add_argument("--scenarios", type=_names, default=())
    parser.add_argument("--tries", type=int, help=f"default: {TRIES} for {' and '.join(MANY)}, {TRIES_ELSEWHERE} else")
    parser.add_argument("--again", action="store_true", help="run cells again that were run already")
    parser.add_argument("--render", action="store_true", help="only write the tables from what is kept")
    return parser.parse_args()


def main() -> None:
    given = _arguments()
    columns = given.scenarios or list(COLUMNS)
    if unknown := set(columns) - set(COLUMNS):
        sys.exit(f"unknown scenario {sorted(unknown)[0]!r}; choose from: {', '.join(COLUMNS)}")
    os.chdir(ROOT)
    for column in () if given.render else columns:
        for stack in stacks(given.stacks):
            if given.again:
                for path in cell(stack, column).glob("*.json"):
                    path.unlink()
            play(stack, column, given.tries or (TRIES if column in MANY else TRIES_ELSEWHERE))
    PAGE.write_text(markdown(stacks(())))
    PLACE.mkdir(parents=True, exist_ok=True)
    (PLACE / "league.html").write_text(page(stacks(())))
    print(f"Wrote {PAGE.relative_to(ROOT)} and {(PLACE / 'league.html').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
