"""The record of a checkpoint folder is checked when it is read: a damaged one is one error, with its line."""

import json
import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ChaosError
from harness.explore.disk import disk_of
from harness.explore.file_systems import PROFILES, changes_of
from harness.explore.recording_file import read_operations

RECORD: list[dict[str, Any]] = [
    {"kind": "mkdir", "path": "step-5", "inode": 1, "t_ns": 1},
    {"kind": "create", "path": "step-5/model", "inode": 2, "t_ns": 2},
    {"kind": "write", "path": "step-5/model", "inode": 2, "offset": 0, "t_ns": 3, "data": 0, "size": 4},
    {"kind": "fsync_dir", "path": "", "inode": 0, "t_ns": 4},
    {"kind": "rename", "path": "step-5", "inode": 1, "other": "last", "t_ns": 5},
]


def write(folder: pathlib.Path, lines: list[str], data: bytes = b"0123") -> pathlib.Path:
    (folder / "operations.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "data").write_bytes(data)
    return folder


def damaged(number: int, **more: Any) -> list[str]:
    return [json.dumps(each | more if at == number else each) for at, each in enumerate(RECORD, 1)]


def test_a_name_that_is_not_utf8_comes_back_as_it_was(tmp_path: pathlib.Path) -> None:
    found = read_operations(write(tmp_path, damaged(1, path="\udcff")[:1]))
    (tmp_path / "made").mkdir()
    with (tmp_path / "data").open("rb") as data:
        disk_of(changes_of("posix", found), [0]).write(tmp_path / "made", data)
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["\udcff"]


@pytest.mark.parametrize(
    ("lines", "line", "why"),
    [
        (["[1]"], 1, "Expected `object`"),
        (["xx"], 1, "Expecting value"),
        (["[" * 50_000], 1, "recursion"),
        (["x" * 70_000], 1, "longer than"),
        ([r'{"path":"\udcff"}'], 1, "`kind`"),
        (damaged(3, kind="zap"), 3, "zap"),
        (damaged(3, offset="a"), 3, r"\$\.offset"),
        (damaged(3, offset=-5), 3, r"\$\.offset"),
        (damaged(3, size=9), 3, "data has 4 bytes"),
        (damaged(2, path="../../model"), 2, r"'\.\./\.\./model'"),
        (damaged(2, path="/model"), 2, "'/model'"),
        (damaged(5, other="a/" * 200 + "b"), 5, "at most 100 names"),
        (damaged(2, path="step-6/model"), 2, "no such name"),
        (damaged(5, path="step-6"), 5, "no such name"),
        (damaged(2, inode=1), 2, "the next one"),  # two folders with one inode hold each other
        (damaged(3, inode=7), 3, "0 to 2"),
    ],
)
def test_a_damaged_record_is_said_with_its_line(lines: list[str], line: int, why: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ChaosError, match=rf"operations\.jsonl:{line}: .*{why}"):
        read_operations(write(tmp_path, lines))


def test_a_missing_file_and_a_record_that_ended_are_said(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ChaosError, match=f"{tmp_path}/operations.jsonl: cannot be read: No such file"):
        read_operations(tmp_path)
    with pytest.raises(ChaosError, match="not whole: the disk is full"):
        read_operations(write(tmp_path, [*damaged(0), json.dumps({"ended": "the disk is full"})]))


@given(st.data())
def test_what_is_read_can_be_made(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A line's values are replaced by others: the record is refused, or each file system takes it."""
    folder = tmp_path_factory.mktemp("record")
    names = st.sampled_from(["", "step-5", "step-5/model", "last", "last/model", "..", "a/b", "\udcff"])
    numbers = st.one_of(st.integers(-1, 5), st.just(2**62))
    kinds = st.sampled_from(["create", "mkdir", "link", "rename", "unlink", "rmdir", "truncate", "fsync", "close"])
    values = st.fixed_dictionaries({}, optional={"kind": kinds, "path": names, "other": names, "inode": numbers})
    changed = [each | data.draw(values) for each in RECORD]
    try:
        operations = read_operations(write(folder, [json.dumps(each) for each in changed]))
    except ChaosError:
        return
    for profile in PROFILES:
        try:
            changes = changes_of(profile, operations)
        except ChaosError:
            continue
        disk_of(changes, range(len(changes)))
