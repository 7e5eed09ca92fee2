"""Log readers: stored files as trainers write them → events, live, and nothing hostile gets through."""

import contextlib
import json
import math
import os
import pathlib
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.log import reading
from harness.log.event_log import Tail
from harness.node.emitter import TELLS
from harness.run import trainer_output
from harness.run.trainer_output import Readings
from harness.timeline import timeline
from harness.trainers.contract import build_trainer
from harness.trainers.readers.contract import NODE_LOGS, Reader, Told, build_reader, load_reader, reader_names

STORED = pathlib.Path(__file__).parent / "readers"
LINES = r"step +(?P<step>\d+) \| loss (?P<loss>\S+) \| lr (?P<lr>\S+)"
TITAN = "out/structured_logs/training.global_rank_1.20261122-100000-ABC123.jsonl"
CASES: dict[str, tuple[dict[str, Any], str]] = {  # reader → its parameters, and where a trainer puts its file
    "torchtitan": ({"file": "{run_dir}/out/structured_logs/*.jsonl"}, TITAN),
    "megatron": ({}, "logs/node0.1.log"),
    "maxtext": ({}, "logs/node0.1.log"),
    "lines": ({"regex": LINES, "first_step": 0}, "logs/node0.1.log"),
    "huggingface": ({"file": "{run_dir}/out/checkpoint-*/trainer_state.json"}, "out/checkpoint-20/trainer_state.json"),
    "lightning": ({"file": "{run_dir}/out/**/metrics.csv"}, "out/lightning_logs/version_0/metrics.csv"),
    "tensorboard": (
        {"file": "{run_dir}/out/events.out.tfevents.*", "first_step": 0},
        "out/events.out.tfevents.17.node0",
    ),
}
STEPS = {
    "torchtitan": [1, 2, 3, 4, 5, 6],
    "megatron": [1, 2, 3, 4, 5, 6, 7, 6, 7, 8, 9, 10, 11, 12],
    "maxtext": list(range(1, 11)),
    "lines": list(range(1, 9)),
    "huggingface": [5, 10, 15, 20],
    "lightning": [5, 10, 15, 20, 25, 30, 35, 40],
    "tensorboard": [1, 2, 3, 4, 5, 6],
}


def reader(name: str) -> Reader:
    return build_reader({name: CASES[name][0]})


def stored(name: str) -> bytes:
    """The example of a reader."""
    (file,) = STORED.glob(f"{name}.*")
    return file.read_bytes()


def told(name: str) -> list[Told]:
    return list(reader(name).open().feed(stored(name)))


def steps(found: Iterable[Told]) -> list[int]:
    return [each.fields["step"] for each in found if each.event == "step"]


def test_each_reader_has_its_stored_file_and_a_placeholder_may_stand_once() -> None:
    assert set(reader_names()) == set(CASES)
    with pytest.raises(ValidationError, match="may be used only once"):
        build_reader({"megatron": "{run_dir}/{node}/{node}.log"})


@pytest.mark.parametrize("name", CASES)
def test_a_stored_file_is_understood(name: str) -> None:
    found = told(name)
    assert steps(found) == STEPS[name]
    assert load_reader(name).tells <= set(TELLS)
    assert all(math.isfinite(each.fields["loss"]) for each in found if each.event == "step")
    assert reader(name).timed == all(each.wall_ns is not None for each in found)


@pytest.mark.parametrize("name", [name for name in CASES if not load_reader(name).whole])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_it_does_not_matter_how_the_file_grows(name: str, size: int) -> None:
    data, source = stored(name), reader(name).open()
    found = [each for at in range(0, len(data), size) for each in source.feed(data[at : at + size])]
    assert found == told(name)


def test_what_each_tells_beyond_the_loss() -> None:
    titan = told("torchtitan")[2]
    assert titan.fields == {"step": 3, "loss": 9.75, "grad_norm": 1.25}
    assert (titan.rank, titan.took_ns) == (1, 100_000_000)
    assert titan.wall_ns == (1_763_800_000_000_000 + 2 * 101_000 + 100_000) * 1000
    megatron = told("megatron")
    assert megatron[0].fields["first"] == 0 and megatron[1].fields["first"] == 16 == megatron[1].fields["count"]
    assert [e.fields for e in megatron if e.event == "checkpoint.committed"] == [
        {"step": 5, "path": "/run/checkpoints"}
    ]
    assert [e.fields for e in megatron if e.event == "restored"] == [{"step": 5, "source": "/run/checkpoints"}]
    assert told("maxtext")[0].took_ns == 44_923_000_000
    assert [e.fields for e in told("huggingface") if e.event != "step"] == [{"step": 20}]
    assert [e.fields["loss"] for e in told("tensorboard")] == [4.0, 3.5, 3.0, 2.5, 2.0, 1.5]


# Hostile files


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_is_a_value_error_or_nothing(name: str, data: st.DataObject) -> None:
    content = bytearray(stored(name))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    source = reader(name).open()
    try:
        found = list(source.feed(bytes(content[: data.draw(st.integers(0, len(content)))])))
    except ValueError:
        return
    assert all(type(each.fields["step"]) is int and each.fields["step"] >= 0 for each in found)


@pytest.mark.parametrize("name", CASES)
def test_noise_is_no_step_and_is_not_kept(name: str) -> None:
    source = reader(name).open()
    for noise in (b"\0" * 2**20, os.urandom(2**18), b"[" * 2**17, b'{"step": ' * 2**14, b"9" * 2**18 + b"\n"):
        with contextlib.suppress(ValueError):
            assert not list(source.feed(noise))


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"torchtitan": "/etc/passwd"}, "must begin with {run_dir}/"),
        ({"torchtitan": "{run_dir}/../other"}, "stay below it"),
        ({"torchtitan": "{run_dir}/{steps}.jsonl"}, r"unknown placeholder \{steps\}"),
        ({"torchtitn": "{run_dir}/x"}, "unknown reader 'torchtitn'; did you mean"),
        ({"lines": {"regex": "step ("}}, "not a regular expression"),
        ({"lines": {"regex": r"loss (?P<loss>\S+)"}}, "must have a group"),
        ({"lines": {"regex": r"(?P<step>\d+)", "first": 0}}, "Extra inputs"),
        ("torchtitan", "write one reader with its file"),
        ({"lines": {"regex": "(?P<step>1)"}, "maxtext": {}}, "write one reader with its file"),
    ],
)
def test_what_is_no_reader_is_refused_in_words(written: object, message: str) -> None:
    with pytest.raises((ValidationError, ValueError), match=message):
        build_trainer({"command": ["x"], "read": written})


def test_a_trainer_with_a_reader_declares_what_it_tells() -> None:
    trainer = build_trainer({"command": ["x"], "read": {"megatron": NODE_LOGS}})
    assert trainer.declares() == load_reader("megatron").tells
    assert build_trainer(trainer.to_json()) == trainer
    assert "read" not in str(build_trainer({"command": ["x"]}).to_json())
    declared = build_trainer({"command": ["x"], "read": {"maxtext": {}}, "tells": ["steps"]}).declares()
    assert declared == frozenset({"steps"})


# Followed


def silent(*_: object, **__: object) -> None:
    """An emitter whose events nobody wants."""


def following(tmp_path: pathlib.Path, name: str) -> tuple[Readings, pathlib.Path]:
    """Who follows the file of a reader in a run of two ranks, and that file."""
    (tmp_path / "events").mkdir(parents=True)
    file = tmp_path / CASES[name][1]
    file.parent.mkdir(parents=True)
    return Readings(reader(name), tmp_path, lambda: ("node0", 1), silent, 2), file


def following_lines(tmp_path: pathlib.Path, name: str) -> tuple[Readings, pathlib.Path]:
    """As `following`, of logs of lines whose names tell a rank or a node, and their folder."""
    follower, file = following(tmp_path, "tensorboard")
    written = {"file": f"{{run_dir}}/out/{name}.log", "regex": r"step (?P<step>\d+) loss (?P<loss>[\d.]+)"}
    follower.reader = build_reader({"lines": written})
    return follower, file.parent


def read_back(tmp_path: pathlib.Path) -> list[reading.Writer]:
    found = reading.read(tmp_path / "events").writers
    return sorted(found, key=lambda writer: int(writer.name.rpartition("-")[2], 16))


@pytest.mark.parametrize("name", CASES)
def test_steps_are_seen_while_the_trainer_runs(name: str, tmp_path: pathlib.Path) -> None:
    follower, file = following(tmp_path, name)
    follower.poll(time.monotonic_ns())
    assert Tail(tmp_path / "events").poll() == []
    file.write_bytes(stored(name))
    follower.poll(time.monotonic_ns() + 2 * trainer_output.SCAN_NS)
    live = [event["step"] for _, event in Tail(tmp_path / "events").poll() if event["event"] == "step"]
    assert sorted(live) == sorted(STEPS[name])
    follower.close()
    assert not follower.notes
    writers = read_back(tmp_path)
    assert {(w.header["node"], w.header["world_size"]) for w in writers} == {("node0", 2)}
    assert all(set(w.header["tells"]) == load_reader(name).tells for w in writers)
    assert all("uncertainty_ns" in w.header for w in writers) != reader(name).timed


def test_a_trainer_that_goes_back_begins_another_life(tmp_path: pathlib.Path) -> None:
    follower, file = following(tmp_path, "megatron")
    file.write_bytes(stored("megatron"))
    follower.close()
    first, second = read_back(tmp_path)
    assert (len(first.steps["step"]), len(second.steps["step"])) == (7, 7)
    run = timeline.load(tmp_path)
    assert [process.restored_step for process in run.processes] == [None, 5]
    assert [(epoch.first, epoch.kept >= epoch.first) for epoch in run.epochs] == [(1, True), (6, True)]
    assert int(run.steps.survives.sum()) == 12 and run.reached_step == 12
    assert [event["step"] for event in run.checkpoints] == [5]
    assert run.uncertainty_ns >= trainer_output.POLL_NS
    follower, file = following(tmp_path / "no-step-twice", "megatron")
    lines = stored("megatron").decode().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if " 6/ " not in line and " 7/ " not in line))
    follower.close()
    assert [each.restored_step for each in timeline.load(tmp_path / "no-step-twice").processes] == [None, 5]


def test_files_of_several_ranks_or_nodes_are_theirs(tmp_path: pathlib.Path) -> None:
    """Two that tell the same steps by turns are two ranks, no trainer that starts again and again."""
    follower, folder = following_lines(tmp_path, "{rank}")
    for step in range(1, 6):
        for rank in range(2):
            with (folder / f"{rank}.log").open("a") as file:
                file.write(f"step {step} loss 1.5\n")
        follower.poll(time.monotonic_ns() + step * 2 * trainer_output.SCAN_NS)
    follower.close()
    found = [(writer.header["rank"], writer.steps["step"].tolist()) for writer in read_back(tmp_path)]
    assert found == [(0, [1, 2, 3, 4, 5]), (1, [1, 2, 3, 4, 5])]


def test_a_name_that_no_node_can_have_is_left_out_in_words(tmp_path: pathlib.Path) -> None:
    follower, folder = following_lines(tmp_path, "{node}")
    for node in ("n" * 250, "node1\n", "node0"):
        (folder / f"{node}.log").write_text("step 1 loss 1\n")
    told: list[tuple[str, str]] = []
    follower.emit = lambda event, path, error: told.append((event, error))
    follower.close()
    assert {writer.header["node"] for writer in read_back(tmp_path)} == {"node0"}
    assert [event for event, _ in told] == ["reader.failed"] * 2
    assert all("is not valid; allowed are" in error for _, error in told)


def test_a_file_that_is_written_anew_tells_each_step_once(tmp_path: pathlib.Path) -> None:
    follower, file = following(tmp_path, "huggingface")
    state = json.loads(stored("huggingface"))
    half = state | {"global_step": 10, "log_history": state["log_history"][:2]}
    early = file.parent.parent / "checkpoint-10" / "trainer_state.json"
    early.parent.mkdir()
    early.write_text(json.dumps(half))
    follower.poll(time.monotonic_ns())
    file.write_text('{"log_history": [')  # half written
    follower.poll(time.monotonic_ns() + 2 * trainer_output.SCAN_NS)
    file.write_text(json.dumps(state))
    follower.close()
    (writer,) = read_back(tmp_path)
    run = timeline.load(tmp_path)
    assert run.steps.step.tolist() == [5, 10, 15, 20] and writer.header["rank"] == 0
    assert [event["step"] for event in run.checkpoints] == [10, 20]


@pytest.mark.parametrize("make", [lambda file: file.symlink_to(STORED / "megatron.log"), os.mkfifo, pathlib.Path.mkdir])
def test_only_regular_files_are_read(make: Callable[[pathlib.Path], None], tmp_path: pathlib.Path) -> None:
    follower, file = following(tmp_path, "megatron")
    make(file)
    follower.poll(time.monotonic_ns())
    follower.close()
    assert not list((tmp_path / "events").iterdir())


def test_events_beyond_the_limits_are_left_out_and_noted(tmp_path: pathlib.Path) -> None:
    follower, file = following(tmp_path, "lines")
    rows = ["step 1 | loss 1 | lr 1", f"step {10**12} | loss 1 | lr 1", "step 3 | loss nan | lr 1"]
    file.write_text("\n".join([*rows, "x" * 10**6, "step 4 | loss 2 | lr 1\n"]))
    follower.close()
    run = timeline.load(tmp_path)
    assert run.steps.step.tolist()[-1] == 5 and 10**12 + 1 not in run.steps.step.tolist()
    assert any("step must be an integer" in note for note in follower.notes)


def a_link(file: pathlib.Path) -> None:
    file.unlink()
    file.symlink_to(STORED / "huggingface.json")


def behind_a_link(file: pathlib.Path) -> None:
    folder = file.parent.parent
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda file: file.write_bytes(b" " * 1001), {CASES["huggingface"][1]: "more than 1000 bytes; it is not read"}),
        (a_link, {CASES["huggingface"][1]: "not a plain file (Too many levels of symbolic links); it is left alone"}),
        (behind_a_link, dict.fromkeys(["out", CASES["huggingface"][1]], "out is not a plain folder (Not a directory)")),
    ],
)
def test_a_file_that_is_given_up_is_told_once(
    spoil: Callable[[pathlib.Path], None], why: dict[str, str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_output, "WHOLE_BYTES_MAX", 1000)
    follower, file = following(tmp_path, "huggingface")
    told: list[tuple[str, str, str]] = []
    follower.emit = lambda event, path, error: told.append((event, path, error))
    file.write_text("{}")
    follower.poll(time.monotonic_ns())
    spoil(file)
    for turn in range(1, 4):
        follower.poll(time.monotonic_ns() + turn * 2 * trainer_output.SCAN_NS)
    follower.close()
    assert {event for event, _, _ in told} == {"reader.failed"} and len(told) == len(why)
    assert all(error.startswith(why[path]) for _, path, error in told), told


def test_files_beyond_the_limits_are_told(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_output, "FILES_MAX", 2)
    monkeypatch.setattr(trainer_output, "LIVES_MAX", 1)
    follower, file = following(tmp_path, "megatron")
    told: list[dict[str, str]] = []
    follower.emit = lambda event, **fields: told.append(fields)
    for number in range(3):
        (file.parent / f"node{number}.1.log").write_bytes(stored("megatron"))
    follower.close()
    assert [each["error"] for each in told] == ["more than 2 files; the rest is not read"]
    assert {each["path"] for each in told} == {NODE_LOGS}


def test_a_line_that_is_half_written_at_the_end_is_no_failure(tmp_path: pathlib.Path) -> None:
    for name in CASES:
        run_dir = tmp_path / name
        run_dir.mkdir()
        follower, file = following(run_dir, name)
        follower.emit = lambda event, **fields: pytest.fail(f"{event} {fields}")
        file.write_bytes(stored(name)[:-7])
        follower.close()


def test_a_node_cannot_make_its_own_times_inexact(tmp_path: pathlib.Path) -> None:
    header = {"schema": 1, "role": "trainer", "host": "a", "clock": "b", "rank": 0, "uncertainty_ns": 10**15}
    file = tmp_path / "events" / "node0" / "w.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(header | {"wall_ns": 10**18, "mono_ns": 1}) + "\n")
    assert reading.read(tmp_path / "events").uncertainty_ns == 0


def records(*contents: bytes) -> bytes:
    """As TensorBoard frames them."""
    return b"".join(struct.pack("<QI", len(each), 0) + each + bytes(4) for each in contents)


SCALAR = b"\x09" + struct.pack("<d", 1.7e9) + b"\x10\x05\x2a\x0d\x0a\x0b\x0a\x04loss\x15" + struct.pack("<f", 1.0)


def test_records_behind_a_damaged_one_are_read_and_a_time_of_another_length_is_no_step() -> None:
    boards = build_reader({"tensorboard": "{run_dir}/out/x"})
    found = []
    with pytest.raises(ValueError, match="not a protocol buffer"):
        for each in boards.open().feed(records(SCALAR, b"\xff", SCALAR)):
            found.append(each)
    assert steps(found) == [5, 5]
    assert list(boards.open().feed(records(b"\x0a\x03abc" + SCALAR[9:]))) == []


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("tensorboard", records(b"") * 2**17),
        ("lightning", b"step,train_loss" + b",x" * 9000 + b"\n" + b"1\n" * 100_000),
        ("megatron", (b"successfully loaded checkpoint from x " * 1500 + b"\n") * 30),
        ("megatron", (b"successfully loaded checkpoint from xat iteration" * 1200 + b"\n") * 30),
        ("megatron", (b"iteration 1/1 |" * 4000 + b"\n") * 30),
        ("maxtext", (b"completed step: 1" * 3500 + b"\n") * 30),
    ],
    ids=["records", "columns", "loaded", "loaded-at", "iteration", "completed"],
)
def test_many_small_parts_take_no_longer_than_their_bytes(name: str, data: bytes) -> None:
    begin = time.process_time()
    list(build_reader({name: "{run_dir}/out/x"}).open().feed(data))
    assert time.process_time() - begin < 5  # by the square of them it would be minutes


@pytest.mark.parametrize("part", [b"[],", b"{},", b"[[[]]],", b"1,"])
def test_a_hostile_history_takes_bounded_memory(part: bytes) -> None:
    data = b'{"log_history": [' + part * (20 * 2**20 // len(part)) + b"0]}"
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="more than 2000000 values"):
            list(build_reader({"huggingface": "{run_dir}/out/x"}).open().feed(data))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_an_expression_that_takes_too_long_is_given_up_in_words() -> None:
    expression = r"^(?:(?:a|b|ab)+)+ step (?P<step>\d+)$"
    source = build_reader({"lines": {"regex": expression}}).open()
    assert steps(source.feed(b"ab step 1\n")) == [1]
    begin = time.process_time()
    with pytest.raises(ValueError, match="takes far more than 1 ms in a line, so no further line"):
        list(source.feed((b"ab" * 500 + b" step x\n") * 20))
    assert list(source.feed((b"ab" * 500 + b" step x\n") * 1000)) == []
    assert time.process_time() - begin < 5
