import copy
import itertools
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from event_files import WriterLog, read_log, read_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.log import event_log, files, reading
from harness.log.event_log import Tail
from harness.log.files import EventFile
from harness.node.emitter import Emitter

FIELDS = st.dictionaries(
    st.text(st.characters(categories=["Ll"]), min_size=1, max_size=8).filter(
        lambda k: k not in ("event", "wall_ns", "mono_ns", "line")
    ),
    st.one_of(st.integers(), st.floats(), st.text(), st.booleans(), st.lists(st.floats(), max_size=3)),
    max_size=4,
)


def test_outside_a_harness_nothing_is_written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHAOS_EVENTS", raising=False)
    emit = Emitter.open("trainer", rank=0)
    emit("step", step=1)
    with emit.phase("restore"):
        emit.failpoint("restore")
    assert not emit.enabled


def test_header_and_events_come_back(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_EVENTS", str(tmp_path))
    monkeypatch.setenv("CHAOS_NODE", "node1")
    monkeypatch.setenv("CHAOS_INCARNATION", "2")
    emit = Emitter.open("trainer", rank=3, local_rank=1, world_size=4)
    emit("step", step=1, loss=float("nan"), grad_norm=0.1)
    (log,) = read_log(tmp_path)
    assert (log.header["node"], log.header["incarnation"], log.header["rank"]) == ("node1", 2, 3)
    assert log.events[0]["loss"] == "nan" and log.events[0]["grad_norm"] == 0.1
    assert not log.torn


@settings(max_examples=50, deadline=None)
@given(st.lists(FIELDS, max_size=5), st.data())
def test_a_cut_tears_at_most_the_last_line(events: list[dict[str, object]], data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "w.jsonl"
        emit = Emitter(path)
        for fields in events:
            emit("e", **fields)
        emit.close()
        whole = path.read_bytes()
        cut = data.draw(st.integers(0, len(whole)))
        path.write_bytes(whole[:cut])
        log = read_writer(EventFile.of(path))
        lines = whole[:cut].count(b"\n")
        if lines == 0:
            assert log is None
        else:
            assert log is not None and len(log.events) == lines - 1
            assert log.torn == (not whole[:cut].endswith(b"\n"))


def small_disk(path: pathlib.Path, *acts: str) -> WriterLog:
    """What is left of a writer in a process that does this. `limit(bytes)`: so large may files become."""
    code = textwrap.dedent("""
        import pathlib, resource, signal, sys
        from harness.node.emitter import Emitter
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        path = pathlib.Path(sys.argv[1])
        def limit(size=resource.RLIM_INFINITY):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    """)
    subprocess.run([sys.executable, "-c", code + "\n".join(acts), str(path)], check=True)
    log = read_writer(EventFile.of(path))
    assert log is not None and not log.torn
    return log


def test_sigkill_tears_at_most_the_last_line(tmp_path: pathlib.Path) -> None:
    code = textwrap.dedent("""
        import pathlib, sys
        from harness.node.emitter import Emitter
        emit = Emitter(pathlib.Path(sys.argv[1]))
        print("ready", flush=True)
        step = 0
        while True:
            step += 1
            emit("step", step=step, text="x" * 200)
    """)
    path = tmp_path / "w.jsonl"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.1)
        writer.send_signal(signal.SIGKILL)
    log = read_writer(EventFile.of(path))
    assert log is not None
    assert [event["step"] for event in log.events] == list(range(1, len(log.events) + 1))


@pytest.mark.parametrize(
    ("begin", "told"),
    [
        (["emit = Emitter(path, HEADER)", 'emit("step", step=1)', "limit(path.stat().st_size + 30)"], [(1, 0), (4, 2)]),
        (["limit(10)", "emit = Emitter(path, HEADER)"], [(4, 2)]),  # the header comes with the first that fits
    ],
)
def test_a_full_disk_loses_events_alone(tmp_path: pathlib.Path, begin: list[str], told: list[tuple[int, int]]) -> None:
    lost = ['emit("step", step=2)', 'emit("step", step=3)']
    log = small_disk(
        tmp_path / "w.jsonl", 'HEADER = {"role": "trainer"}', *begin, *lost, "limit()", 'emit("step", step=4)'
    )
    assert log.header["role"] == "trainer"
    assert [(event["step"], event.get("dropped", 0)) for event in log.events] == told
    first = told[0][0] == 1
    assert [event["line"] for event in log.events] == [step - (not first) for step, _ in told], "as they were tried"


def test_a_line_that_cannot_be_written_is_told_of_by_whichever_comes_next(tmp_path: pathlib.Path) -> None:
    """Also by one that the trainer did not ask for: `_append` is what a plan's holds write by."""
    acts = ["emit = Emitter(path)", "limit(10)", 'emit("step", step=1)', "limit()", 'emit._append({"event": "a"})']
    log = small_disk(tmp_path / "w.jsonl", *acts)
    assert [(event["event"], event["line"], event["dropped"]) for event in log.events] == [("a", 2, 1)]


def test_threads_and_signals_number_each_line_once(tmp_path: pathlib.Path) -> None:
    emit, over = Emitter(tmp_path / "w.jsonl"), threading.Event()

    def alarm(*_: object) -> None:
        emit("alarm")
        if not over.is_set():
            signal.setitimer(signal.ITIMER_REAL, 1e-4)  # not by itself: where a line takes longer, alarms would nest

    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 1e-4)
    try:
        threads = [threading.Thread(target=lambda: [emit("a") for _ in range(500)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(500):
            emit("b")
        for thread in threads:
            thread.join()
    finally:
        over.set()  # a late alarm would start the timer again, and end the worker
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    log = read_writer(EventFile.of(tmp_path / "w.jsonl"))
    assert log is not None and "alarm" in {event["event"] for event in log.events}
    assert sorted(event["line"] for event in log.events) == list(range(1, len(log.events) + 1))


def test_threads_write_one_header(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk has refused it at first."""
    write = os.write

    def slow(descriptor: int, data: bytes) -> int:
        time.sleep(0.02)
        return write(descriptor, data)

    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError()))
        emit = Emitter(tmp_path / "w.jsonl")
    monkeypatch.setattr(os, "write", slow)
    threads = [threading.Thread(target=emit, args=("a",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "w.jsonl").read_text().count('"schema"') == 1


def test_an_error_in_a_write_leaves_no_gap_untold(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emit = Emitter(tmp_path / "w.jsonl")
    monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        emit("lost")
    monkeypatch.undo()
    emit("next")
    with pytest.raises(TypeError):
        emit("no JSON", text=object())
    emit("last")
    log = read_writer(EventFile.of(tmp_path / "w.jsonl"))
    assert log is not None and [(each["line"], each.get("dropped", 0)) for each in log.events] == [(2, 1), (3, 0)]


def test_a_fork_numbers_its_own_lines(tmp_path: pathlib.Path) -> None:
    emit = Emitter(tmp_path / "w.jsonl")
    emit("before")
    for _ in range(2):
        child = os.fork()
        if not child:
            emit("in the fork")
            emit("in the fork")
            os._exit(0)
        os.waitpid(child, 0)
        emit("after")
    log = read_writer(EventFile.of(tmp_path / "w.jsonl"))
    assert log is not None
    own = [event["line"] for event in log.events if "line_fork" not in event]
    forks = [(event["line_fork"], event["line"]) for event in log.events if "line_fork" in event]
    first, second = dict.fromkeys(fork for fork, _ in forks)
    assert own == [1, 2, 3] and forks == [(first, 0), (first, 1), (second, 0), (second, 1)]
    writer = reading.read_source(EventFile.of(tmp_path / "w.jsonl"))
    assert writer is not None and (writer.gaps, writer.problems) == ((), [])


def test_a_copy_in_another_process_is_silent(tmp_path: pathlib.Path) -> None:
    """A loader of data that is started afresh gets all that its data set holds."""
    emit = Emitter(tmp_path / "w.jsonl")
    assert copy.deepcopy([emit])[0] is emit and copy.copy(emit) is emit
    assert not pickle.loads(pickle.dumps(emit)).enabled


def test_the_tail_yields_whole_lines_once(tmp_path: pathlib.Path) -> None:
    tail = Tail(tmp_path)
    emit = Emitter(tmp_path / "w.jsonl", {"rank": 1})
    emit("a")
    with (tmp_path / "w.jsonl").open("ab") as file:
        file.write(b'{"event": "b"')
    assert [(header["rank"], event["event"]) for header, event in tail.poll()] == [(1, "a")]
    assert tail.poll() == []
    with (tmp_path / "w.jsonl").open("ab") as file:
        file.write(b', "mono_ns": 1}\n')
    assert [event["event"] for _, event in tail.poll()] == ["b"]


def test_the_rest_is_all_that_is_there(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "FILE_BYTES_A_POLL", 100)
    monkeypatch.setattr(event_log, "POLL_BYTES_MAX", 100)
    monkeypatch.setattr(files, "LINE_BYTES_MAX", 200)
    for writer in range(3):
        emit = Emitter(tmp_path / f"{writer}.jsonl", {"rank": writer})
        for number in range(50):
            emit("a", number=number)
        emit.close()
    tail = Tail(tmp_path)
    found = [*tail.poll(), *tail.rest()]
    told = [(header["rank"], event["number"]) for header, event in found]
    assert sorted(told) == [*itertools.product(range(3), range(50))]
    assert tail.rest() == []


def test_an_armed_hold_waits_for_its_release(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    armed, released = tmp_path / "armed", tmp_path / "released"
    hold = {"match": {"event": "step", "step": 2}, "armed": str(armed), "released": str(released)}
    (tmp_path / "holds.json").write_text(json.dumps([hold]))
    monkeypatch.setenv("CHAOS_HOLDS", str(tmp_path / "holds.json"))
    emit = Emitter(tmp_path / "events" / "w.jsonl")
    emit("step", step=2)  # not armed: does not wait
    armed.touch()
    emit("step", step=1)  # another step: does not wait
    thread = threading.Thread(target=emit, args=("step",), kwargs={"step": 2}, daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    released.touch()
    thread.join()
    assert not thread.is_alive()


def test_two_emitters_of_one_rank_never_share_a_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_EVENTS", str(tmp_path))
    for _ in range(20):
        Emitter.open("trainer", rank=0)("started")
    assert len(list(tmp_path.iterdir())) == 20
