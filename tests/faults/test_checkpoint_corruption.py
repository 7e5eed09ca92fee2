"""Every way a checkpoint rots, on checkpoints of our own: what is measured, what is put back, and what is left alone."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import FaultError
from harness.faults import checkpoint_corruption as corruption
from harness.faults.contract import Target, build_fault

TARGETS = [Target(0)]


class Context:
    """As much of a context as this fault uses; nothing ever waits."""

    def __init__(self, run_dir: pathlib.Path, seed: int = 1):
        self.run_dir, self.seed = run_dir, seed
        self.undos: list[dict[str, Any]] = []
        self.effects: list[tuple[float, float, str, bool]] = []

    def wait(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        return until is None or until()

    def undo(self, action: str, **arguments: Any) -> None:
        assert action == "faults.checkpoint_corruption"
        self.undos.append(arguments)

    def injected(self) -> None: ...

    def effect(self, measured: float, expected: float, unit: str, ok: bool, detail: str = "") -> None:
        self.effects.append((measured, expected, unit, ok))


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
    build_fault("checkpoint_corruption", parameters).inject(TARGETS, context)  # type: ignore[arg-type]
    return context


KINDS = ["bit_flip", "zero_page", "truncate", "empty", "missing", "mixed_steps", "wrong_manifest"]


@pytest.mark.parametrize("kind", [*KINDS, "stale_latest", "dangling_latest"])
@pytest.mark.parametrize("link", [True, False])
def test_one_file_of_the_newest_is_damaged_and_put_back(tmp_path: pathlib.Path, kind: str, link: bool) -> None:
    root = make(tmp_path)
    latest = root / "latest"
    latest.symlink_to("step-00000040") if link else latest.write_text("step-00000040\n")
    before = content(root)
    context = corrupt(tmp_path, kind=kind)
    after = content(root)
    changed = [name for name in before if before[name] != after.get(name)]
    assert len(changed) == 1 and changed[0].startswith("latest" if "latest" in kind else "step-00000040/")
    ((measured, expected, _, ok),) = context.effects
    assert ok and measured == expected > 0
    for record in context.undos * 2:
        corruption.put_back(tmp_path, **record)
    assert content(root) == before


def test_what_each_kind_leaves(tmp_path: pathlib.Path) -> None:
    def damaged(kind: str) -> tuple[bytes, bytes | None]:
        run_dir = tmp_path / kind
        path = make(run_dir) / "step-00000040" / "__0_0.distcp"
        before = path.read_bytes()
        assert corrupt(run_dir, kind=kind).effects[0][3]
        return before, path.read_bytes() if path.exists() else None

    before, after = damaged("bit_flip")
    assert after is not None and len(after) == len(before)
    assert sum((a ^ b).bit_count() for a, b in zip(before, after, strict=True)) == 1
    before, after = damaged("zero_page")
    assert after is not None and len(after) == len(before)
    wrong = [index for index, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert len({index // 4096 for index in wrong}) == 1
    page = wrong[0] // 4096 * 4096
    assert after[page : page + 4096].strip(b"\0") == b""
    before, after = damaged("truncate")
    assert after is not None and len(after) < len(before) and before.startswith(after)
    assert damaged("empty")[1] == b"" and damaged("missing")[1] is None
    before, after = damaged("mixed_steps")
    assert after == (tmp_path / "mixed_steps/checkpoints/step-00000020/__0_0.distcp").read_bytes() != before


def test_latest_points_where_it_should_not(tmp_path: pathlib.Path) -> None:
    root = make(tmp_path)
    (root / "latest").write_text("step-00000040\n")
    corrupt(tmp_path, kind="stale_latest")
    assert (root / "latest").read_text() == "step-00000020\n"
    (root / "latest").unlink()
    (root / "latest").symlink_to("step-00000040")
    corrupt(tmp_path, kind="dangling_latest", seed=2)
    assert (root / "latest").is_symlink() and not (root / "latest").exists()


def test_a_newer_file_is_never_overwritten(tmp_path: pathlib.Path) -> None:
    """The trainer has noticed, and written the checkpoint again: the old original must not come back."""
    root = make(tmp_path)
    context = corrupt(tmp_path, kind="bit_flip")
    path = root / "step-00000040" / "__0_0.distcp"
    path.write_bytes(b"written again")
    corruption.put_back(tmp_path, **context.undos[0])
    assert path.read_bytes() == b"written again"
    path.unlink()
    corruption.put_back(tmp_path, **context.undos[0])
    assert not path.exists()


def test_a_deleted_checkpoint_does_not_come_back(tmp_path: pathlib.Path) -> None:
    root = make(tmp_path)
    context = corrupt(tmp_path, kind="missing")
    for path in (root / "step-00000040").iterdir():
        path.unlink()
    (root / "step-00000040").rmdir()
    corruption.put_back(tmp_path, **context.undos[0])
    assert not (root / "step-00000040").exists()


def test_what_cannot_be_damaged_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FaultError, match="no finished checkpoint"):
        corrupt(tmp_path)
    make(tmp_path, (20,))
    for kind, message in (
        ("mixed_steps", "two checkpoints"),
        ("stale_latest", "latest"),
        ("dangling_latest", "latest"),
    ):
        with pytest.raises(FaultError, match=message):
            corrupt(tmp_path, kind=kind)
    with pytest.raises(FaultError, match=r"no file '\*.nothing'"):
        corrupt(tmp_path, file="*.nothing")


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
