"""A run as a trace: it is what Chrome's trace format asks for, and its times are those of the timeline.

Perfetto's own trace processor is a program that has to be downloaded; so the rules of the format are checked here: the
keys that each kind of event needs, slices that nest within their track, asynchronous pairs, and named tracks.
"""

import io
import json
import pathlib
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from command_line import chaos
from docs.test_metrics_doc import example
from judging import Bend, bent
from mutants.bent import JOB, KILL, stuck
from simulator import Outage

from harness.monitoring import perfetto
from harness.timeline import timeline
from harness.timeline.timeline import Timeline

NEEDED = {
    "M": {"name", "args"},
    "X": {"name", "cat", "ts", "dur", "args"},
    "b": {"name", "cat", "ts", "id", "args"},
    "e": {"name", "cat", "ts", "id"},
    "C": {"name", "ts", "args"},
}


def traced(run: Timeline) -> list[dict[str, Any]]:
    file = io.StringIO()
    perfetto.write(run, file)
    trace = json.loads(file.getvalue(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert set(trace) == {"displayTimeUnit", "traceEvents"}
    return list(trace["traceEvents"])


def problems(events: list[dict[str, Any]]) -> list[str]:
    """What breaks the rules of the format."""
    found, tracks, pairs = [], defaultdict(list), defaultdict(list)
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    for event in events:
        kind = event.get("ph")
        if kind not in NEEDED or not NEEDED[kind] | {"ph", "pid", "tid"} <= event.keys():
            found.append(f"keys: {event}")
        elif kind != "M" and (not isinstance(event["ts"], (int, float)) or event["ts"] < 0):
            found.append(f"time: {event}")
        if kind == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
            found += [f"negative: {event}"] if event["dur"] < 0 else []
        if kind in ("b", "e"):
            pairs[event["cat"], event["id"]].append(kind)
    found += [f"unnamed track {track}" for track in tracks if track not in named]
    found += [f"pair {key}: {kinds}" for key, kinds in pairs.items() if kinds != ["b", "e"]]
    for track, slices in tracks.items():
        open_until: list[float] = []
        for begin, minus in sorted(slices):
            while open_until and open_until[-1] <= begin + 1e-3:
                open_until.pop()
            if open_until and begin - minus > open_until[-1] + 1e-3:
                found.append(f"track {track}: a slice of {begin} µs outlasts the one around it")
            open_until.append(begin - minus)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    folder = tmp_path_factory.mktemp("example")
    example(folder / "events")
    return timeline.load(folder)


def of(events: list[dict[str, Any]], kind: str, category: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == kind and event.get("cat") == category]


def test_the_example_of_the_docs(run: Timeline) -> None:
    events = traced(run)
    assert not problems(events)
    steps = of(events, "X", "step")
    assert len(steps) == len(run.steps) == 16
    told = {(event["name"], event["tid"], event["ts"], event["dur"]) for event in steps}
    assert told >= {("step 1", 1, 14e6, 2e6), ("step 6", 2, 36e6, 2e6)}
    lost = [event["name"] for event in steps if not event["args"]["survives"]]
    assert sorted(lost) == ["step 3", "step 3", "step 4", "step 4"], "those that were rolled back"
    (recovery,) = of(events, "X", "recovery")
    assert (recovery["ts"], recovery["dur"]) == (22e6, 14e6) and recovery["args"]["faults"] == "kill"
    assert sum(each["dur"] for each in of(events, "X", "recovery phase")) == recovery["dur"], "no gap, no overlap"
    (fault,) = of(events, "b", "fault")
    assert fault["name"] == "rank_kill kill" and fault["ts"] == 23e6
    (checkpoint,) = of(events, "b", "checkpoint")
    assert checkpoint["name"] == "checkpoint 2" and checkpoint["ts"] == 18.1e6
    assert len(of(events, "X", "worker")) == 4
    assert [event["args"]["loss"] for event in events if event["ph"] == "C"][:2] == [4.9, 4.8]
    step = steps[0]  # broken traces are seen
    assert problems([*events, step | {"ts": step["ts"] + step["dur"] / 2}])
    assert problems([*events, step | {"tid": 99}])
    assert problems([event for event in events if event["ph"] != "e"])


def test_many_steps_share_slices(run: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "SLICES_MAX", 8)
    events = traced(run)
    assert not problems(events)
    steps = of(events, "X", "step")
    assert len(steps) == 8 and "steps 1–2" in {event["name"] for event in steps}
    whole = sum(event["args"]["data_ms"] for event in steps)
    assert whole == pytest.approx(float(run.steps.data_ns.sum()) / 1e6), "nothing is lost"


@pytest.mark.parametrize(
    ("outages", "bends"), [([], []), (KILL, []), ([*KILL, Outage(20, "node")], []), (KILL, [stuck])]
)
def test_any_run_is_a_proper_trace(outages: list[Outage], bends: list[Bend]) -> None:
    assert not problems(traced(bent(JOB, *bends, outages=outages)))


def test_what_a_trainer_says_cannot_break_the_file(run: Timeline) -> None:
    evil = 'x"\n\u202e</script>\x00' * 50
    processes = [replace(each, node=evil, exit_reason=evil) for each in run.processes]
    steps = replace(run.steps, loss=run.steps.loss * float("nan"))
    events = traced(replace(run, processes=processes, steps=steps))
    assert not problems(events)
    assert of(events, "X", "step")[0]["args"]["loss"] == "nan"
    assert not any("\u202e" in event["name"] or "\n" in event["name"] for event in events)


def test_the_command_writes_the_file(tmp_path: pathlib.Path) -> None:
    example_dir = tmp_path / "reports" / "example-1"
    example_dir.mkdir(parents=True)
    example(example_dir / "events")
    target = tmp_path / "trace.json"
    words = ["export", str(example_dir), "--perfetto", str(target), "--reports", str(tmp_path / "reports")]
    done = chaos(*words)
    assert done.exit_code == 0, (done.output, done.exception)
    assert not problems(json.loads(target.read_text())["traceEvents"])
