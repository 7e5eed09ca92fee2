"""What names the process that made it: found when that one is gone, and left alone in any doubt."""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
from unittest.mock import Mock

import pytest

from harness.node import owner_names, processes

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAKES = """
import os, sys
from harness.node import owner_names
with owner_names.temporary_folder() as folder:
    (folder / "file").write_text("x")
    print(folder, owner_names.new_name("probe"), flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def killed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> tuple[pathlib.Path, str]:
    """The folder and a name of a process that was killed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", MAKES], env=env, capture_output=True, text=True)
    folder, name = done.stdout.split()
    return pathlib.Path(folder), name


def test_what_a_killed_process_leaves_is_swept_and_nothing_else(killed: tuple[pathlib.Path, str]) -> None:
    folder, name = killed
    assert (folder / "file").exists() and owner_names.is_over(name, "probe")
    others = [folder.with_name(each) for each in ("chaos-tmp-mine", "chaos-tmp-folder-1-2-3-4-5-6", "other")]
    for other in others:
        other.mkdir()
    with owner_names.temporary_folder() as living:
        assert owner_names.sweep_folders() == ([f"folder {folder}"], [])
        assert living.exists() and not folder.exists() and all(other.exists() for other in others)
    assert not living.exists()


def test_what_cannot_be_swept_is_said_and_no_link_is_followed(
    killed: tuple[pathlib.Path, str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = killed
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", Mock(side_effect=PermissionError(1, "Operation not permitted")))
        found, problems = owner_names.sweep_folders()
    assert found == [] and len(problems) == 1 and str(folder) in problems[0]
    (tmp_path / "precious").mkdir()
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "precious")
    assert owner_names.sweep_folders() == ([], [])
    assert (tmp_path / "precious").exists()


def test_a_name_of_a_living_process_or_of_another_machine_is_not_over_before_its_time() -> None:
    mine = owner_names.new_name("probe")
    kind, since, boot, *rest = mine.split("-")
    elsewhere = "-".join([kind, since, "00000000" if boot != "00000000" else "11111111", *rest])
    assert not owner_names.is_over(mine, "probe") and not owner_names.is_over(elsewhere, "probe")
    old = "-".join([kind, str(int(time.time()) - 7200), *elsewhere.split("-")[2:]])
    assert owner_names.is_over(old, "probe") and not owner_names.is_over(old, "probe", by_age=False)
    assert not owner_names.is_over(old, "folder")
    for name in ("", "probe", "probe-0123456789abcdef", "rank-kill-20261122-114304-4e3e", "probe-1-2-3"):
        assert not owner_names.is_over(name, "probe"), "nobody's"


def test_a_process_id_that_is_used_again_is_not_the_owner() -> None:
    namespace, pid, start = processes.owner_text().split("-")
    kind, since, boot, *_ = owner_names.new_name("probe").split("-")
    assert owner_names.is_over(f"{kind}-{since}-{boot}-{namespace}-{pid}-{int(start) - 1}-00000000", "probe")
