"""Reading event files: damage is named, odd fields are understood, foreign clocks are moved."""

import json
import math
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import pytest
import waiting
from simulator import Job, simulate

from harness.errors import EventLogError
from harness.log import files, line_numbers, reading
from harness.log.files import EventFile
from harness.timeline import timeline

HEADER = {"schema": 1, "writer": "w", "role": "trainer", "host": "a", "clock": "boot", "rank": 0, "world_size": 1}


def write(events: pathlib.Path, name: str, *records: dict[str, Any], tail: str = "") -> pathlib.Path:
    events.mkdir(exist_ok=True)
    path = events / f"{name}.jsonl"
    lines = [{"wall_ns": 10**18 + i, "mono_ns": i} | record for i, record in enumerate(records)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return path


def read_file(path: pathlib.Path) -> reading.Writer:
    writer = reading.read_source(EventFile.of(path))
    assert writer is not None
    return writer


def step(number: int, **fields: Any) -> dict[str, Any]:
    return {"event": "step", "step": number, "begin_ns": 5, "loss": 1.5} | fields


def test_steps_become_columns_and_the_rest_stays_events(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "w", HEADER, {"event": "started"}, step(1, digest="ab"), step(2, digest="ab", loss="nan"))
    writer = read_file(path)
    assert [event["event"] for event in writer.events] == ["started"]
    assert writer.steps["step"].tolist() == [1, 2]
    assert writer.steps["loss"][0] == 1.5
    assert math.isnan(writer.steps["loss"][1])
    assert writer.steps["digest"][0] == writer.steps["digest"][1] != 0
    assert writer.steps["end"].tolist() == [2, 3]
    assert not writer.torn


def test_a_torn_last_line_is_reported_and_a_step_begins_where_the_one_before_ended(tmp_path: pathlib.Path) -> None:
    writer = read_file(write(tmp_path, "w", HEADER, step(1), tail='{"event":"st'))
    assert writer.torn
    assert writer.steps["step"].tolist() == [1]
    records = [{k: v for k, v in step(n).items() if k != "begin_ns"} for n in (1, 2)]
    writer = read_file(write(tmp_path, "w", HEADER, *records))
    assert writer.steps["begin"].tolist() == [1, 1]


def test_no_log_at_all(tmp_path: pathlib.Path) -> None:
    with pytest.raises(EventLogError, match="no event log here"):
        timeline.load(tmp_path)
    (tmp_path / "events").mkdir()
    for text in (None, '{"schema":1,'):
        if text:
            (tmp_path / "events" / "trainer.jsonl").write_text(text)
        with pytest.raises(EventLogError, match="the event log is empty"):
            timeline.load(tmp_path)


def test_fields_that_are_not_declared_do_not_matter(tmp_path: pathlib.Path) -> None:
    odd = {"event": "anomaly", "step": "somewhere", "count": [1], "loss": {}, "node": [], "at": "noon", "rank": {}}
    writer = read_file(write(tmp_path, "w", HEADER, odd, step(1, first=None, grad_norm=None)))
    assert writer.events[0]["step"] == "somewhere"
    assert writer.events[0]["at"] == 1
    assert not writer.events[0].keys() & {"node", "rank"}, "the file's place tells these"
    assert writer.steps["first"].tolist() == [-1]
    assert np.isnan(writer.steps["grad_norm"]).all()


OURS = HEADER | {"role": "harness", "host": "h", "wall_ns": 10_000, "mono_ns": 100}
FOREIGN = HEADER | {"host": "b", "clock": "other"}


def compared(**told: int) -> dict[str, Any]:
    """The harness compared the clock of host b with its own."""
    return {"event": "clock", "host": "b", "offset_ns": 0, "uncertainty_ns": 3} | told


def test_a_foreign_clock_is_moved_by_its_offset(tmp_path: pathlib.Path) -> None:
    """Host b's wall clock is 700 ns ahead; its monotonic clock started at another time."""
    write(tmp_path, "harness", OURS, compared(offset_ns=700, uncertainty_ns=30, mono_ns=150))
    foreign = FOREIGN | {"wall_ns": 10_900, "mono_ns": 50_000}
    jumped = step(1, begin_ns=50_010, mono_ns=50_040, wall_ns=999_999)  # the wall clock jumped meanwhile
    write(tmp_path, "trainer", foreign, jumped)
    log = reading.read(tmp_path)
    moved = next(writer for writer in log.writers if writer.role == "trainer")
    assert moved.header["at"] == 300
    assert moved.steps["begin"].tolist() == [310]
    assert moved.steps["end"].tolist() == [340]
    assert log.uncertainty_ns == 30
    assert not log.problems


def test_an_unknown_clock_is_a_problem_and_taken_by_its_wall_time(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "harness", OURS)
    foreign = FOREIGN | {"wall_ns": 10_250, "mono_ns": 50_000}
    write(tmp_path, "trainer", foreign, step(1, mono_ns=50_040))
    log = reading.read(tmp_path)
    assert log.problems == ("the clock of host 'b' was never compared with the harness's",)
    assert (log.writers[1].header["at"], log.writers[1].steps["end"].tolist()) == (350, [390])
    assert log.uncertainty_ns == 0


def test_a_host_has_the_offset_that_was_measured_when_its_log_begins(tmp_path: pathlib.Path) -> None:
    """Its wall clock is right at first and 50 ns ahead later; how well that is known changes, too."""
    first, later = compared(mono_ns=100), compared(offset_ns=50, uncertainty_ns=7, mono_ns=200)
    write(tmp_path, "harness", OURS | {"wall_ns": 1000, "mono_ns": 0}, first, later)
    foreign = FOREIGN | {"mono_ns": 9}
    for name, wall_ns, at in (("early", 1145, 145), ("late", 1240, 190)):
        write(tmp_path, name, foreign | {"wall_ns": wall_ns})
        log = reading.read(tmp_path)
        assert next(writer.header["at"] for writer in log.writers if writer.name == name) == at
        assert log.uncertainty_ns == (3 if name == "early" else 7), "the worst of all"


@pytest.mark.parametrize(("off_ns", "lost_ns"), [(7200 * 10**9, 0), (-7200 * 10**9, 0), (10**6, -(10**6))])
def test_a_wall_clock_that_jumped_earlier_moves_nothing(tmp_path: pathlib.Path, off_ns: int, lost_ns: int) -> None:
    """Compared with ours when the node came: its monotonic clock tells the rest. What may be drift is believed."""
    write(tmp_path, "harness", OURS | {"wall_ns": 1000, "mono_ns": 0}, compared(mono_ns=100))
    minute = 60 * 10**9
    write(tmp_path, "first", FOREIGN | {"mono_ns": 9, "wall_ns": 1110})
    write(tmp_path, "again", FOREIGN | {"mono_ns": 9 + minute, "wall_ns": 1110 + minute + off_ns})
    write(tmp_path, "elsewhere", FOREIGN | {"clock": "third", "mono_ns": 5, "wall_ns": 1110 + minute})
    begun = {writer.name: writer.header["at"] for writer in reading.read(tmp_path).writers}
    assert begun == {"harness": 0, "first": 110, "again": 110 + minute - lost_ns, "elsewhere": 110 + minute}


@pytest.mark.parametrize("odd", [{}, {"count": None}])
def test_what_a_writer_could_not_write_is_counted(tmp_path: pathlib.Path, odd: dict[str, Any]) -> None:
    """Each line tells how many went missing before it; `odd` needs the slow reader."""
    for name, lines in (("none", [step(1, **odd)]), ("some", [step(1, dropped=2), step(2, dropped=1, **odd)])):
        writer = read_file(write(tmp_path, name, HEADER, *lines))
        assert writer.dropped == (2 if name == "some" else 0)
    assert read_file(write(tmp_path, "bare", HEADER | odd)).dropped == 0


# Lines that are numbered

NUMBERED = HEADER | {"line": 0}


def numbered(*records: dict[str, Any]) -> list[dict[str, Any]]:
    return [record | {"line": number} for number, record in enumerate([NUMBERED, *records])]


LINES = [
    {"wall_ns": at, "mono_ns": at} | line
    for at, line in enumerate(
        numbered({"event": "started"}, *map(step, range(1, 7)), {"event": "phase", "name": "a", "edge": "end"})
    )
]


def without(*absent: int) -> list[dict[str, Any]]:
    return [line for line in LINES if line["line"] not in absent]


@pytest.mark.parametrize("odd", [{}, {"text": "\ud800"}])
@pytest.mark.parametrize(
    ("lines", "gaps"),
    [
        (LINES, []),
        (LINES[:-3], []),  # a kill takes the end
        (LINES[:1] + LINES[:0:-1], []),  # a shipper may exchange lines
        ([*LINES, LINES[4], LINES[4], LINES[1]], []),  # or ship them twice
        (without(4), [(1, 2, 4)]),
        (without(1, 2), [(2, None, 2)]),
        (without(7), [(1, 5, None)]),
        (without(3, 5, 6), [(1, 1, 3), (2, 3, 6)]),
        (without(4)[:1] + without(4)[:0:-1], [(1, 2, 4)]),
        ([*LINES[:8], LINES[8] | {"line": 2**53}], [(2**53 - 8, 6, None)]),
        ([LINES[0], *({"event": "x", "line": 2**53, "line_fork": fork} for fork in range(2000))], 2000 * 2**53),
    ],
)
def test_missing_numbers_are_gaps(
    tmp_path: pathlib.Path, lines: list[dict[str, Any]], gaps: list[Any] | int, odd: dict[str, Any]
) -> None:
    """Where they are, by the steps around them. `odd` needs the slow reader."""
    writer = read_file(write(tmp_path, "w", *(line | (odd if "event" in line else {}) for line in lines)))
    assert (writer.problems, writer.dropped) == ([], 0)
    told = [(gap.lines, gap.after, gap.before) for gap in writer.gaps]
    assert gaps == (told if isinstance(gaps, list) else sum(lines for lines, _, _ in told))
    assert not any({"line", "line_fork"} & event.keys() for event in writer.events), "the judge has no use for them"


def test_of_a_log_without_numbers_nothing_is_asked(tmp_path: pathlib.Path) -> None:
    """Also if its trainer happens to tell a field of that name."""
    for name, lines in (("bare", [HEADER, step(1), step(3)]), ("own", [HEADER, step(1, line=5), step(2, line=5)])):
        writer = read_file(write(tmp_path, name, *lines))
        assert not writer.numbered and (writer.gaps, writer.problems) == ((), [])


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (LINES[4] | {"step": 9}, "w: two different lines have the number 4"),
        (step(7), "w: 1 line without a number, though its first line has one"),
    ],
)
def test_contradicting_numbers_are_a_problem(tmp_path: pathlib.Path, more: dict[str, Any], problem: str) -> None:
    write(tmp_path, "w", *LINES, more)
    assert problem in reading.read(tmp_path).problems


@pytest.mark.parametrize(("dropped", "lost"), [(0, 0), (1, 0), (2, 2), (3, 2)])
def test_a_full_disk_explains_the_gap_that_it_left(tmp_path: pathlib.Path, dropped: int, lost: int) -> None:
    """If it says as much; and what nothing shows was not lost."""
    lines = [line | ({"dropped": dropped} if line["line"] == 5 else {}) for line in without(3, 4)]
    writer = read_file(write(tmp_path, "w", *lines))
    assert writer.dropped == lost and [gap.full_disk for gap in writer.gaps] == [bool(lost)]
    assert read_file(write(tmp_path, "whole", *LINES[:-1], LINES[-1] | {"dropped": 2})).dropped == 0


@pytest.mark.parametrize("number", [-1, 2**53 + 1, 2**63, 1.5, "1", True, [1]])
@pytest.mark.parametrize("place", [1, 3])
def test_a_number_that_is_none_is_refused(tmp_path: pathlib.Path, number: object, place: int) -> None:
    lines = [line | ({"line": number} if line["line"] == place else {}) for line in LINES]
    with pytest.raises(EventLogError, match=rf"w.jsonl:{place + 1}: .*line must be an integer from 0 to {2**53}"):
        read_file(write(tmp_path, "w", *lines))


def test_many_gaps_are_told_as_few(tmp_path: pathlib.Path) -> None:
    """The last one stands for all that follow."""
    lines = numbered(*map(step, range(1, 1001)))
    writer = read_file(write(tmp_path, "w", *(line for line in lines if line["line"] % 2 == 0)))
    assert len(writer.gaps) == line_numbers.GAPS_MAX and sum(gap.lines for gap in writer.gaps) == 500
    last = writer.gaps[-1]
    assert (last.after, last.before, last.lines) == (126, 1000, 500 - line_numbers.GAPS_MAX + 1)


def test_lines_that_the_harness_lacks_are_a_problem(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "harness", OURS | {"line": 0}, {"event": "b", "line": 2})
    assert "the harness's log lacks 1 line" in reading.read(tmp_path).problems


def test_a_large_log_is_read_on_all_cores_alike(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = simulate(Job(nodes=2, steps=10), seed=1).write(tmp_path) / "events"
    (events / "void.jsonl").touch()
    alone = reading.read(events)
    monkeypatch.setattr(reading, "PARALLEL_BYTES_MIN", sum(path.stat().st_size for path in events.iterdir()))
    together = reading.read(events)
    assert together.writers[0].events == alone.writers[0].events
    assert [source.file for source in together.wordless] == [source.file for source in alone.wordless] == ["void.jsonl"]
    assert [(writer.name, writer.start) for writer in together.writers] == [(w.name, w.start) for w in alone.writers]
    for name, column in alone.steps.items():
        np.testing.assert_array_equal(together.steps[name], column)


def test_without_processes_it_is_read_alone(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        """A pool whose processes are gone after the first file."""

        def __init__(self, **how: object) -> None:
            pass

        def __enter__(self) -> "Broken":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def map(self, act: Any, paths: list[pathlib.Path], chunksize: int) -> Iterator[Any]:
            yield act(paths[0])
            raise BrokenProcessPool("out of memory")

    events = simulate(Job(nodes=2, steps=10), seed=1).write(tmp_path) / "events"
    alone = reading.read(events)
    monkeypatch.setattr(reading, "PARALLEL_BYTES_MIN", 0)
    monkeypatch.setattr(reading, "ProcessPoolExecutor", Broken)
    assert [w.name for w in reading.read(events).writers] == [w.name for w in alone.writers]


KILLED = """
import multiprocessing, pathlib, sys, time
from harness.log import files, reading
if __name__ == "__main__":
    reading.PARALLEL_BYTES_MIN = 0
    events = reading._read_files(list(files.find(pathlib.Path(sys.argv[1]))))
    next(events)
    print(*(each.pid for each in multiprocessing.active_children()), flush=True)
    time.sleep(600)
"""


def test_who_reads_for_a_killed_process_ends_with_it(tmp_path: pathlib.Path) -> None:
    simulate(Job(nodes=2, steps=10), seed=1).write(tmp_path)
    (tmp_path / "killed.py").write_text(KILLED)
    reader = subprocess.Popen(
        [sys.executable, tmp_path / "killed.py", tmp_path / "events"], stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    children = [int(pid) for pid in reader.stdout.readline().split()]
    assert children
    reader.kill()
    reader.communicate()
    waiting.until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in children), "the end of its children")


def test_who_did_no_step_does_not_hold_the_steps_of_the_others(tmp_path: pathlib.Path) -> None:
    """The table of all steps is let go column by column; a view of it, even an empty one, would keep it."""
    log = reading.read(simulate(Job(nodes=2, steps=10), seed=1).write(tmp_path) / "events")
    for writer in log.writers:
        held = {column.base is not None for column in writer.steps.values()}
        assert held == {writer.role == "trainer"}


@pytest.mark.parametrize("block_bytes", [files.BLOCK_BYTES, 100])
def test_what_no_line_tells_takes_no_memory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    """What one line tells is untold by the others, in the same file and in another one."""
    monkeypatch.setattr(files, "BLOCK_BYTES", block_bytes)
    write(tmp_path, "one", HEADER | {"rank": 1}, step(1))
    write(tmp_path, "two", HEADER, step(1), step(2, lr=0.1, epoch=3, weights="a", samples=[[7, 2]]), step(3))
    write(tmp_path, "void", HEADER)
    log = reading.read(tmp_path)
    for place, steps in ((1, log.steps), (0, next(writer.steps for writer in log.writers if writer.name == "two"))):
        assert np.flatnonzero(reading.is_told(steps["lr"])).tolist() == [place + 1]
        assert steps["data_pass"].tolist() == [*[-1] * (place + 1), 3, -1]
        assert np.flatnonzero(steps["weights"]).tolist() == [place + 1]
        assert steps["samples"].tolist() == [*[-1] * (place + 1), 0, -1]
        assert "digest" not in steps and steps["digest"].strides == (0,) and not steps["digest"].any()
    kept = timeline.build(log).steps
    assert kept.digest.strides == kept.applied.strides == (0,) and kept.applied.all() and len(kept.digest) == 4
