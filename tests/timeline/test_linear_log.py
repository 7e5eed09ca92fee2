"""A log that tells twice as much of one thing takes twice the work to read, also where no job would tell so much."""

import pathlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from counting import lines_run
from judging import EXPECT, expecting
from simulator import Job, Logs, Outage, put, simulate

from harness.timeline import timeline

JOB = Job(nodes=2, ranks_per_node=2, steps=60, every=10)
MANY = 400
RATIO_MAX = 2.3
Lines = Iterator[dict[str, Any]]


def rendezvous(size: int, then: dict[str, Any] | None = None) -> Callable[[int], Lines]:
    """One process joins again and again, and does this each time."""

    def lines(count: int) -> Lines:
        for number in range(count):
            yield {"event": "rendezvous", "world_size": size}
            yield {"step": 70 + number} | (then or {"event": "phase", "name": "drain"})

    return lines


def repeated(**line: Any) -> Callable[[int], Lines]:
    return lambda count: (line | {"fault": f"f{number}"} for number in range(count))


def with_lines(folder: pathlib.Path, lines: Lines, in_harness: bool) -> pathlib.Path:
    """A history with one outage and these lines: in the harness's file when its fault strikes, or at the end of a
    worker's."""
    history = simulate(JOB, [Outage(20, "rank")], seed=1)
    logs: Logs = expecting(history.logs(), EXPECT)
    into = logs.harness if in_harness else logs.trainers()[0]
    struck = next((line["mono_ns"] for line in into if line.get("event") == "fault.injected"), into[-1]["mono_ns"])
    ahead = into[0]["wall_ns"] - into[0]["mono_ns"]
    into += [line | {"mono_ns": struck + n, "wall_ns": struck + n + ahead} for n, line in enumerate(lines, 1)]
    put(into)
    history.write(folder, logs)
    return folder


@pytest.mark.parametrize(
    ("more", "in_harness"),
    [
        pytest.param(rendezvous(4), False, id="worlds that nobody else joins"),
        pytest.param(rendezvous(1), False, id="worlds of one rank"),
        pytest.param(rendezvous(1, {"event": "restored", "source": "x"}), False, id="worlds that restore"),
        pytest.param(rendezvous(1, {"event": "step", "loss": 1.0}), False, id="worlds that do a step each"),
        pytest.param(repeated(event="restored", source="x", step=1), False, id="restores"),
        pytest.param(
            repeated(event="fault.injected", may=["kill"], targets=[{"node": "node0", "rank": 0}]), True, id="faults"
        ),
    ],
)
def test_twice_the_lines_twice_the_work(tmp_path: pathlib.Path, more: Callable[[int], Lines], in_harness: bool) -> None:
    folders = [with_lines(tmp_path / str(count), more(count), in_harness) for count in (0, MANY, 2 * MANY)]
    timeline.load(folders[0])  # what is done once for all logs
    none, once, twice = (lines_run(partial(timeline.load, folder)) for folder in folders)
    assert (twice - none) / (once - none) <= RATIO_MAX
