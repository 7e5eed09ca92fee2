"""What a trainer wrote into its own logs, read after the fact: the steps that it did, and did again after a restart."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
import yaml

from harness.errors import UsageError
from harness.judge.facts.losses import WORDS
from harness.judge.facts.repeated_steps import Executed
from harness.trainers.readers.contract import Reader, Told, build_reader, load_reader, reader_names

CHUNK_BYTES = 2 * 2**20
WHOLE_BYTES_MAX = 32 * 2**20
STEPS_MAX = 20_000_000
PLACES = ("first", "count")


def reader_of(text: str) -> Reader:
    """A reader's name, or its form in YAML: `lines: {regex: …}`. Raises `UsageError`."""
    try:
        given = yaml.safe_load(text)
        return load_reader(given)() if given in reader_names() else build_reader(given)
    except (ValueError, yaml.YAMLError) as error:
        lines = "; ".join(str(error).splitlines())
        names = ", ".join(reader_names())
        raise UsageError(f"--read {text}: {lines}; write one of: {names}, or 'lines: {{regex: …}}'") from error


def executed(files: Sequence[pathlib.Path], reader: Reader) -> Executed:
    """The files are those of one job, the oldest first. A further file, or a step that is no later one, is a restart.
    Raises `UsageError` for what cannot be read."""
    rows: list[tuple[int, int, int]] = []  # rank, step, life
    figures: dict[str, list[float]] = {name: [] for name in WORDS}
    places: dict[str, list[int]] = {name: [] for name in PLACES}
    lives: dict[int, int] = {}
    for path in files:
        last: dict[int, int] = {}
        for told in (each for each in _told(path, reader) if each.event == "step"):
            rank, step = told.rank, int(told.fields["step"])
            if step == last.get(rank):
                continue
            if step < last.get(rank, step + 1):
                lives[rank] = lives.get(rank, -1) + 1
            last[rank] = step
            rows.append((rank, step, lives[rank]))
            for name, column in figures.items():
                column.append(float(told.fields.get(name, np.nan)))
            for name, numbers in places.items():
                numbers.append(int(told.fields.get(name, -1)))
            if len(rows) > STEPS_MAX:
                raise UsageError(f"{path}: more than {STEPS_MAX} steps")
    rank_of, step_of, life_of = np.array(rows, np.int64).reshape(-1, 3).T
    told_figures = {name: np.array(column) for name, column in figures.items()}
    told_places = {name: np.array(column, np.int64) for name, column in places.items()}
    return Executed(rank_of, step_of, life_of, told_figures, told_places)


def _told(path: pathlib.Path, reader: Reader) -> Iterator[Told]:
    source = reader.open()
    try:
        with path.open("rb") as file:
            if reader.whole and path.stat().st_size > WHOLE_BYTES_MAX:
                raise UsageError(f"{path}: more than {WHOLE_BYTES_MAX} bytes, and this reader takes a file as a whole")
            while data := file.read(WHOLE_BYTES_MAX if reader.whole else CHUNK_BYTES):
                yield from source.feed(data)
            yield from () if reader.whole else source.feed(b"\n")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from error
