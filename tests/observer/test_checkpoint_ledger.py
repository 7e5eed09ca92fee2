"""What files hold, and the ledger that outlives the processes that write it."""

import os
import pathlib
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.node.observer import identity
from harness.node.observer.checkpoint_ledger import NAME, Began, Committed, Ledger, Saved


def archive(path: pathlib.Path, data: bytes, top: str = "archive") -> pathlib.Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        file.writestr(f"{top}/data.pkl", b"pickled")
        file.writestr(f"{top}/data/0", data)
    return path


def test_an_archive_keeps_its_lineage_when_a_tensor_is_damaged_and_under_another_name(tmp_path: pathlib.Path) -> None:
    path = archive(tmp_path / "a.pt", bytes(range(200)))
    lineage, before = identity.lineage(str(path)), identity.of([str(path)])
    assert identity.lineage(str(archive(tmp_path / "b.pt", bytes(range(200)), "b"))) == lineage
    assert identity.lineage(str(archive(tmp_path / "c.pt", b"others"))) != lineage
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(bytes(range(50, 100)))] ^= 1
    path.write_bytes(damaged)
    after = identity.of([str(path)])
    assert before and after and identity.lineage(str(path)) == lineage and after.digest != before.digest


@settings(max_examples=50)
@given(data=st.binary(min_size=1, max_size=5000), place=st.integers(min_value=0), bit=st.integers(0, 7))
def test_every_flipped_bit_changes_the_digest(tmp_path: pathlib.Path, data: bytes, place: int, bit: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    before = identity.of([str(path)])
    changed = bytearray(data)
    changed[place % len(data)] ^= 1 << bit
    path.write_bytes(changed)
    after = identity.of([str(path)])
    assert before and after and before.digest != after.digest and before.size == after.size


def test_a_large_file_is_sampled_and_says_so(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(2**20))
    monkeypatch.setattr(identity, "WHOLE_BYTES_MAX", 1000)
    found = identity.of([str(path)])
    assert found and found.digest.startswith("sampled:") and found.size == 2**20


def test_what_cannot_be_read_has_no_content_and_a_pipe_is_not_waited_for(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "gone"), str(tmp_path / "pipe")):
        assert identity.lineage(path) is None and identity.of([path]) is None
    assert identity.of([]) is None


def test_entries_of_all_nodes_are_found_oldest_first(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Ledger(tmp_path / "node0"), Ledger(tmp_path / "node1")
    entries: list[Saved | Committed | Began] = [
        Saved("/x/a.pt", 10, "checksums:1"),
        Committed("/x/a.pt", "/x", 10, "whole:1", ("a.pt",), ("checksums:1",)),
        Began(0, "abc"),
    ]
    for ledger, entry in zip((one, other, one), entries, strict=True):
        ledger.add(entry)
    (tmp_path / "node2").mkdir()
    (tmp_path / "node2" / NAME).symlink_to(tmp_path / "node0" / NAME)  # a link is not read
    assert one.entries() == other.entries() == entries
    monkeypatch.delenv("CHAOS_EVENTS", raising=False)
    nowhere = Ledger()
    nowhere.add(entries[0])
    assert nowhere.entries() == [], "without a folder nothing is kept"


SAVED = '{"kind":"saved","at":1,"path":%s,"step":%s,"lineage":"x"}'
LINES = ["{", "[]", "1", '"text"', "null", "[" * 100_000, "\udcff\udcfe", '{"at": 1e999, "kind": "began"}']
LINES += ['{"kind":"saved"}', '{"kind":"other","at":1}', SAVED % (7, 9)]
LINES += [SAVED % ('"a"', step) for step in ("-1", "true", '"9"')]
LINES += ['{"kind":"committed","at":1,"path":"a","root":"b","step":1,"content":"c","files":3,"lineages":[]}']


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:60])
def test_a_malformed_line_is_passed_over(tmp_path: pathlib.Path, line: str) -> None:
    ledger = Ledger(tmp_path / "node0")
    ledger.add(Saved("a", 1, "x"))
    with open(tmp_path / "node0" / NAME, "ab") as file:
        file.write(os.fsencode(line) + b"\n")
    ledger.add(Saved("b", 2, "y"))
    assert [entry.path for entry in ledger.entries() if isinstance(entry, Saved)] == ["a", "b"]
