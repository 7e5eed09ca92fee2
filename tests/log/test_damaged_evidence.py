"""What a trainer or its node may leave in an event log: one clear answer with file and line, soon, live and later."""

import functools
import json
import os
import pathlib
import socket
import stat
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from event_files import read_log
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from simulator import Job, Outage, simulate

from harness.errors import EventLogError, FaultError
from harness.judge.score import Evidence, judge
from harness.log import checked_lines, event_log, files, reading, untrusted_files, vocabulary
from harness.log.checked_lines import json_schema
from harness.log.event_log import Tail
from harness.report.run_report import from_scorecard
from harness.run.live_progress import LiveProgress
from harness.timeline import timeline

HEADER = {"schema": 1, "role": "trainer", "host": "a", "clock": "boot", "rank": 0, "world_size": 1, "wall_ns": 1}
STEP = {"event": "step", "step": 1, "begin_ns": 5, "loss": 1.5}
PLAN: dict[str, Any] = {"workload": {"nodes": 1, "ranks_per_node": 1, "steps": 3}, "faults": []}
DEEP = "[" * 100_000


def write(path: pathlib.Path, *lines: dict[str, Any] | bytes) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    stamped = [line if isinstance(line, bytes) else json.dumps({"mono_ns": 9} | line).encode() for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in stamped))
    return path


def refused(folder: pathlib.Path) -> str:
    """What each reader of finished runs says, which must be the same."""
    with pytest.raises(EventLogError) as judged:
        reading.read(folder)
    with pytest.raises(EventLogError) as listed:
        read_log(folder)
    assert str(judged.value) == str(listed.value)
    assert str(judged.value).isprintable()
    return str(judged.value).removeprefix(f"{folder}/")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (STEP | {"step": 10**30}, "step event: step must be an integer from 0 to 1000000000, not 1" + "0" * 30),
        (STEP | {"step": -1}, "step event: step must be an integer from 0 to 1000000000, not -1"),
        (STEP | {"step": 2.0}, "step event: step must be an integer from 0 to 1000000000, not 2.0"),
        (STEP | {"step": True}, "step event: step must be an integer from 0 to 1000000000, not True"),
        (STEP | {"loss": "high"}, 'step event: loss must be a number, "nan", "inf" or "-inf", not "high"'),
        (STEP | {"first": 2**63}, "step event: first must be an integer from -1 to"),
        (STEP | {"digest": 2**64}, "step event: digest must be a text of at most 1000 characters or an integer"),
        (STEP | {"begin_ns": -7}, "step event: begin_ns must be an integer from 0 to"),
        (STEP | {"mono_ns": None}, "step event: mono_ns must be an integer"),
        (STEP | {"mono_ns": float("nan")}, "step event: mono_ns must be an integer"),
        (STEP | {"mono_ns": float("inf")}, "step event: mono_ns must be an integer"),
        ({"event": "rendezvous", "world_size": 10**9}, "world_size must be an integer from 0 to 131072, not 10000"),
        ({"event": "restored", "fallback": [{"source": 7}]}, "restored event: fallback.0.source must be a text"),
        ({"event": "phase"}, "phase event: name is missing"),
        ({"event": "phase", "name": "drain", "edge": "\x1b[2J"}, r'edge must be "begin" or "end", not "\x1b[2J"'),
        ({"event": 7}, "event: event must be a text of at most 1000 characters, not 7"),
        ({}, "event: event is missing"),
        (b'{"event":"started"}', "started event: mono_ns is missing"),
        (b"[1]", "an event must be a JSON object"),
        (b"", "not a complete JSON line"),
        (b"\xff\xfe", "not a complete JSON line"),
        (b"\0" * 10, "not a complete JSON line"),
        (b'{"event":"x","mono_ns":1} {}', "not a complete JSON line"),
        (b'{"event":"x","mono_ns":' + b"9" * 5000 + b"}", "not a complete JSON line"),
        (f'{{"event":"started","mono_ns":1,"x":{DEEP}'.encode(), "nested deeper than 32"),
        (b'{"event":"started","mono_ns":1,"x":' + b"[" * 40 + b"]" * 40 + b"}", "nested deeper than 32"),
        (b"x" * (files.LINE_BYTES_MAX + 1), f"a line of over {files.LINE_BYTES_MAX} bytes"),
    ],
    ids=str,
)
def test_a_damaged_line_is_named(tmp_path: pathlib.Path, line: dict[str, Any] | bytes, problem: str) -> None:
    write(tmp_path / "w.jsonl", HEADER, STEP, line, STEP | {"step": 2})
    tail = Tail(tmp_path)
    assert [event["step"] for _, event in tail.poll()] == [1, 2], "the run goes on"
    assert (tail.odd, len(tail.notes)) == (1, 1)
    assert tail.notes[0].startswith(f"{tmp_path}/w.jsonl:3: ") and problem in tail.notes[0]
    said = refused(tmp_path)
    assert said.startswith("w.jsonl:3: ") and problem in said


HARNESS = HEADER | {"role": "harness"}


def plan(**told: Any) -> dict[str, Any]:
    return {"event": "plan", "plan": PLAN | told}


FAULT = {"event": "fault.injected", "fault": "f"}
MAY = 'a text like "kill", "stop", "spoil", "drift", "skew", "diverge", "move", "leak"'


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        (plan(workload={"nodes": 10**9}), "plan.workload.nodes must be an integer from 0 to 131072"),
        (plan(workload={"nodes": 10**5, "ranks_per_node": 1000}), "a job of 100000000 ranks"),
        (plan(workload=[]), "plan.workload must be an object, not []"),
        (plan(faults=[{"id": 5}]), "plan.faults.0.id must be a text of at most 1000 characters, not 5"),
        (plan(seed="x"), "plan.seed must be an integer"),
        (plan(expect=["recovery_time"]), "plan.expect must be an object"),
        (FAULT | {"may": ["kill", 5]}, f"may.1 must be {MAY}, not 5"),
        (FAULT | {"may": "kill"}, 'may must be a list of texts, not "kill"'),
        (FAULT | {"targets": [{"node": "a"}, 5]}, "targets.1 must be an object, not 5"),
        (FAULT | {"targets": [{}] * (2**17 + 1)}, "targets must be a list of at most 131072 objects, not [{}, {}, "),
        ({"event": "node.allocated", "node": "a", "gpus": 10**9}, "gpus must be an integer from 0 to 1024"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_damaged_line_of_the_harness(tmp_path: pathlib.Path, told: dict[str, Any], problem: str) -> None:
    write(tmp_path / "harness.jsonl", HARNESS, told)
    assert f"harness.jsonl:2: {told['event']} event: {problem}" in refused(tmp_path)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ({"schema": 2}, "event schema 2; this version reads schema 1"),
        ({"schema": True}, "event schema True"),
        ({"rank": "zero"}, 'header: rank must be an integer from 0 to 131071, not "zero"'),
        ({"world_size": 10**9}, "header: world_size must be an integer from 0 to 131072, not 1000000000"),
        ({"pid": None}, "header: pid must be an integer from 0 to 2147483648, not None"),
        ({"wall_ns": None}, "header: wall_ns must be an integer"),
        ({"host": ["a"]}, "header: host must be a text"),
        ({"tells": "steps"}, 'header: tells must be a list of texts, not "steps"'),
    ],
)
def test_a_damaged_header(tmp_path: pathlib.Path, header: dict[str, Any], problem: str) -> None:
    write(tmp_path / "w.jsonl", HEADER | header, STEP)
    tail = Tail(tmp_path)
    assert (tail.poll(), tail.poll(), tail.odd) == ([], [], 1), "what no header explains is not followed"
    assert f"w.jsonl:1: {problem}" in refused(tmp_path)


def _socket(path: pathlib.Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(path.parent)  # the path of a socket must be short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


def _device(path: pathlib.Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root: devices cannot be made")
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero


def _link(path: pathlib.Path) -> None:
    elsewhere = next(each for each in path.parents if each.name == "events").parent / "elsewhere.jsonl"
    path.symlink_to(write(elsewhere, HEADER, STEP))


def _huge(path: pathlib.Path) -> None:
    with path.open("wb") as file:
        file.truncate(files.FILE_BYTES_MAX + 1)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (os.mkfifo, "a FIFO"),
        (_socket, "a socket"),
        (_device, "a device"),
        (_link, "a symbolic link"),
        (pathlib.Path.mkdir, "a folder"),
        (_huge, "an event file may have at most"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_only_regular_files_are_opened(
    tmp_path: pathlib.Path, make: Callable[[pathlib.Path], None], problem: str, nested: bool
) -> None:
    folder = tmp_path / "events" / ("node0" if nested else "")
    folder.mkdir(parents=True)
    make(folder / "w.jsonl")
    write(tmp_path / "events" / "harness.jsonl", HARNESS, {"event": "plan", "plan": PLAN})
    tail = Tail(tmp_path / "events")
    assert [event["event"] for _, event in [*tail.poll(), *tail.poll()]] == ["plan"]
    assert tail.odd == 1 and problem in tail.notes[0]
    assert problem in refused(tmp_path / "events")


def test_a_link_in_place_of_a_nodes_folder_is_not_followed(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "elsewhere" / "w.jsonl", HEADER, STEP)
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "node0").symlink_to(tmp_path / "elsewhere")
    tail = Tail(tmp_path / "events")
    assert (tail.poll(), tail.odd) == ([], 1)
    assert "node0: a symbolic link" in refused(tmp_path / "events")


def test_names_of_files_are_shown_without_what_a_terminal_acts_upon(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "\x1b[2J\n.jsonl", HEADER, b"{")
    assert refused(tmp_path).startswith(r"\x1b[2J\x0a.jsonl:2: ")


def test_escape_sequences_and_lone_surrogates_become_visible_text(tmp_path: pathlib.Path) -> None:
    write(
        tmp_path / "w.jsonl",
        HEADER | {"host": "\x1b]0;x\x07"},
        {"event": "exiting", "reason": "\x1b[31m\ud800é\n\u202e"},
    )
    [log] = read_log(tmp_path)
    assert log.header["host"] == r"\x1b]0;x\x07"
    assert log.events[0]["reason"] == "\\x1b[31m\\ud800é\n\\u202e"
    assert reading.read(tmp_path).writers[0].events[0]["reason"] == log.events[0]["reason"]


def test_of_a_key_that_comes_twice_the_last_one_counts(tmp_path: pathlib.Path) -> None:
    twice = b'{"event":"started","event":"step","step":1,"step":2,"mono_ns":5}'
    write(tmp_path / "w.jsonl", HEADER, twice)
    assert read_log(tmp_path)[0].events[0]["step"] == 2
    assert reading.read(tmp_path).steps["step"].tolist() == [2]


def test_what_newer_trainers_tell_is_ignored_and_not_kept(tmp_path: pathlib.Path) -> None:
    new = {"event": "gpu.temp", "celsius": [50, None], "node": {}}
    started = {"event": "started", "step": "?"}
    write(tmp_path / "w.jsonl", HEADER | {"colour": 7}, *[new] * 5000, STEP | {"colour": {}}, started, new)
    log = reading.read(tmp_path)
    assert [event["event"] for event in log.writers[0].events] == ["started", "gpu.temp"], "the last sign of life stays"
    assert log.steps["step"].tolist() == [1]


NAMED = "trainer-node0.1-0-ab.jsonl"


@pytest.mark.parametrize(
    ("place", "header", "problem"),
    [
        ("harness.jsonl", {"role": "trainer"}, 'role "trainer" in the harness\'s own file'),
        ("node0/x.jsonl", {"role": "harness"}, 'forged evidence: a file of node "node0" says it is the harness\'s'),
        ("node0/harness.jsonl", {"role": "harness"}, "forged evidence"),
        ("node0/x.jsonl", {"node": "node1"}, 'node is "node1" in the header, but "node0" by its folder'),
        (NAMED, {"node": "node1"}, 'node is "node1" in the header, but "node0" by its file name'),
        (NAMED, {"incarnation": 2}, "incarnation is 2 in the header, but 1 by its file name"),
        (NAMED, {"role": "agent"}, 'role is "agent" in the header, but "trainer" by its file name'),
    ],
)
def test_a_header_that_contradicts_its_place_is_refused(
    tmp_path: pathlib.Path, place: str, header: dict[str, Any], problem: str
) -> None:
    write(tmp_path / place, HEADER | header, {"event": "plan", "plan": PLAN})
    tail = Tail(tmp_path)
    assert (tail.poll(), tail.odd) == ([], 1)
    assert f"{place}:1: {problem}" in refused(tmp_path)


def test_only_the_file_of_that_name_is_the_harnesss(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "a.jsonl", HARNESS, {"event": "plan", "plan": PLAN})
    log = reading.read(tmp_path)
    assert log.harness is None and log.problems == ("the harness wrote nothing into this log",)
    write(tmp_path / "harness.jsonl", HARNESS, {"event": "plan", "plan": PLAN})
    log = reading.read(tmp_path)
    assert log.harness is not None and log.harness.name == "harness"
    assert log.problems == ("2 harnesses wrote into this log",)


@pytest.mark.parametrize("tells_node", [True, False])
def test_both_layouts_are_judged_the_same(tmp_path: pathlib.Path, tells_node: bool) -> None:
    history = simulate(Job(nodes=2, steps=24, every=6), [Outage(9, "rank", victim=1, torn=True)], 1)
    flat = history.write(tmp_path / "flat")
    for path in (flat / "events").glob("*.jsonl"):
        header, *lines = path.read_bytes().splitlines(keepends=True)
        told = json.loads(header)
        folder = tmp_path / "nested" / "events" / told.get("node", "")
        folder.mkdir(parents=True, exist_ok=True)
        if not tells_node:
            told.pop("node", None)
        (folder / path.name).write_bytes(json.dumps(told).encode() + b"\n" + b"".join(lines))
    reports = [
        from_scorecard(judge(Evidence(timeline.load(tmp_path / name), None), "run")).to_json()
        for name in ("flat", "nested")
    ]
    assert reports[0] == reports[1]


def test_times_years_away_are_refused(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "harness.jsonl", HARNESS, {"event": "plan", "plan": PLAN})
    write(tmp_path / "w.jsonl", HEADER, STEP | {"mono_ns": 2**58})
    with pytest.raises(EventLogError, match=r"w: events \+3336 days off the harness's clock; at most 366"):
        reading.read(tmp_path)


def test_the_live_reader_takes_a_flood_in_parts(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "POLL_BYTES_MAX", 1)
    write(tmp_path / "a.jsonl", HEADER, STEP)
    write(tmp_path / "b.jsonl", HEADER | {"rank": 1}, STEP)
    tail = Tail(tmp_path)
    assert [[header["rank"] for header, _ in tail.poll()] for _ in range(3)] == [[0], [1], []], "each in its turn"


def test_the_live_reader_fills_in_what_a_bare_trainer_does_not_tell(tmp_path: pathlib.Path) -> None:
    bare = {"schema": 1, "role": "trainer", "wall_ns": 1}
    told: list[dict[str, Any]] = [{"event": "started"}, {"event": "rendezvous"}, {"event": "restored"}, STEP]
    write(tmp_path / "node7" / "w.jsonl", bare, *told)
    progress = LiveProgress()
    for header, event in Tail(tmp_path).poll():
        progress.absorb(header, event, 1)
    assert (progress.workers[0].node, progress.workers[0].last_step) == ("node7", 1)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@functools.cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json_schema() | {"anyOf": [{"$ref": f"#/$defs/{name}"}]})


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(checked_lines.TYPES)), st.data())
def test_the_json_schema_and_the_readers_agree(name: str, data: st.DataObject) -> None:
    """On any event with any values. Integers of JSON are those without a fraction; ours are written without a dot."""
    declared = [field.name for field in checked_lines.FIELDS[name] if field.name != "event"]
    told = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(declared, VALUES | st.integers(0, 9))))
    record = {"event": name, "mono_ns": 5} | told
    by_schema = _validator(name).is_valid(json.loads(json.dumps(record)))
    try:
        msgspec.convert(record, checked_lines.TYPES[name])
        by_reader = True
    except msgspec.ValidationError:
        by_reader = False
    if "." not in json.dumps(record) and "e" not in json.dumps(list(told.values())):
        assert by_schema == by_reader


def _value(field: vocabulary.Field) -> st.SearchStrategy[Any]:
    text = st.text(max_size=min(field.most or 20, 20))
    kinds: dict[str, st.SearchStrategy[Any]] = {
        vocabulary.INTEGER: st.integers(field.least, field.most),
        vocabulary.NUMBER: st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(vocabulary.NOT_FINITE),
        vocabulary.SHARE: st.floats(0, 1),
        vocabulary.TEXT: text,
        vocabulary.FLAG: st.booleans(),
        vocabulary.LABEL: text | st.integers(-(2**63), 2**63 - 1),
        vocabulary.TEXTS: st.lists(text, max_size=3),
        vocabulary.RUNS: st.lists(
            st.tuples(st.integers(0, 9), st.integers(1, 9)).map(list)
            | st.tuples(st.integers(9, 99), st.integers(1, 9), st.integers(-1, 9)).map(list),
            max_size=3,
        ),
    }
    if field.closed:
        return st.sampled_from(field.values)
    if field.kind in (vocabulary.OBJECT, vocabulary.OBJECTS):
        one = _fields(field.fields)
        return one if field.kind == vocabulary.OBJECT else st.lists(one, max_size=2)
    return kinds[field.kind]


def _fields(fields: Sequence[vocabulary.Field]) -> st.SearchStrategy[Any]:
    told = {field.name: _value(field) for field in fields if not field.optional}
    return st.fixed_dictionaries(told, optional={field.name: _value(field) for field in fields if field.optional})


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.sampled_from(vocabulary.EVENTS), st.data())
def test_what_is_declared_is_read_as_it_was_written(event: vocabulary.Event, data: st.DataObject) -> None:
    record = {"event": event.name} | data.draw(_fields([*checked_lines.TIMES, *event.fields]))
    assert msgspec.to_builtins(msgspec.convert(record, checked_lines.TYPES[event.name])) == record
    line = json.dumps(record).encode()
    plain = b"\\" not in line and b"\x7f" not in line  # nothing that is made visible
    if event.name != "plan" and plain:
        assert checked_lines.event(checked_lines.parse(line), event.roles[0]) == record


def test_a_log_is_attached_whole_and_nothing_else_with_it(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "events" / "harness.jsonl", HARNESS)
    write(tmp_path / "events" / "node0" / "w.jsonl", HEADER)
    files.attach(tmp_path / "events", tmp_path / "run" / "fault-free" / "events")
    attached = tmp_path / "run" / "fault-free" / "events"
    assert [source.path.relative_to(attached) for source in files.find(attached)] == [
        pathlib.Path("harness.jsonl"),
        pathlib.Path("node0/w.jsonl"),
    ]
    assert (attached / "node0" / "w.jsonl").stat().st_nlink == 1
    (tmp_path / "events" / "x.jsonl").symlink_to("/etc/hostname")
    with pytest.raises(EventLogError, match="a symbolic link"):
        files.attach(tmp_path / "events", tmp_path / "again")


SECRET = "only for root"


@pytest.fixture
def run(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text(SECRET)
    (tmp_path / "run" / "job").mkdir(parents=True)
    return tmp_path / "run"


PLANTS: dict[str, Callable[[pathlib.Path], object]] = {
    "a link": lambda place: place.symlink_to("../../outside/secret"),
    "an absolute link": lambda place: place.symlink_to(place.parents[2] / "outside" / "secret"),
    "a pipe": lambda place: os.mkfifo(place),
    "a folder": lambda place: place.mkdir(),
    "a device": lambda place: place.symlink_to("/dev/zero"),
}
USES: dict[str, Callable[[pathlib.Path], Any]] = {
    "read": lambda run: untrusted_files.read(run, "job/file"),
    "tail": lambda run: untrusted_files.tail(run, "job/file"),
    "write": lambda run: untrusted_files.open_file(run, "job/file", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    "copy": lambda run: untrusted_files.copy_out(run, "job/file", run / "copy"),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_no_plain_file_is_left_alone(run: pathlib.Path, plant: str, use: str) -> None:
    PLANTS[plant](run / "job" / "file")
    with pytest.raises(FaultError, match="left alone"):
        USES[use](run)
    assert (run.parent / "outside" / "secret").read_text() == SECRET


@pytest.mark.parametrize("use", USES)
def test_a_folder_that_is_a_link_is_left_alone(run: pathlib.Path, use: str) -> None:
    (run / "job").rmdir()
    (run.parent / "outside" / "file").write_text(SECRET)
    (run / "job").symlink_to("../outside")
    with pytest.raises(FaultError, match="not a plain folder"):
        USES[use](run)
    assert (run.parent / "outside" / "file").read_text() == SECRET


def test_a_folder_that_is_swapped_again_and_again_leads_nowhere(run: pathlib.Path) -> None:
    """Either the file of the run is read or nothing: never the one outside."""
    (run / "job" / "file").write_text("plain")
    (run.parent / "outside" / "file").write_text(SECRET)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            os.rename(run / "job", run / "aside")
            os.symlink("../outside", run / "job")
            os.unlink(run / "job")
            os.rename(run / "aside", run / "job")

    thread = threading.Thread(target=swap)
    thread.start()
    found = set()
    try:
        for _ in range(2000):
            try:
                found.add(untrusted_files.read(run, "job/file"))
            except (FaultError, FileNotFoundError):
                continue
    finally:
        done.set()
        thread.join()
    assert found <= {b"plain"}


def test_files_are_read_up_to_a_limit(run: pathlib.Path) -> None:
    (run / "job" / "file").write_bytes(b"x" * 100)
    assert untrusted_files.read(run, "job/file", 100) == b"x" * 100
    with pytest.raises(FaultError, match="more than 99 bytes"):
        untrusted_files.read(run, "job/file", 99)
    assert untrusted_files.tail(run, "job/file", 7) == "x" * 7


def test_a_replaced_file_is_new_and_a_link_in_its_place_is_not_followed(run: pathlib.Path) -> None:
    (run / "job" / "file").symlink_to("../../outside/secret")
    untrusted_files.replace(run, "job/file", b"ours")
    assert untrusted_files.read(run, "job/file") == b"ours"
    assert (run.parent / "outside" / "secret").read_text() == SECRET
    assert os.listdir(run / "job") == ["file"]


def test_removing_follows_no_link(run: pathlib.Path) -> None:
    (run / "job" / "deep").mkdir()
    (run / "job" / "deep" / "link").symlink_to("../../../outside", target_is_directory=True)
    (run / "job" / "link").symlink_to("../../outside", target_is_directory=True)
    untrusted_files.remove_tree(run, "job/link")
    untrusted_files.remove_tree(run, "job/deep")
    untrusted_files.remove_tree(run, "job/deep")
    assert os.listdir(run / "job") == []
    assert (run.parent / "outside" / "secret").read_text() == SECRET


def test_only_regular_files_are_listed(run: pathlib.Path) -> None:
    (run / "job" / "deep").mkdir()
    (run / "job" / "deep" / "file").write_text("x")
    (run / "job" / "link").symlink_to("../../outside", target_is_directory=True)
    os.mkfifo(run / "job" / "pipe")
    assert untrusted_files.files_below(run, "job") == ["job/deep/file"]
    assert untrusted_files.names_in(run, "job") == ["deep", "link", "pipe"]
    assert untrusted_files.files_below(run, "nothing") == untrusted_files.names_in(run, "nothing") == []


def test_a_folder_is_not_made_behind_a_link(run: pathlib.Path) -> None:
    untrusted_files.make_folder(run, "events/node0")
    assert (run / "events" / "node0").is_dir()
    (run / "logs").symlink_to("../outside", target_is_directory=True)
    with pytest.raises(FaultError, match="not a plain folder"):
        untrusted_files.make_folder(run, "logs/node0")
    assert os.listdir(run.parent / "outside") == ["secret"]


@given(st.lists(st.sampled_from(["..", "a", ".", "", "b"]), min_size=1, max_size=5).map("/".join))
def test_no_path_leaves_its_root(path: str) -> None:
    root = pathlib.Path("/nonexistent")
    if path.startswith("/") or ".." in path.split("/") or not path:
        with pytest.raises(ValueError, match="not below"):
            untrusted_files.read(root, path)
