"""Every way a checkpoint rots, on checkpoints of our own: what is measured, what is put back, and what is left alone."""

import hashlib
import json
import multiprocessing
import multiprocessing.synchronize
import os
import pathlib
import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest
from checkpoint_files import POINTED, WRITERS, write
from faults.fault_context import means
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import HANG_S, until

from harness.api.testing import FaultContext
from harness.errors import FaultError
from harness.faults import checkpoint_corruption as corruption
from harness.faults.contract import CheckpointPlace, Target, build_fault
from harness.faults.shared.checkpoint_damage import POISON
from harness.log.journal import Journal
from harness.preflight.verification import verify
from harness.run import undo
from harness.trainers.checkpoints.contract import list_checkpoints
from harness.trainers.checkpoints.shared import formats
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder

TARGETS = [Target(0)]


class Context(FaultContext):
    def __init__(self, run_dir: pathlib.Path, seed: int = 1):
        super().__init__(run_dir, seed)
        self.checkpoints = CheckpointPlace()


def make(run_dir: pathlib.Path, steps: tuple[int, ...] = (20, 40)) -> pathlib.Path:
    root = run_dir / "checkpoints"
    for step in steps:
        folder = root / f"step-{step:08d}"
        folder.mkdir(parents=True)
        data = hashlib.shake_256(str(step).encode()).digest(50_000)
        (folder / "__0_0.distcp").write_bytes(data)
        (folder / "__1_0.distcp").write_bytes(data[::-1][:-10])
        (folder / "empty").touch()
        files = {
            name: {"sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest()} for name in ("__0_0.distcp",)
        }
        (folder / "manifest.json").write_text(json.dumps({"step": step, "files": files}))
    return root


def content(root: pathlib.Path) -> dict[str, Any]:
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def corrupt(run_dir: pathlib.Path, seed: int = 1, **parameters: Any) -> Context:
    context = Context(run_dir, seed)
    build_fault("checkpoint_corruption", parameters).inject(TARGETS, means(context))
    assert set(context.actions) == {"faults.checkpoint_corruption"}
    return context


KINDS = ["bit_flip", "zero_page", "truncate", "empty", "missing", "mixed_steps", "wrong_manifest"]


def one_page_of_zeros(old: bytes, new: bytes) -> bool:
    wrong = [index for index, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    page = wrong[0] // 4096 * 4096
    return {index // 4096 * 4096 for index in wrong} == {page} and not new[page : page + 4096].strip(b"\0")


# Of the old content of the file and the new one.
LEAVES: dict[str, Callable[[Any, Any], bool]] = {
    "bit_flip": lambda old, new: sum((a ^ b).bit_count() for a, b in zip(old, new, strict=True)) == 1,
    "zero_page": one_page_of_zeros,
    "truncate": lambda old, new: len(new) < len(old) and old.startswith(new),
    "empty": lambda old, new: new == b"",
    "missing": lambda old, new: new is None,
}


@pytest.mark.parametrize("kind", [*KINDS, "stale_latest", "dangling_latest"])
@pytest.mark.parametrize("link", [True, False])
def test_one_file_of_the_newest_is_damaged_and_put_back(tmp_path: pathlib.Path, kind: str, link: bool) -> None:
    root = make(tmp_path)
    latest = root / "latest"
    latest.symlink_to("step-00000040") if link else latest.write_text("step-00000040\n")
    before = content(root)
    context = corrupt(tmp_path, kind=kind)
    after = content(root)
    (name,) = [name for name in before if before[name] != after.get(name)]
    assert name.startswith("latest" if "latest" in kind else "step-00000040/")
    assert LEAVES.get(kind, lambda *_: True)(before[name], after.get(name))
    assert kind != "mixed_steps" or after[name] == before[name.replace("40", "20")]
    ((measured, expected, _, ok),) = context.effects
    assert ok and measured == expected > 0
    for record in context.undos * 2:
        corruption.put_back(tmp_path, **record)
    assert content(root) == before


def test_a_newer_file_is_never_overwritten_and_a_deleted_one_does_not_come_back(tmp_path: pathlib.Path) -> None:
    """The trainer has noticed, and written the checkpoint again: the old original must not come back."""
    for kind in ("bit_flip", "missing"):
        folder = make(tmp_path / kind) / "step-00000040"
        context, path = corrupt(tmp_path / kind, kind=kind), folder / "__0_0.distcp"
        path.write_bytes(b"written again")
        corruption.put_back(tmp_path / kind, **context.undos[0])
        assert path.read_bytes() == b"written again"
        path.unlink()
        corruption.put_back(tmp_path / kind, **context.undos[0])
        assert not path.exists() or kind == "missing"
        shutil.rmtree(folder)
        corruption.put_back(tmp_path / kind, **context.undos[0])
        assert not folder.exists()


def test_what_cannot_be_damaged_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FaultError, match="no finished checkpoint"):
        corrupt(tmp_path)
    make(tmp_path, (20,))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"kind": "mixed_steps"}, "two checkpoints"),
        ({"kind": "stale_latest"}, "no pointer"),
        ({"kind": "dangling_latest"}, "no pointer"),
        ({"file": "*.nothing"}, r"no file '\*.nothing'"),
        ({"kind": "nan", "what": "metadata"}, "kind nan is done to tensors; leave out `what: metadata`"),
    ]
    for parameters, message in wrong:
        with pytest.raises((FaultError, ValueError), match=message):
            corrupt(tmp_path, **parameters)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), kind=st.sampled_from(KINDS))
def test_any_seed_changes_something_and_the_same_seed_the_same(
    tmp_path_factory: pytest.TempPathFactory, seed: int, kind: str
) -> None:
    found = []
    for _ in range(2):
        run_dir = tmp_path_factory.mktemp("run")
        root = make(run_dir)
        context = corrupt(run_dir, seed=seed, kind=kind, file="any")
        assert context.effects[0][3]
        found.append(content(root))
    assert found[0] == found[1]


# Any layout


def struck(run_dir: pathlib.Path, layout: str, seed: int = 1, **parameters: Any) -> tuple[Context, list[str]]:
    """The context, and the files that differ afterwards."""
    root = run_dir / "checkpoints"
    write(root, layout, 20, 100)
    before = content(root)
    context = corrupt(run_dir, seed, **parameters)
    after = content(root)
    return context, [name for name in before if before[name] != after.get(name)]


@pytest.mark.parametrize("kind", ["bit_flip", "zero_page", "truncate", "empty", "missing", "mixed_steps"])
@pytest.mark.parametrize("layout", WRITERS)
def test_tensor_bytes_of_the_newest_of_any_layout(tmp_path: pathlib.Path, layout: str, kind: str) -> None:
    newest = list_checkpoints(_look_after_write(tmp_path, layout)).checkpoints[0]
    context, changed = struck(tmp_path, layout, kind=kind, what="tensor")
    (told,) = context.logged
    assert [f"checkpoints/{name}" for name in changed] == [told["path"]] and told["path"] in newest.files
    assert (told["step"], told["part"], told["how"]) == (100, "tensor", kind) and told["tensor_bytes"] > 0
    ((measured, expected, _, ok),) = context.effects
    assert ok and measured == expected > 0
    before = content(tmp_path / "checkpoints")
    for record in context.undos * 2:
        corruption.put_back(tmp_path, **record)
    assert content(tmp_path / "checkpoints") != before


@pytest.mark.parametrize("kind", POISON)
@pytest.mark.parametrize("layout", WRITERS)
def test_a_poisoned_checkpoint_is_whole_but_for_its_numbers(tmp_path: pathlib.Path, layout: str, kind: str) -> None:
    """All checksums are right, in archives and in manifests; of the small tensors none is changed."""
    before = content(_look_after_write(tmp_path, layout).root / "checkpoints")
    context = corrupt(tmp_path, kind=kind)
    (told,) = context.logged
    ((measured, expected, _, ok),) = context.effects
    assert ok and measured == expected >= told["tensor_bytes"] > 0 and told["sealed"] and told["part"] == "tensor"
    place = CheckpointFolder.look(tmp_path, "checkpoints")
    listing = list_checkpoints(place)
    found = verify(place, listing.layout, listing.checkpoints[0])
    assert found.findings == []
    assert len(context.undos) == 1 + (layout == "reference")
    for record in context.undos * 2:
        corruption.put_back(tmp_path, **record)
    assert content(tmp_path / "checkpoints") == before


class Journalled(Context):
    """As in a run: what is to be undone is on the disk."""

    journal: Journal

    def undo(self, action: str, **arguments: Any) -> None:
        self.journal.record(action, arguments)


def poison(run_dir: pathlib.Path, ready: multiprocessing.synchronize.Event) -> None:
    context = Journalled(run_dir)
    context.journal = Journal(run_dir)
    undo.start_reverter(run_dir)
    build_fault("checkpoint_corruption", {"kind": "nan"}).inject(TARGETS, means(context))
    ready.set()
    time.sleep(HANG_S)


def test_both_files_are_put_back_after_sigkill_of_the_harness(tmp_path: pathlib.Path) -> None:
    (tmp_path / "logs").mkdir()
    write(tmp_path / "checkpoints", "reference", 20)
    before, fork = content(tmp_path / "checkpoints"), multiprocessing.get_context("fork")
    ready = fork.Event()
    harness = fork.Process(target=poison, args=(tmp_path, ready))
    harness.start()
    assert ready.wait(HANG_S)
    after = content(tmp_path / "checkpoints")
    assert len([name for name in before if before[name] != after[name]]) == 2
    harness.kill()
    harness.join()
    until(lambda: content(tmp_path / "checkpoints") == before, (tmp_path / "logs" / "reverter.log").read_text)


def _look_after_write(run_dir: pathlib.Path, layout: str) -> CheckpointFolder:
    write(run_dir / "checkpoints", layout, 20, 100)
    return CheckpointFolder.look(run_dir, "checkpoints")


@pytest.mark.parametrize(("layout", "what"), [(each, "header") for each in WRITERS] + [("hugging_face", "metadata")])
def test_a_part_without_tensors_of_any_layout(tmp_path: pathlib.Path, layout: str, what: str) -> None:
    for kind in ("bit_flip", "zero_page"):
        context, changed = struck(tmp_path / kind, layout, kind=kind, what=what)
        assert len(changed) == 1 and context.effects[0][3]
        assert context.logged[0]["tensor_bytes"] == 0 and context.logged[0]["part"] == what


@pytest.mark.parametrize("kind", ["stale_latest", "dangling_latest", "missing"])
@pytest.mark.parametrize("layout", sorted(POINTED))
def test_the_pointer_of_any_layout(tmp_path: pathlib.Path, layout: str, kind: str) -> None:
    context, changed = struck(tmp_path, layout, kind=kind, what="pointer")
    listing = list_checkpoints(CheckpointFolder.look(tmp_path, "checkpoints"))
    assert changed == [context.logged[0]["path"].removeprefix("checkpoints/")] and context.effects[0][3]
    wanted = listing.checkpoints[1].path if kind == "stale_latest" else None
    assert (listing.pointer.target if listing.pointer else None) == wanted


def test_one_that_is_not_finished_is_left_alone(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "checkpoints", "hugging_face", 20, 100)
    (tmp_path / "checkpoints/checkpoint-100/trainer_state.json").unlink()
    context = corrupt(tmp_path, what="tensor")
    assert context.logged[0]["step"] == 20


def test_one_that_still_grows_is_left_alone(tmp_path: pathlib.Path) -> None:
    """Nothing marks the end of a file with one tensor after another but that it stays as it is."""
    root = tmp_path / "checkpoints"
    write(root, "torch_file", 20)
    whole = (root / "ckpt_20.pt").read_bytes()
    context, looks = Context(tmp_path), []

    def wait(seconds: float, *_: object) -> bool:
        looks.append(seconds)
        (root / "ckpt_40.pt").write_bytes(whole[: 100 * len(looks)] if len(looks) < 20 else whole)
        return True

    context.wait = wait  # type: ignore[method-assign, assignment]
    build_fault("checkpoint_corruption", {"what": "tensor"}).inject(TARGETS, means(context))
    assert len(looks) > 20 and context.logged[0]["path"] == "checkpoints/ckpt_40.pt"


def test_the_workload_says_where_and_which_layout(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "mine" / "deep", "lightning", 20, 100)
    context = Context(tmp_path)
    context.checkpoints = CheckpointPlace("mine/deep", "lightning")
    build_fault("checkpoint_corruption", {"what": "tensor"}).inject(TARGETS, means(context))
    assert context.logged[0]["path"].endswith("step=100.ckpt")


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    layout=st.sampled_from(sorted(WRITERS)),
    kind=st.sampled_from(["bit_flip", "zero_page"]),
)
def test_a_strike_stays_within_tensor_bytes(
    tmp_path_factory: pytest.TempPathFactory, seed: int, layout: str, kind: str
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    place = _look_after_write(run_dir, layout)
    before = {path: (run_dir / path).read_bytes() for path in place.files}
    context = corrupt(run_dir, seed, kind=kind, what="tensor", file="any")
    path = context.logged[0]["path"]
    after = (run_dir / path).read_bytes()
    wrong = [index for index, (a, b) in enumerate(zip(before[path], after, strict=True)) if a != b]
    inside = formats.spans(place, path)
    assert wrong and all(any(start <= index < end for start, end in inside) for index in wrong)
    assert context.logged[0]["tensor_bytes"] == len(wrong)
