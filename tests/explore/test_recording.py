"""The record of what a process on a node changes in a folder, on a real file system of ours."""

import json
import os
import pathlib
import sys
import textwrap
from typing import Any

import pytest
from waiting import until

from harness.backends.contract import Launch, Verb
from harness.backends.local.backend import BACKEND
from harness.node.fuse.recording import DATA, OPERATIONS, Record

NEEDS_FUSE = pytest.mark.skipif(
    Verb.STORAGE not in BACKEND.probe().verbs, reason=BACKEND.probe().missing.get(Verb.STORAGE, "")
)
CHANGES = """
    import os
    os.mkdir("tmp")
    with open("tmp/model", "wb") as file:
        file.write(b"one")
        file.flush()
        os.fsync(file.fileno())
    with open("tmp/model", "r+b") as file:
        file.seek(2)
        file.write(b"TWO")
        file.flush()
        os.ftruncate(file.fileno(), 4)
    folder = os.open("tmp", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    os.rename("tmp", "step-1")
    open("step-1/model", "rb").close()
    os.link("step-1/model", "again")
    os.symlink("step-1", "latest")
    open("again", "wb").close()
    with open("gone", "w") as file:
        os.unlink("gone")
        open("gone", "w").close()
        file.write("late")
    os.unlink("gone")
    os.posix_fallocate(os.open("step-1/model", os.O_RDWR), 0, 100)
    os.unlink("latest")
"""


def recorded(tmp_path: pathlib.Path, code: str) -> tuple[list[dict[str, Any]], bytes, pathlib.Path]:
    done = tmp_path / "done"
    done.mkdir()
    code = textwrap.dedent(code) + f"\nopen({str(done / 'it')!r}, 'w').close()\n"
    command = (
        sys.executable,
        "-S",
        "-c",
        f"import os; os.chdir({str(tmp_path / 'store')!r})\n{code}",
        "{run_dir}/done",
    )
    workload = Launch(command, 1, 1, {}, None, ("store",), ("store",))
    with BACKEND.open(workload, tmp_path, f"test-recording-{os.getpid()}") as cluster:
        cluster.start()
        until((done / "it").exists, "the end of the changes")
    folder = tmp_path / "recorded" / "store"
    return (
        [json.loads(line) for line in (folder / OPERATIONS).read_text().splitlines()],
        (folder / DATA).read_bytes(),
        folder,
    )


@NEEDS_FUSE
def test_every_change_is_recorded_in_its_order(tmp_path: pathlib.Path) -> None:
    lines, data, _ = recorded(tmp_path, CHANGES)
    told = [(line["kind"], line["path"], line["inode"], line.get("other", line.get("size"))) for line in lines]
    # The kernel tells of a close some time after it; the last one, by the process's end, may come when all is over.
    closed = sorted(each[2] for each in told if each[0] == "close")
    assert closed in ([2, 2, 2, 2, 4, 5], [2, 2, 2, 4, 5])
    assert [each for each in told if each[0] != "close"] == [
        ("mkdir", "tmp", 1, None),
        ("create", "tmp/model", 2, None),
        ("write", "tmp/model", 2, 3),
        ("fsync", "tmp/model", 2, None),
        ("write", "tmp/model", 2, 3),
        ("truncate", "tmp/model", 2, 4),
        ("fsync_dir", "tmp", 1, None),
        ("rename", "tmp", 1, "step-1"),
        ("link", "step-1/model", 2, "again"),
        ("symlink", "latest", 3, "step-1"),
        ("truncate", "again", 2, 0),
        ("create", "gone", 4, None),
        ("unlink", "gone", 4, None),
        ("create", "gone", 5, None),
        ("write", "gone", 4, 4),
        ("unlink", "gone", 5, None),
        ("truncate", "step-1/model", 2, 100),
        ("unlink", "latest", 3, None),
    ]
    assert data == b"oneTWOlate"
    assert [(line["offset"], line["data"]) for line in lines if line["kind"] == "write"] == [(0, 0), (2, 3), (0, 6)]
    assert [line["t_ns"] for line in lines] == sorted(line["t_ns"] for line in lines)


@NEEDS_FUSE
def test_a_flush_of_the_whole_file_system_is_recorded_in_its_order(tmp_path: pathlib.Path) -> None:
    code = """
        import ctypes, os
        libc = ctypes.CDLL(None)
        os.mkdir("one")
        os.sync()
        os.mkdir("two")
        folder = os.open(".", os.O_RDONLY)
        assert libc.syncfs(folder) == 0
        os.mkdir("three")
        elsewhere = os.open("/proc", os.O_RDONLY)
        assert libc.syncfs(elsewhere) == 0
        assert libc.syncfs(999) == -1
        os.mkdir("four")
        if not os.fork():
            os.execv("/bin/sync", ["sync"])
        os.wait()
    """
    lines, _, _ = recorded(tmp_path, code)
    told = [line["path"] or line["kind"] for line in lines]
    assert told == ["one", "sync", "two", "sync", "three", "four", "sync"]


@NEEDS_FUSE
def test_a_write_to_a_file_that_flushes_itself_is_recorded_with_its_flush(tmp_path: pathlib.Path) -> None:
    code = """
        import os
        for name, flag in (("data", os.O_DSYNC), ("all", os.O_SYNC), ("none", 0)):
            file = os.open(name, os.O_WRONLY | os.O_CREAT | flag, 0o644)
            os.write(file, b"12345")
            os.close(file)
    """
    lines, _, _ = recorded(tmp_path, code)
    kinds = [(line["kind"], line["path"]) for line in lines]
    for name in ("data", "all"):
        assert kinds.index(("write", name)) < kinds.index(("fsync", name)) < kinds.index(("close", name))
    assert ("fsync", "none") not in kinds


@NEEDS_FUSE
def test_mapped_memory_is_recorded_when_it_is_flushed(tmp_path: pathlib.Path) -> None:
    code = """
        import mmap, os
        file = os.open("mapped", os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(file, 4096)
        memory = mmap.mmap(file, 4096)
        memory[:] = b"1" * 4096
        memory.flush()
        memory.close()
    """
    lines, data, _ = recorded(tmp_path, code)
    kinds = [line["kind"] for line in lines]
    assert kinds.index("truncate") < kinds.index("write") < kinds.index("fsync")
    assert data == b"1" * 4096


def test_a_record_ends_at_its_limit_and_says_so(tmp_path: pathlib.Path) -> None:
    record = Record(tmp_path, operations_max=3, bytes_max=10)
    record.add("create", "a", 1)
    record.add("write", "a", 1, b"12345", offset=0)
    record.add("write", "a", 1, b"123456", offset=5)
    record.add("close", "a", 1)
    lines = [json.loads(line) for line in (tmp_path / OPERATIONS).read_text().splitlines() if line]
    assert [line.get("kind") for line in lines] == ["create", "write", None]
    assert "more than 3 operations" in lines[-1]["ended"]
    assert (tmp_path / DATA).read_bytes() == b"12345"
