"""What the harness notes of checkpoints while a job saves: each once, when it is finished, and again if it changes."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is missing: pip install 'chaos-harness[trainer]'")
from checkpoint_files import WRITERS, save, state, write

from harness.faults.contract import CheckpointPlace
from harness.run.publications import Publications
from harness.trainers.checkpoints.shared import digests
from harness.trainers.checkpoints.shared.place import CheckpointFolder


class Noted:
    """A watch whose looks are made by hand."""

    def __init__(self, run_dir: pathlib.Path):
        self.run_dir, self.events = run_dir, list[dict[str, Any]]()
        self.watch = Publications(self, CheckpointPlace(), self.emit)  # type: ignore[arg-type]

    def emit(self, event: str, **fields: Any) -> None:
        assert event == "checkpoint.published"
        self.events.append(fields)

    def look(self, times: int = 2) -> list[Any]:
        """The steps noted now."""
        before = len(self.events)
        for _ in range(times):
            self.watch.look()
        return sorted(event["step"] for event in self.events[before:])


@pytest.mark.parametrize("layout", WRITERS)
def test_each_is_noted_once(tmp_path: pathlib.Path, layout: str) -> None:
    noted, root = Noted(tmp_path), tmp_path / "checkpoints"
    assert noted.look() == []
    write(root, layout, 20)
    assert noted.look(1) == [] and noted.look(1) == [20] and noted.look() == []
    write(root, layout, 100)
    assert noted.look() == [100] and {event["layout"] for event in noted.events} == {layout}


def test_a_change_is_noted_with_another_digest(tmp_path: pathlib.Path) -> None:
    noted, path = Noted(tmp_path), tmp_path / "checkpoints" / "ckpt_20.pt"
    save(path, state(20))
    assert noted.look() == [20]
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)
    assert noted.look() == [20]
    assert noted.events[0]["sha256"] != noted.events[1]["sha256"]


def test_what_is_not_finished_is_not_noted(tmp_path: pathlib.Path) -> None:
    noted, path = Noted(tmp_path), tmp_path / "checkpoints" / "ckpt_20.pt"
    save(path, state(20))
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert noted.look(4) == []
    path.write_bytes(whole)
    assert noted.look() == [20]


def test_a_large_file_is_sampled_from_its_first_to_its_last_byte(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "WHOLE_BYTES_MAX", 1000)
    monkeypatch.setattr(digests, "SAMPLE_BYTES", 10)
    path = tmp_path / "checkpoints" / "large"
    path.parent.mkdir()
    found = set()
    for changed in (None, 0, 5000, 9999):
        content = bytearray(10_000)
        if changed is not None:
            content[changed] = 1
        path.write_bytes(content)
        place = CheckpointFolder.look(tmp_path, "checkpoints")
        assert digests.is_sampled(place, place.files)
        found.add(digests.digest(place, place.files))
    assert len(found) >= 3
