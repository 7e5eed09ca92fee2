"""A checkpoint is either whole and verified, or it is not used."""

import errno
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import random
import shutil
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from event_files import read_log
from waiting import HANG_S, until

from harness.node.emitter import Emitter
from reference_trainer import checkpoint
from reference_trainer.checkpoint import Checkpoints, DamagedCheckpoint

SILENT = Emitter(None)
WEIGHTS = torch.arange(12.0).reshape(3, 4)
FULL = OSError(errno.ENOSPC, "No space left on device")
STATE = {"model/w": WEIGHTS, "rng": torch.zeros(2, 5, dtype=torch.uint8), "progress": "{}"}


def save(checkpoints: Checkpoints, *steps: int, **metrics: float) -> Checkpoints:
    """Saves and waits; the weights differ by step."""
    for step in steps:
        checkpoints.save("periodic", step, STATE | {"model/w": WEIGHTS + step}, metrics)
        checkpoints.wait()
    return checkpoints


def saved(
    root: object, *steps: int, keep: int = 3, emit: Emitter = SILENT, staging: pathlib.Path | None = None
) -> Checkpoints:
    return save(Checkpoints(str(root), None if staging is None else str(staging), keep, emit), *steps)


def events(folder: pathlib.Path, name: str) -> list[dict[str, Any]]:
    return [event for log in read_log(folder) for event in log.events if event["event"] == name]


def test_what_was_written_reads_back_and_the_last_ones_are_kept(tmp_path: pathlib.Path, one_rank: None) -> None:
    saved(tmp_path, 10, 20, 30, 40, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["step-00000030", "step-00000040"]
    restored = saved(tmp_path).restore()
    assert (restored.step, restored.fallback) == (40, []) and restored.state is not None
    assert torch.equal(restored.state["model/w"], WEIGHTS + 40) and restored.state["progress"] == "{}"


def flip_a_bit(file: pathlib.Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def zero_a_page(file: pathlib.Path) -> None:
    content = file.read_bytes()
    file.write_bytes(b"\0" * min(4096, len(content)) + content[4096:])


def in_its_place(make: Callable[[pathlib.Path], object]) -> Callable[[pathlib.Path], None]:
    def replace(file: pathlib.Path) -> None:
        file.unlink()
        make(file)

    return replace


def names(other: str) -> Callable[[pathlib.Path], None]:
    """The manifest is of another file."""

    def spoil(manifest: pathlib.Path) -> None:
        files = {other: {"bytes": 0, "sha256": ""}}
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"files": files}))

    return spoil


DAMAGE: dict[str, Callable[[pathlib.Path], object]] = {
    "a flipped bit": flip_a_bit,
    "a zeroed page": zero_a_page,
    "a torn end": lambda file: os.truncate(file, file.stat().st_size - 7),
    "no bytes at all": lambda file: os.truncate(file, 0),
    "no file": lambda file: file.unlink(),
}
FILES = ("__0_0.distcp", ".metadata", "manifest.json")
KINDS = {"folder": os.mkdir, "fifo": os.mkfifo, "link": lambda file: file.symlink_to("/dev/zero")}
# A flipped bit in the manifest makes one checksum wrong, or the JSON: the other cases have both.
CASES = [
    *(case for case in itertools.product(FILES, DAMAGE.values()) if case != ("manifest.json", flip_a_bit)),
    *(("__0_0.distcp", in_its_place(make)) for make in KINDS.values()),
    *(("manifest.json", names(other)) for other in ("/dev/zero", "../secret", "a\0b", ".", "sub/file")),
    ("manifest.json", lambda file: file.write_text("[" * 100_000)),
]


@pytest.mark.parametrize(("file", "damage"), CASES)
def test_falls_back_past_a_damaged_one_and_says_so(
    tmp_path: pathlib.Path, one_rank: None, file: str, damage: Callable[[pathlib.Path], object]
) -> None:
    saved(tmp_path, 10, 20)
    damage(tmp_path / "step-00000020" / file)
    restored = saved(tmp_path).restore()
    assert restored.step == 10
    assert [entry["source"] for entry in restored.fallback] == [str(tmp_path / "step-00000020")]
    assert file in restored.fallback[0]["reason"]


def test_starts_from_scratch_when_none_is_valid_and_a_damaged_one_is_made_again(
    tmp_path: pathlib.Path, one_rank: None
) -> None:
    saved(tmp_path, 10, 20)
    for step in (10, 20):
        flip_a_bit(tmp_path / checkpoint.folder_name(step) / "__0_0.distcp")
    restored = saved(tmp_path).restore()
    assert (restored.step, restored.source, restored.state) == (0, "scratch", None) and len(restored.fallback) == 2
    saved(tmp_path, 20)
    assert checkpoint.verify(tmp_path / "step-00000020") > 0


def test_any_single_flipped_bit_is_found(tmp_path: pathlib.Path) -> None:
    saved(tmp_path, 1)
    folder = tmp_path / "step-00000001"
    file = folder / "__0_0.distcp"
    whole = file.read_bytes()
    chance = random.Random(3)
    for _ in range(50):
        content = bytearray(whole)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
        with pytest.raises(DamagedCheckpoint, match="checksum"):
            checkpoint.verify(folder)


@pytest.mark.parametrize(("where", "name"), [(dcp, "save"), (dcp.FileSystemWriter, "write_data")])
def test_a_failure_is_an_event_and_the_next_interval_tries_again(
    where: Any, name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that PyTorch wraps into an error of its own."""
    emit = Emitter(tmp_path / "events" / "trainer.jsonl")
    checkpoints = saved(tmp_path / "root", 10, emit=emit)
    with monkeypatch.context() as patch:
        patch.setattr(where, name, Mock(side_effect=FULL))
        save(checkpoints, 20)
    assert checkpoints.committed_step == 10
    (failed,) = events(tmp_path / "events", "checkpoint.failed")
    assert (failed["step"], failed["error"]) == (20, "OSError: [Errno 28] No space left on device")
    assert save(checkpoints, 30).committed_step == 30
    assert sorted(os.listdir(tmp_path / "root")) == ["step-00000010", "step-00000030"], "half a checkpoint was left"
    emit.close()


def test_older_one_is_kept_when_the_new_one_does_not_read_back(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storage that loses what it acknowledged: the checkpoint before must still be there."""
    checkpoints = saved(tmp_path, 10, keep=1)
    fsync = checkpoint._fsync

    def lying(path: pathlib.Path) -> None:
        fsync(path)
        if path == tmp_path:
            flip_a_bit(tmp_path / "step-00000020" / "__0_0.distcp")

    monkeypatch.setattr(checkpoint, "_fsync", lying)
    assert save(checkpoints, 20).committed_step == 10
    assert (tmp_path / "step-00000010").exists()


@pytest.mark.parametrize("stray", ["step-00000020.bak", "step-abc", "step-", ".tmp-step-00000020-1-a"])
def test_what_people_leave_beside_checkpoints_is_passed_over_and_what_a_kill_left_is_swept(
    tmp_path: pathlib.Path, one_rank: None, stray: str
) -> None:
    checkpoints = saved(tmp_path, 10)
    (tmp_path / stray).mkdir()
    assert checkpoints.restore().step == 10
    checkpoints.sweep()
    assert (tmp_path / stray).exists() is not stray.startswith(".tmp")


@pytest.mark.parametrize("scheme", ["", "file://"], ids=["a folder that nodes share", "a bucket"])
def test_what_others_have_is_written_by_way_of_the_own_disk(
    scheme: str, tmp_path: pathlib.Path, one_rank: None
) -> None:
    shared, here, there = (tmp_path / name for name in ("shared", "here", "there"))
    assert saved(f"{scheme}{shared}", 10, 20, 30, keep=2, staging=here).committed_step == 30
    assert sorted(os.listdir(shared)) == sorted(os.listdir(here)) == ["step-00000020", "step-00000030"]
    flip_a_bit(shared / "step-00000030" / "__0_0.distcp")
    restored = saved(f"{scheme}{shared}", staging=there).restore()
    assert (restored.step, len(restored.fallback)) == (20, 1) and restored.state is not None
    assert torch.equal(restored.state["model/w"], WEIGHTS + 20)
    assert saved(f"{scheme}{shared}", staging=here).restore().step == 30, "its own copy"


def test_upload_without_a_manifest_does_not_count(tmp_path: pathlib.Path, one_rank: None) -> None:
    url = f"file://{tmp_path}/bucket"
    saved(url, 10, staging=tmp_path / "here")
    (tmp_path / "bucket" / "step-00000010" / "manifest.json").unlink()
    assert saved(url, staging=tmp_path / "there").restore().source == "scratch"


def test_what_did_not_reach_the_shared_folder_does_not_count(
    tmp_path: pathlib.Path, one_rank: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shared, emit = tmp_path / "shared", Emitter(tmp_path / "events" / "trainer.jsonl")
    here = saved(shared, 10, emit=emit, staging=tmp_path / "here")
    monkeypatch.setattr(shutil, "copytree", Mock(side_effect=FULL))
    assert save(here, 20).committed_step == 10
    assert "No space left" in capsys.readouterr().err
    assert [event["step"] for event in events(tmp_path / "events", "checkpoint.failed")] == [20]
    (shared / ".tmp-step-00000020-1-1").mkdir()
    again = saved(shared, staging=tmp_path / "here")
    again.sweep()
    assert os.listdir(shared) == ["step-00000010"]
    assert again.restore().step == 10


def test_the_manifest_holds_version_and_metrics_and_another_version_is_refused(
    tmp_path: pathlib.Path, one_rank: None
) -> None:
    save(saved(tmp_path, 10), 20, loss=2.5, grad_norm=math.inf)
    path = tmp_path / "step-00000020" / "manifest.json"
    manifest = json.loads(path.read_text())
    assert (manifest["version"], manifest["metrics"]) == (1, {"loss": 2.5, "grad_norm": None})
    path.write_text(json.dumps(manifest | {"version": 2}))
    restored = saved(tmp_path).restore()
    assert restored.step == 10
    assert "version 2; this trainer reads version 1" in restored.fallback[0]["reason"]


def restore_apart(rank: int, root: pathlib.Path, results: Any, arrives_s: float | None) -> None:
    """One of two ranks, each with a folder of its own."""
    mine, other = root / f"node{rank}", root / f"node{1 - rank}"
    dist.init_process_group("gloo", store=dist.FileStore(str(root / "store"), 2), rank=rank, world_size=2)
    if rank == 0 and arrives_s is not None:

        def arrive() -> None:
            shutil.copytree(other / "step-00000020", mine / ".arriving")
            (mine / ".arriving").rename(mine / "step-00000020")

        threading.Timer(arrives_s, arrive).start()
    restored = Checkpoints(str(mine), None, 3, SILENT).restore()
    results.put((rank, restored.step, [entry["reason"] for entry in restored.fallback]))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("arrives_s", "step", "reasons"),
    [(0.5, 20, []), (None, 10, ["another rank sees it, but on this node it is not there after 2 s"])],
)
def test_a_checkpoint_that_only_another_node_sees_is_waited_for(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, arrives_s: float | None, step: int, reasons: list[str]
) -> None:
    monkeypatch.setattr(checkpoint, "LAG_S_MAX", 2.0 if arrives_s is None else HANG_S)
    saved(tmp_path / "node0", 10)
    saved(tmp_path / "node1", 10, 20)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    ranks = [context.Process(target=restore_apart, args=(rank, tmp_path, results, arrives_s)) for rank in (0, 1)]
    for each in ranks:
        each.start()
    found = sorted(results.get() for _ in ranks)
    for each in ranks:
        each.join()
    assert found == [(0, step, reasons), (1, step, reasons)]


def test_an_error_of_pytorch_while_it_reads_is_passed_over(tmp_path: pathlib.Path, one_rank: None) -> None:
    """The file is what the manifest says, and yet no checkpoint."""
    checkpoints = saved(tmp_path, 20, 40)
    folder = tmp_path / "step-00000040"
    (file,) = folder.glob("*.distcp")
    file.write_bytes(b"x" * file.stat().st_size)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][file.name]["sha256"] = checkpoint._sha256(file)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    restored = checkpoints.restore()
    assert restored.step == 20 and restored.state is not None
    (passed,) = restored.fallback
    assert passed["reason"].startswith("rank 0: ") and "\n" not in passed["reason"]


def test_a_state_that_is_not_finite_is_neither_saved_nor_restored(
    tmp_path: pathlib.Path, one_rank: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its checksums are right: it was so when it was saved."""
    emit, bad = Emitter(tmp_path / "events" / "trainer.jsonl"), STATE | {"model/w": WEIGHTS / 0}
    checkpoints = saved(tmp_path / "root", 20, emit=emit)
    checkpoints.save("periodic", 40, bad)
    checkpoints.wait()
    emit.close()
    (failed,) = events(tmp_path / "events", "checkpoint.failed")
    assert failed["error"] == "DamagedCheckpoint: model/w holds numbers that are not finite"
    monkeypatch.setattr(checkpoint, "refuse_nonfinite", lambda state: None)
    checkpoint.write(tmp_path / "root", 40, bad, SILENT)
    monkeypatch.undo()
    restored = saved(tmp_path / "root").restore()
    assert restored.step == 20 and "model/w holds numbers that are not finite" in restored.fallback[0]["reason"]


def test_a_save_that_never_ends_is_told_and_those_after_it_are_skipped(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, emit = threading.Event(), Emitter(tmp_path / "events" / "trainer.jsonl")
    write = checkpoint.write
    monkeypatch.setattr(checkpoint, "write", lambda *given: release.wait() and write(*given))
    monkeypatch.setattr(checkpoint, "SAVE_S_MAX", 0.05)
    checkpoints = saved(tmp_path / "saves", emit=emit)
    for step in (20, 40):
        checkpoints.save("periodic", step, dict(STATE))
    (diagnosis,) = until(lambda: events(tmp_path / "events", "diagnosis"), "an alarm")
    assert [each["at_step"] for each in events(tmp_path / "events", "anomaly")] == [20]
    assert diagnosis["kind"] == "storage" and "checkpoint of step 20" in diagnosis["why"] and "who" not in diagnosis
    assert [each["step"] for each in events(tmp_path / "events", "checkpoint.failed")] == [40]
    monkeypatch.setattr(checkpoint, "SAVE_S_MAX", 60.0)
    release.set()
    checkpoints.wait()
    save(checkpoints, 60)
    assert [each["step"] for each in events(tmp_path / "events", "checkpoint.committed")] == [20, 60]


@pytest.mark.parametrize(("short", "step"), [(2, 20), (3, 10)])
def test_what_a_store_sends_too_short_is_fetched_again_and_then_passed_over(
    tmp_path: pathlib.Path, one_rank: None, monkeypatch: pytest.MonkeyPatch, short: int, step: int
) -> None:
    shared, emit = tmp_path / "shared", Emitter(tmp_path / "events" / "trainer.jsonl")
    saved(shared, 10, 20, staging=tmp_path / "writer")
    download, left = checkpoint.SharedFolder.download, [short]

    def too_short(self: checkpoint.SharedFolder, number: int, root: pathlib.Path) -> None:
        download(self, number, root)
        left[0] -= 1
        if left[0] >= 0:
            file = root / checkpoint.folder_name(number) / "__0_0.distcp"
            os.truncate(file, file.stat().st_size // 2)

    monkeypatch.setattr(checkpoint.SharedFolder, "download", too_short)
    restored = saved(shared, emit=emit, staging=tmp_path / "reader").restore()
    assert restored.step == step and len(restored.fallback) == (step == 10)
    assert len(events(tmp_path / "events", "diagnosis")) == 2


@pytest.mark.parametrize(("short", "steps"), [(2, [20, 10]), (3, [10])])
def test_an_upload_that_never_reads_back_whole_does_not_count(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, short: int, steps: list[int]
) -> None:
    url = f"file://{tmp_path}/remote"
    checkpoints, remote = saved(url, 10, staging=tmp_path / "staging"), checkpoint.Remote(url)
    read, left = type(remote._files).cat_file, [short]

    def too_short(self: Any, path: str, *given: Any, **more: Any) -> bytes:
        content: bytes = read(self, path, *given, **more)
        if path.endswith(".distcp"):
            left[0] -= 1
        return content[: len(content) // 2] if path.endswith(".distcp") and left[0] >= 0 else content

    monkeypatch.setattr(type(remote._files), "cat_file", too_short)
    assert save(checkpoints, 20).committed_step == steps[0]
    assert remote.steps() == steps
