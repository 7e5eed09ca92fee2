"""What a trainer wrote into its own logs, read after the fact: the steps that it did, and did again after a restart."""

from __future__ import annotations

import array
import contextlib
import math
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
import yaml

from harness.errors import FaultError, UsageError
from harness.judge.facts.losses import WORDS
from harness.judge.facts.repeated_steps import Executed
from harness.log import untrusted_files
from harness.log.reading import UNTOLD
from harness.trainers.readers.contract import Reader, Source, Told, build_reader, load_reader, reader_names

CHUNK_BYTES = 2 * 2**20
STEPS_MAX = 5_000_000
SAID_MAX = 20
PLACES = ("first", "count")


def reader_of(text: str) -> Reader:
    """A reader's name, or its form in YAML: `lines: {regex: …}`. Raises `UsageError`."""
    try:
        return reader_as(yaml.safe_load(text))
    except (ValueError, yaml.YAMLError) as error:
        lines = "; ".join(str(error).splitlines())
        names = ", ".join(reader_names())
        raise UsageError(f"--read {text}: {lines}; write one of: {names}, or 'lines: {{regex: …}}'") from error


def reader_as(given: object) -> Reader:
    """Raises `ValueError`."""
    return load_reader(given)() if isinstance(given, str) and given in reader_names() else build_reader(given)


def executed(files: Sequence[pathlib.Path], reader: Reader) -> Executed:
    """The files are those of one job, the oldest first. A further file, or a step that is no later one, is a restart.
    Raises `UsageError` for what cannot be read."""
    if reader.whole:
        raise UsageError(f"--read {reader.name}: its files hold the whole history, and not what was done twice")
    rows, figures = array.array("q"), {name: array.array("d") for name in WORDS}  # rows: rank, step, life
    places = {name: array.array("q") for name in PLACES}
    lives, saved, newest = dict[int, int](), dict[int, int](), 0
    for path in files:
        last = dict[int, int]()
        for told in _told(path, reader):
            if told.event == "checkpoint.committed":
                newest = max(newest, int(told.fields.get("step", 0)))
            if told.event != "step" or told.fields["step"] == last.get(told.rank):
                continue
            rank, step = told.rank, int(told.fields["step"])
            if step < last.get(rank, step + 1):
                lives[rank] = lives.get(rank, -1) + 1
                saved.setdefault(lives[rank], newest)
            last[rank] = step
            rows.extend((rank, step, lives[rank]))
            for name, column in figures.items():
                value = told.fields.get(name)
                column.append(UNTOLD if value is None else math.nan if math.isnan(value) else value)
            for name, numbers in places.items():
                numbers.append(int(told.fields.get(name, -1)))
            if len(rows) > 3 * STEPS_MAX:
                raise UsageError(f"{path}: more than {STEPS_MAX} steps")
    rank_of, step_of, life_of = np.array(rows, np.int64).reshape(-1, 3).T
    told_figures = {name: np.array(column) for name, column in figures.items()}
    told_places = {name: np.array(column, np.int64) for name, column in places.items()}
    return Executed(rank_of, step_of, life_of, told_figures, told_places, saved=saved)


def gaps(told: Executed) -> list[str]:
    """Restarts that went on after steps that are in no log, in words: nobody knows what those did."""
    found = []
    order = np.lexsort((np.arange(len(told.step)), told.life, told.rank))
    rank, step, life = told.rank[order], told.step[order], told.life[order]
    apart = np.diff(step)[(np.diff(life) == 0) & (np.diff(rank) == 0)]
    usual = int(apart.max(initial=1))
    furthest = np.maximum.accumulate(step)
    for at in np.flatnonzero((np.diff(life) > 0) & (np.diff(rank) == 0)).tolist():
        if step[at + 1] > furthest[at] + usual:
            between = f"steps {furthest[at] + 1} to {step[at + 1] - 1}"
            found.append(f"restart {life[at + 1]}: {between} are in no log")
    return found[:SAID_MAX]


def _told(path: pathlib.Path, reader: Reader) -> Iterator[Told]:
    """What is not understood is left out, as in a live run."""
    source = reader.open()
    try:
        with untrusted_files.open_reader(path.parent, path.name) as file:
            while data := file.read(CHUNK_BYTES):
                yield from _fed(source, data)
            yield from _fed(source, b"\n")
    except (OSError, FaultError) as error:
        raise UsageError(f"{path}: {error}") from error


def _fed(source: Source, data: bytes) -> Iterator[Told]:
    with contextlib.suppress(ValueError):
        yield from source.feed(data)
