"""A first look changes nothing of the user's: it works in a copy of a bounded size, or refuses before it starts."""

import os
import pathlib
import sys

import pytest

from harness.adopt import copying
from harness.adopt.init_command import init
from harness.errors import UsageError


@pytest.fixture(autouse=True)
def mine(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder where somebody trains, with their checkpoint, a link to one elsewhere, and an environment."""
    mine = tmp_path / "mine"
    (mine / "package").mkdir(parents=True)
    (mine / "train.py").write_text("import torch\n")
    (mine / "package" / "model.py").write_text("x = 1\n")
    (mine / "ckpt.pt").write_text("three weeks of training")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "best.pt").write_text("the best one")
    (mine / "shared").symlink_to("../shared")
    (mine / ".venv").mkdir()
    (mine / ".venv" / "pyvenv.cfg").touch()
    (mine / ".git").mkdir()
    (mine / "reports").mkdir()
    os.mkfifo(mine / "pipe")
    (mine / "gone").symlink_to("nowhere")
    (mine / "package" / "round").symlink_to("..")
    monkeypatch.chdir(mine)
    return mine


def test_what_is_written_in_the_copy_reaches_nothing_of_the_users(mine: pathlib.Path) -> None:
    with copying.working_in_copy(mine / "reports") as copy:
        assert pathlib.Path.cwd() == copy
        assert sorted(os.listdir()) == [".venv", "ckpt.pt", "package", "shared", "train.py"]
        assert os.listdir("package") == ["model.py"], "no link leads nowhere or in a circle"
        assert os.path.samefile(".venv", mine / ".venv"), "an environment is not copied: it may be large"
        for path in ("ckpt.pt", "shared/best.pt", "package/model.py", "train.py"):
            assert pathlib.Path(path).read_text() == (mine / path).read_text()
            pathlib.Path(path).write_text("overwritten")
        for path in ("train.py", "new.pt"):
            assert copying.original(str(copy / path), copy, mine) == str(mine / path)
        assert copying.original("/elsewhere/a.pt", copy, mine) == "/elsewhere/a.pt"
    assert pathlib.Path.cwd() == mine and not copy.exists() and os.listdir(mine / "reports") == []
    assert (mine / "ckpt.pt").read_text() == "three weeks of training"
    assert (mine / "shared" / "best.pt").read_text() == "the best one"


@pytest.mark.parametrize(
    ("word", "as_moved"),
    [
        ("/a/b", "/c"),
        ("/a/b/out", "/c/out"),
        ("--out=/a/b/out", "--out=/c/out"),
        *[(s, s) for s in ("/a/bc", "/x/a/b")],
    ],
)
def test_whole_paths_in_the_folder_are_those_of_the_copy(word: str, as_moved: str) -> None:
    assert copying.moved(word, pathlib.Path("/a/b"), pathlib.Path("/c")) == as_moved


def test_a_large_folder_is_refused_before_anything_starts(mine: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (mine / "big.pt").open("wb") as file:
        file.truncate(40 * 2**30)
    before = sorted(mine.rglob("*"))
    with pytest.raises(UsageError, match=r"40.0 GiB.*at most 2.0 GiB.*big\.pt"):
        init([sys.executable, "train.py"], folder=mine / "chaos", reports=mine / "reports")
    assert sorted(mine.rglob("*")) == before
    (mine / "big.pt").unlink()
    monkeypatch.setattr(copying, "FILES_MAX", 3)
    with pytest.raises(UsageError, match="more than 3 files"), copying.working_in_copy(mine / "reports"):
        pass
    assert os.listdir(mine / "reports") == []
