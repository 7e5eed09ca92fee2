"""Samples of steps: runs of indices as trainers write them, kept as columns, hostile ones refused."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import EventLogError
from harness.log import files, reading, sample_indices
from harness.log.event_log import Tail

HEADER = {"schema": 1, "writer": "w", "role": "trainer", "host": "a", "clock": "boot", "rank": 0, "world_size": 1}
RUNS = st.lists(
    st.tuples(st.integers(100, 10**12), st.integers(1, 9)).map(list)
    | st.tuples(st.integers(100, 10**12), st.integers(1, 9), st.integers(-9, 9)).map(list),
    max_size=5,
)


def indices(runs: list[list[int]]) -> list[int]:
    """The plain way to say which indices they are."""
    return [run[0] + place * (run[2] if len(run) == 3 else 1) for run in runs for place in range(run[1])]


def write(folder: pathlib.Path, steps: list[dict[str, Any]], name: str = "w") -> None:
    folder.mkdir(exist_ok=True)
    records = [HEADER | {"writer": name}, *({"event": "step", "step": n} | s for n, s in enumerate(steps, 1))]
    lines = [{"wall_ns": 10**18 + at, "mono_ns": at} | record for at, record in enumerate(records)]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@given(st.lists(st.none() | RUNS, min_size=1, max_size=6))
def test_what_was_written_is_read_back(told: list[list[list[int]] | None]) -> None:
    numbers, table = sample_indices.read([None if runs is None else json.dumps(runs).encode() for runs in told])
    assert [number == sample_indices.UNTOLD for number in numbers.tolist()] == [runs is None for runs in told]
    for number, runs in zip(numbers.tolist(), told, strict=True):
        if runs is not None:
            assert table.expanded(np.array([number])).tolist() == indices(runs)
            assert table.counts(np.array([number])).tolist() == [len(indices(runs))]


@given(st.lists(st.lists(RUNS, max_size=3), max_size=3))
def test_parts_are_joined_in_order(parts: list[list[list[list[int]]]]) -> None:
    tables = [sample_indices.read([json.dumps(runs).encode() for runs in part])[1] for part in parts]
    whole = sample_indices.joined(tables)
    everything = [runs for part in parts for runs in part]
    assert whole.expanded(np.arange(len(everything))).tolist() == [i for runs in everything for i in indices(runs)]


def test_a_log_keeps_them_in_one_table(tmp_path: pathlib.Path) -> None:
    write(tmp_path, [{"samples": [[4, 2]], "epoch": 1}, {"applied": False}, {"samples": [[9, 3, 2]]}], "a")
    write(tmp_path, [{"samples": [[2**40, 1]]}], "b")
    log = reading.read(tmp_path)
    assert log.steps["samples"].tolist() == [0, -1, 1, 2]
    assert log.samples.expanded(np.array([0, 1, 2])).tolist() == [4, 5, 9, 11, 13, 2**40]
    assert log.steps["data_pass"].tolist() == [1, -1, -1, -1]
    assert log.steps["applied"].tolist() == [1, 0, 1, 1]


def test_numbers_that_fit_32_bits_take_no_more() -> None:
    assert sample_indices.read([b"[[5,3]]"])[1].runs.dtype == np.int32
    assert sample_indices.read([b"[[5000000000,3]]"])[1].runs.dtype == np.int64


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ([[1]], "2 or 3 integers, not 1"),
        ([[1, 2, 3, 4]], "2 or 3 integers, not 4"),
        ([[1, 0]], "count of a run must be from 1"),
        ([[1, 2**40]], "count of a run must be from 1"),
        ([[-1, 1]], "indices of a run must be from 0"),
        ([[5, 7, -1]], "indices of a run must be from 0"),
        ([[0, 2**24, 2**62]], "indices of a run must be from 0"),
        ([[0, 2**24], [0, 1]], "at most 16777216 samples"),
        ([[0, 1]] * (2**16 + 1), "65537 runs"),
        ([[2**70, 1]], "more than 64 bits|step event: samples"),
        ([["1", 1]], "samples"),
        ([[1.5, 1]], "samples"),
        ({"first": 1}, "samples must be a list of runs"),
        ("0-15", "samples must be a list of runs"),
    ],
)
def test_hostile_runs_are_refused_with_their_line(tmp_path: pathlib.Path, told: object, message: str) -> None:
    write(tmp_path, [{}, {"samples": told}])
    with pytest.raises(EventLogError, match=rf"w\.jsonl:3: .*({message})"):
        reading.read(tmp_path)
    assert Tail(tmp_path).poll()[0][1]["step"] == 1  # following stops for nothing


@pytest.mark.parametrize("odd", [{"epoch": -7}, {"epoch": "one"}, {"applied": 1}, {"applied": "no"}])
def test_hostile_fields_beside_them(tmp_path: pathlib.Path, odd: dict[str, Any]) -> None:
    write(tmp_path, [odd])
    with pytest.raises(EventLogError, match=rf"w\.jsonl:2: step event: {next(iter(odd))}"):
        reading.read(tmp_path)


@pytest.mark.parametrize("block", [1, 200, 1000])
def test_the_end_of_a_block_does_not_matter(
    block: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, [{"samples": [[10 * n, 2]]} if n % 4 else {} for n in range(30)])
    whole = reading.read(tmp_path)
    monkeypatch.setattr(files, "BLOCK_BYTES", block)
    cut = reading.read(tmp_path)
    told = whole.steps["samples"] != sample_indices.UNTOLD
    assert (cut.steps["samples"] != sample_indices.UNTOLD).tolist() == told.tolist()
    numbers = [log.samples.expanded(log.steps["samples"][told]).tolist() for log in (whole, cut)]
    assert numbers[0] == numbers[1] == [10 * n + i for n in range(30) if n % 4 for i in range(2)]
