"""Judging takes as much more work as there is more to judge: twice the ranks or twice the restarts, twice the work.

Counted, not timed: the lines of Python that run, and the elements of the run's columns that NumPy is given to compare,
mask, sort or sum.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from counting import lines_run
from judging import EXPECT, expecting, fault_free_of, load
from simulator import Job, Outage, clocks, remove, simulate, steps

from harness.judge.score import Evidence, judge

RANKS, RESTARTS, STEPS = 32, 20, 120
RATIO_MAX = 2.3


@functools.lru_cache(maxsize=4)
def evidence(ranks: int, restarts: int) -> Evidence:
    job = Job(nodes=ranks // 8, ranks_per_node=8, steps=STEPS)
    outages = [Outage(STEPS // restarts, "rank", victim=number % job.nodes) for number in range(restarts - 1)]
    history = simulate(job, [Outage(3, "rank"), *outages], seed=5)
    return Evidence(load(history, expecting(history.logs(), EXPECT)), fault_free_of(job))


class Column(np.ndarray):
    """Counts its elements, and those of what comes of it, when they are worked on. A slice is free."""

    touched = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        Column.touched += max(np.size(each) for each in inputs if each is not None)
        return wrapped(getattr(ufunc, method)(*plain(inputs), **plain(options)))

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        Column.touched += sum(each.size for each in (*inputs, *options.values()) if isinstance(each, np.ndarray))
        return wrapped(function(*plain(inputs), **plain(options)))

    def __getitem__(self, key: Any) -> Any:
        Column.touched += key.size if isinstance(key, np.ndarray) else 0
        return wrapped(plain(self)[plain(key)])

    def __iter__(self) -> Any:
        Column.touched += self.size
        return iter(plain(self))

    def tolist(self) -> Any:
        Column.touched += self.size
        return plain(self).tolist()


def plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(plain(each) for each in value)
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value.view(np.ndarray) if isinstance(value, Column) else value


def wrapped(value: Any) -> Any:
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(wrapped(each) for each in value)
    return value.view(Column) if type(value) is np.ndarray and value.ndim else value


def columns(record: Any) -> Any:
    """A record whose arrays are counted, also those of records in it."""
    found = {
        each.name: columns(value) if dataclasses.is_dataclass(value) else wrapped(value)
        for each in dataclasses.fields(record)
        if each.init
        and (isinstance(value := getattr(record, each.name), np.ndarray) or dataclasses.is_dataclass(value))
    }
    return dataclasses.replace(record, **found)


def elements_touched(run: Evidence, monkeypatch: pytest.MonkeyPatch) -> int:
    counted = dataclasses.replace(run, run=columns(run.run), fault_free=columns(run.fault_free))
    Column.touched = 0
    with monkeypatch.context() as patch:
        patch.setattr(np, "asarray", np.asanyarray)  # it would drop the count
        assert judge(counted, "run").verdict == judge(run, "run").verdict
    return Column.touched


def test_the_counts_see_loops_and_masks() -> None:
    def loop(turns: int) -> int:
        return sum(turn for turn in range(turns) if turn)

    assert lines_run(lambda: loop(2000)) > 1.9 * lines_run(lambda: loop(1000)) > 1000
    Column.touched, column = 0, np.arange(100).view(Column)
    assert len(column[10:20]) == 10 and Column.touched == 0, "a slice is free"
    assert (column > 5)[:50].any() and Column.touched == 150
    assert len(column[column > 5]) == 94 and Column.touched == 350
    assert len(np.unique(column)) == 100 and Column.touched == 450


def bent(shape: str, much: int) -> Evidence:
    """`much` steps, as no trainer would tell them, or with as many faults."""
    job = Job(nodes=2, steps=much, every=much)
    history = simulate(job, [Outage(12, "rank")] if shape == "faults" else [])
    logs = expecting(history.logs(), EXPECT)
    told = steps(logs.trainers(rank=1)[0])
    if shape == "faults":
        lines = logs.harness
        mine = [line for line in lines if str(line.get("event")).startswith("fault.")]
        network = {"kind": "nic_latency", "kills": False, "spoils": False}
        traffic = {"event": "fault.traffic", "node": "node0", "seconds": 1.0, "measured": 9, "least": 1, "ok": True}
        for number in range(much):
            times = clocks(mine[0], 5 * 10**9 + number)
            other = {"fault": f"net{number}"} | times
            lines += [line | other | (network if "targets" in line else {}) for line in mine[:2]]
            lines.append(other | traffic)
            lines.append(mine[2] | other | {name: at + 10**8 for name, at in times.items()})
    elif shape == "alternating":
        for number, line in enumerate(told):
            line["step"] = 10 + number % 2
    else:
        unwanted = [line for line in told if line["step"] % 7 in (2, 5)]
        remove(logs.trainers(rank=1)[0], lambda line: line in unwanted)
    return Evidence(load(history, logs), fault_free_of(job))


def in_proportion(once: Evidence, twice: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    elements = elements_touched(twice, monkeypatch) / elements_touched(once, monkeypatch)
    lines = lines_run(lambda: judge(twice, "run")) / lines_run(lambda: judge(once, "run"))
    assert max(lines, elements) <= RATIO_MAX, f"{lines:.2f} times the lines, {elements:.2f} times the elements"


@pytest.mark.parametrize("shape", ["alternating", "holes", "faults"])
def test_twice_as_many_odd_lines_take_twice_the_work(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_proportion(bent(shape, 400), bent(shape, 800), monkeypatch)


MORE_RANKS, MORE_RESTARTS = (2 * RANKS, RESTARTS), (RANKS, 2 * RESTARTS)


@pytest.mark.parametrize(("ranks", "restarts"), [MORE_RANKS, MORE_RESTARTS])
def test_twice_as_much_takes_twice_the_work(ranks: int, restarts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    in_proportion(evidence(RANKS, RESTARTS), evidence(ranks, restarts), monkeypatch)
