"""Defines `chaos checkpoint verify`, which lists intact checkpoints, and the flaws of damaged checkpoints."""

from __future__ import annotations

import datetime
import json as json_module
import math
import pathlib
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from harness.campaign.run_store import Store
from harness.cli.output import STYLES, note, print_json, print_table, safe, say
from harness.cli.shared_options import REPORTS, JsonOption, ReportsOption, seconds_of
from harness.errors import INTERRUPTED, UsageError
from harness.judge.verdict import EXIT_CODES, Verdict
from harness.preflight.preflight_command import JunitOption
from harness.preflight.preflight_page import in_junit
from harness.preflight.stored_saves import StoredSaves
from harness.preflight.verification import STRUCTURE, Place, Save, State
from harness.preflight.verifier import VERDICTS, Verifier, verdict
from harness.report import write_files
from harness.report.strict_json import strict
from harness.report.words import DASH, size
from harness.run.stop import stop
from harness.trainers.checkpoints.contract import AUTO, check_layout
from harness.units import counted

NAMED_MAX = 3  # findings of one save that are shown
HEAD = ("save", "step", "written, UTC", "size", "loss", "verified")

WHAT = "Say which saves are whole, and which file or tensor is bad."

checkpoint = typer.Typer(add_completion=False, no_args_is_help=True, help=WHAT)


@checkpoint.callback()
def _group() -> None:
    """Say which saves are whole, and which file or tensor is bad."""


@checkpoint.command()
def verify(
    path: Annotated[pathlib.Path, typer.Argument(help="A folder of saves, one save, or a file of it.")],
    layout: Annotated[str, typer.Option(help="How they are laid out: dcp, megatron, …; auto finds out.")] = AUTO,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep a manifest beside each whole save: later each changed bit is found.")
    ] = False,
    against: Annotated[str, typer.Option(help="A stored run: hold the saves against what the harness saw.")] = "",
    load: Annotated[
        bool, typer.Option("--load", help="Also load each by its own framework. It may run code: for saves you trust.")
    ] = False,
    python: Annotated[
        str, typer.Option(help="For --load: the interpreter that has the framework; by default the harness's own.")
    ] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Follow a job: verify each new save, until Ctrl-C.")] = False,
    duration: Annotated[str, typer.Option("--for", help="End --watch after this time, like 30m.")] = "",
    json: JsonOption = False,
    junit: JunitOption = None,
    reports: ReportsOption = REPORTS,
) -> None:
    """Say which saves are whole, and which file or tensor is bad.

    Nothing is unpickled and no framework is needed. Files of torch.save and shards of distributed checkpoints have a
    checksum for each tensor. Safetensors have no checksum: their content is compared only with a manifest (--keep) or a
    stored run (--against). A flaw that a healthy save may have, too, is reported as suspicious.

    Exits 0 if all saves are whole, 1 if one is damaged, and 3 if one is suspicious or unknown, or there is no save.

    Example: chaos checkpoint verify checkpoints/ --keep
    """
    try:
        check_layout(layout)
    except ValueError as error:
        raise UsageError(str(error)) from error
    limit_s = seconds_of("--for", duration) if duration else math.inf
    if (duration and not watch) or (python and not load):
        raise UsageError("--for is for --watch, and --python for --load")
    if not path.is_dir() and not path.is_file():
        raise UsageError(f"{path}: {'neither a folder nor a file' if path.exists() else 'not there'}")
    if load and python and shutil.which(python) is None:
        raise UsageError(f"--python {python}: no program that can be run")
    if junit and not junit.parent.is_dir():
        raise UsageError(f"--junit {junit}: {junit.parent} is no folder")
    stored = StoredSaves(Store(reports).find(against)) if against else None
    verifier = Verifier(Place(path, layout), keep, (python or sys.executable) if load else "", stored)
    saves = _watch(verifier, limit_s, json) if watch else list(verifier.all())
    answer = verdict(saves, verifier.notes)
    if json and not watch:
        told = {"schema": 1, "path": str(path), "verdict": answer.value, "notes": verifier.notes}
        print_json(strict(told | {"saves": [_values(each) for each in saves]}))
    elif saves and not watch:
        _print(saves, keep)
    for text in verifier.notes if saves else [*verifier.notes, f"no save of a known layout is in {path}"]:
        note(text)
    if junit:
        finished = (each for each in saves if each.state is not State.UNFINISHED)
        cases = ((each.path, VERDICTS.get(each.state, Verdict.INCONCLUSIVE), _words(each)) for each in finished)
        try:
            write_files({junit.name: in_junit(f"checkpoint verify {path}", cases)}, junit.parent)
        except OSError as error:
            note(f"The answer stands, but {junit} could not be written: {error.strerror}")
    raise typer.Exit(INTERRUPTED if stop.asked else EXIT_CODES[answer])


def _watch(verifier: Verifier, limit_s: float, json: bool) -> list[Save]:
    saves = dict[str, Save]()
    with stop.attended():
        for save in verifier.new(stop, time.monotonic() + limit_s):
            saves[save.path] = save
            say(
                json_module.dumps(strict(_values(save))) if json else "  ".join((*_cells(save), _words(save))),
                _style(save),
            )
    return list(saves.values())


def _words(save: Save) -> str:
    findings = sorted(save.findings, key=lambda each: each.state is not save.state)
    more = len(findings) + save.more - NAMED_MAX
    loaded = [f"loaded: {save.loaded}"] if save.loaded else []
    named = [each.words for each in findings[:NAMED_MAX]]
    return "; ".join([*named, *([f"{more:,} more"] if more > 0 else []), *loaded])


def _style(save: Save) -> str:
    return "" if save.state is State.WHOLE else STYLES[VERDICTS.get(save.state, Verdict.INCONCLUSIVE)]


def _when(save: Save) -> str:
    if save.points:
        return DASH
    try:
        return datetime.datetime.fromtimestamp(save.changed_ns / 1e9, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return DASH


def _cells(save: Save) -> tuple[str, ...]:
    step, loss = (DASH if value is None else f"{value:.10g}" for value in (save.step, save.loss))
    state = f"whole by {save.verified_by}" if save.state is State.WHOLE else save.state.value
    return save.path, step, _when(save), DASH if save.points else size(save.bytes), loss, state


def _print(saves: Sequence[Save], kept: bool) -> None:
    table = Table(*HEAD, "what", box=None, header_style="bold")
    for each in saves:
        table.add_row(*map(safe, (*_cells(each), _words(each))), style=_style(each))
    print_table(table)
    own = [save for save in saves if not save.points]
    counts = {state: sum(save.state is state for save in own) for state in State}
    say(f"{counted(len(own), 'save')}: {', '.join(f'{count} {state}' for state, count in counts.items() if count)}")
    if not kept and any(save.state is State.WHOLE and save.verified_by == STRUCTURE for save in saves):
        say("Where only the structure was checked, a changed tensor is not seen: it needs --keep, or --against RUN.")


def _values(save: Save) -> dict[str, Any]:
    told = {"path": save.path, "step": save.step, "written_at": _when(save), "bytes": save.bytes, "loss": save.loss}
    told |= {"state": save.state.value, "verified_by": save.verified_by or None, "loaded": save.loaded or None}
    return told | {"findings": [each._asdict() for each in save.findings], "more_findings": save.more}
