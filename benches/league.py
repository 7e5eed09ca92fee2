"""`make league`: how well known training stacks survive, each unchanged, as its own documentation sets it up.

    python -m benches.league [--stacks dcp,lightning] [--scenarios rank-kill] [--tries 10] [--again] [--render]

A stack is a folder of `examples/trainers/` with `train.py`, `stack.yaml` and `requirements.txt`; it gets an
environment of its own under `reports/league/environments/`. What each run showed is kept in docs/league.json, and a run
is made only once for the same files: what was interrupted goes on where it ended, on another machine, too. The tables
are docs/league.md and reports/league/league.html.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import html
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import yaml

from benches import environments
from harness.adopt.first_look import Facts
from harness.adopt.proposal import REHEARSALS, propose
from harness.node.emitter import TELLS
from harness.report.html_page import resource
from harness.report.run_report import Report, read
from harness.report.view import in_words

ROOT = pathlib.Path(__file__).resolve().parents[1]
STACKS = ROOT / "examples" / "trainers"
PLACE = ROOT / "reports" / "league"
PAGE = ROOT / "docs" / "league.md"
KEPT = ROOT / "docs" / "league.json"
FAULT_FREE = "no-fault"
RESUME = "matrix resume"
COLUMNS = (FAULT_FREE, *(each.name for each in REHEARSALS), RESUME)
MANY = (FAULT_FREE, "rank-kill")  # the columns with most tries
TRIES, TRIES_ELSEWHERE, SWEEPS = 10, 3, 1
RUN_LIMIT_S = 1500
SILENTLY = "did not report the damage"  # in the reason of a run that loaded a damaged checkpoint
INTRODUCTION = """\
# League

How well known training stacks survive, on two virtual nodes of one machine without a GPU. Every stack is a small
script set up as its own documentation says, and unchanged: nothing of the harness is in it. A cell says how many runs
passed, of how many; with few runs it shows what can happen, not how often. `invalid` means that the fault could not
act, as damage to a checkpoint of a job that saves none. `inconclusive` means that the run does not tell.
`matrix resume` is no fault: the job is started again from each of its saves that matters ([resumes](resumes.md)).
torchtitan is in no table yet: it asks for CUDA. `examples/trainers/torchtitan/` answers on the CPU, and it trains and
saves there (FSDP2 on gloo). No resume is shown: by default the last save holds the model alone, without its loader.

Made by `make league`; one cell again: `make league ARGS='--stacks STACK --scenarios SCENARIO --again'`.
"""
SHOWN = (  # of its requirements
    *("torch", "torchft-nightly", "torchft", "lightning", "transformers", "accelerate", "megatron-core"),
    *("nvidia-resiliency-ext", "litdata"),
)


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
    text = (stack.folder / "requirements.txt").read_text()
    return environments.environment(text, PLACE / "environments", stack.title)


def scenario(stack: Stack, column: str) -> pathlib.Path:
    """Writes the scenario of one cell beside the stack's script, which it is found from."""
    python = environment(stack)
    written = json.dumps(stack.workload).replace("$PYTHON", python).replace("$BIN", str(pathlib.Path(python).parent))
    name = "rank-kill" if column in (FAULT_FREE, RESUME) else column
    text = propose(json.loads(written), stack.facts)[f"{name}.yaml"]
    data = yaml.safe_load(text)
    if column == FAULT_FREE:
        del data["faults"], data["expect"]["recovery_time"]
        data |= {"name": FAULT_FREE, "title": "Nothing happens"}
    data["workload"]["trainer"]["scenario_dir"] = str(stack.folder)
    path = PLACE / "scenarios" / stack.name / f"{column}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


@dataclass(frozen=True)
class Outcome:
    """What one run of a cell showed. `None` is what was not measured."""

    verdict: str
    reason: str  # the first one; empty for a pass
    recovery_s: float | None
    waste_percent: float | None
    steps_lost: float | None
    samples_repeated: int | None
    samples_skipped: int | None
    losses_differ_by: float | None  # at most, at any step, in the loss's own unit
    last_loss_gap_percent: float | None
    loaded_silently: bool
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())


def outcome(report: Report) -> Outcome:
    losses = report.loss_continuity
    return Outcome(
        verdict=str(report.verdict),
        reason=report.reasons[0].replace(f"{ROOT}/", "") if report.verdict != "pass" and report.reasons else "",
        recovery_s=report.recovery_time.seconds,
        waste_percent=report.wasted_gpu_hours.percent_by_faults,
        steps_lost=report.metrics.get("steps_rolled_back"),
        samples_repeated=losses.samples_repeated,
        samples_skipped=losses.samples_skipped,
        losses_differ_by=losses.max_abs_diff,
        last_loss_gap_percent=losses.final_gap_percent,
        loaded_silently=SILENTLY in " ".join(report.reasons),
    )


class Kept:
    """The outcomes of all runs, in docs/league.json: by stack, by the digest of its files, by scenario."""

    def __init__(self) -> None:
        self._all: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}

    def of(self, stack: Stack, column: str) -> list[Outcome]:
        return [Outcome(**({"date": ""} | each)) for each in self._cells(stack).get(column, [])]

    def add(self, stack: Stack, column: str, found: Outcome) -> None:
        self._all[stack.name] = {"files": stack.digest(), "cells": self._cells(stack)}
        self._all[stack.name]["cells"].setdefault(column, []).append(asdict(found))
        self._write()

    def drop(self, stack: Stack, column: str) -> None:
        if self._cells(stack).pop(column, None):
            self._write()

    def _cells(self, stack: Stack) -> dict[str, Any]:
        kept = self._all.get(stack.name, {})
        return kept["cells"] if kept.get("files") == stack.digest() else {}

    def _write(self) -> None:
        new = KEPT.with_suffix(".new")
        new.write_text(json.dumps(self._all, indent=1, sort_keys=True) + "\n")
        new.replace(KEPT)


def play(stack: Stack, column: str, tries: int, kept: Kept) -> None:
    """Makes the runs that a cell still lacks."""
    for number in range(len(kept.of(stack, column)) + 1, tries + 1):
        print(f"{stack.title}: {column}, {number} of {tries}", flush=True)
        path = scenario(stack, column)
        kept.add(stack, column, _sweep(path, stack) if column == RESUME else outcome(_run(path, stack)))


def _sweep(path: pathlib.Path, stack: Stack) -> Outcome:
    done = _call(stack, "matrix", "resume", path, "--json")
    try:
        found = json.loads(done.stdout)
    except ValueError:
        reason = (done.stderr.strip().splitlines() or ["no sweep"])[-1].removeprefix("error: ")
        return Outcome("inconclusive", reason, None, None, None, None, None, None, None, loaded_silently=False)
    wrong = [
        f"{each['moment']} (step {each['step']}): {each['result']}" for each in found["tried"] if not each["right"]
    ]
    reason = next(iter([*found["saves_show"], *wrong]), "" if found["verdict"] == "pass" else found["why"])
    return Outcome(found["verdict"], reason, None, None, None, None, None, None, None, loaded_silently=False)


def _call(stack: Stack, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *map(str, words), "--reports", str(PLACE / "runs" / stack.name)]
    return subprocess.run(command, cwd=stack.folder, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)


def _run(path: pathlib.Path, stack: Stack) -> Report:
    reports = PLACE / "runs" / stack.name
    before = set(reports.glob("*/report.json"))
    done = _call(stack, "run", path)
    new = sorted(set(reports.glob("*/report.json")) - before)
    if not new:
        raise SystemExit(f"{path}: no report; exit {done.returncode}\n{done.stdout}{done.stderr}")
    return read(new[-1])


def figures(runs: Sequence[Outcome]) -> dict[str, str]:
    """Medians with the range, of all runs of a cell in which it was measured."""
    return {
        "recovery": _range([run.recovery_s for run in runs], "s"),
        "waste": _range([run.waste_percent for run in runs], "%"),
        "steps lost": _range([run.steps_lost for run in runs], ""),
        "samples repeated": _range([run.samples_repeated for run in runs], ""),
        "samples skipped": _range([run.samples_skipped for run in runs], ""),
        "losses": _losses(runs),
        "damage loaded silently": _share(sum(run.loaded_silently for run in runs), runs),
    }


def _losses(runs: Sequence[Outcome]) -> str:
    """`identical` to the fault-free run's, how far the last ones are off, or a dash where nothing was compared."""
    compared = [run for run in runs if run.losses_differ_by is not None]
    if not compared:
        return "–"
    if not any(run.losses_differ_by for run in compared):
        return "identical"
    gaps = _range([abs(run.last_loss_gap_percent) for run in compared if run.last_loss_gap_percent is not None], "%")
    return f"differ; the last ones by {gaps}" if gaps != "–" else "differ"


def _share(count: int, runs: Sequence[Outcome]) -> str:
    return f"{count} of {len(runs)}" if count else "–"


def _range(values: Sequence[float | None], unit: str) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return "–"
    middle = f"{statistics.median(known):.3g}{unit and ' '}{unit}"
    return middle if known[0] == known[-1] else f"{middle} ({known[0]:.3g}–{known[-1]:.3g})"


def verdicts(runs: Sequence[Outcome]) -> str:
    """`9 of 10`, or a dash where nothing ran."""
    passed = sum(run.verdict == "pass" for run in runs)
    return f"{passed} of {len(runs)}" if runs else "–"


def last_run(runs: Sequence[Outcome]) -> str:
    """The date, or a dash where none was kept."""
    return max((run.date for run in runs), default="") or "–"


def worst(runs: Sequence[Outcome]) -> str:
    """The most frequent headline of those that did not pass."""
    texts = [f"{run.verdict}: {run.reason}" for run in runs if run.verdict != "pass"]
    return max(texts, key=texts.count) if texts else ""


def markdown(all_stacks: Sequence[Stack], kept: Kept) -> str:
    lines = [INTRODUCTION, "## Runs that passed", ""]
    lines += _table(["Stack", *COLUMNS], [[s.title, *(verdicts(kept.of(s, c)) for c in COLUMNS)] for s in all_stacks])
    for stack in all_stacks:
        lines += ["", f"## {stack.title}", ""]
        lines += [f"{stack.settings} `examples/trainers/{stack.name}/`, {stack.versions()}.", ""]
        found = {column: kept.of(stack, column) for column in COLUMNS}
        head = ["Scenario", "Passed", "Last run", *(name.capitalize() for name in figures([])), "What was wrong"]
        rows = [[c, verdicts(r), last_run(r), *figures(r).values(), worst(r)] for c, r in found.items() if r]
        lines += _table(head, rows) if rows else ["It was not run yet."]
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    line = "|".join("---" for _ in head)
    cells = (" | ".join(text.replace("|", "\\|").replace("\n", " ") for text in row) for row in rows)
    return [f"| {' | '.join(head)} |", f"|{line}|", *(f"| {row} |" for row in cells)]


def page(all_stacks: Sequence[Stack], kept: Kept) -> str:
    """Stacks against scenarios at a glance, and below them what went wrong; in the style of the reports."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in COLUMNS)
    rows, wrong = "", ""
    for stack in all_stacks:
        found = {column: kept.of(stack, column) for column in COLUMNS}
        title = html.escape(stack.title)
        rows += f"<tr><td><b>{title}</b></td>{''.join(_cell(*each) for each in found.items())}</tr>"
        told = [(column, verdicts(runs), in_words(worst(runs))) for column, runs in found.items() if worst(runs)]
        items = "".join(f"<li><b>{html.escape(c)}</b>, {v} passed: {html.escape(why)}</li>" for c, v, why in told)
        wrong += f"<h3>{title}</h3>" + (f"<ul>{items}</ul>" if items else "<p>Nothing.</p>")
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>League</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{resource('report.css')}</style></head><body><header class=top><h1>League</h1>"
        "<p>How many runs passed, of how many, and the median recovery.</p></header>"
        f"<main><section><table class=stacked><thead><tr><th>Stack</th>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f"</section><section><h2>What was wrong</h2><p class=soft>The most frequent reason.</p>{wrong}</section></main>"
        "</body></html>\n"
    )


def _cell(column: str, runs: Sequence[Outcome]) -> str:
    lead = f'<span class="lead">{html.escape(column)}: </span>'
    if not runs:
        return f"<td>{lead}–</td>"
    bad = [run for run in runs if run.verdict != "pass"]
    recovery = figures(runs)["recovery"]
    took = f'<br><span class="soft">{recovery}</span>' if recovery != "–" else ""
    return f'<td>{lead}<span class="badge {(bad or runs)[0].verdict}">{verdicts(runs)}</span>{took}</td>'


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
    kept = Kept()
    for column in () if given.render else columns:
        for stack in stacks(given.stacks):
            if given.again:
                kept.drop(stack, column)
            play(
                stack,
                column,
                given.tries or (TRIES if column in MANY else SWEEPS if column == RESUME else TRIES_ELSEWHERE),
                kept,
            )
    PAGE.write_text(markdown(stacks(()), kept))
    PLACE.mkdir(parents=True, exist_ok=True)
    (PLACE / "league.html").write_text(page(stacks(()), kept))
    print(f"Wrote {PAGE.relative_to(ROOT)} and {(PLACE / 'league.html').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
