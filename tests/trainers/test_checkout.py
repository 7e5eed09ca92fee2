"""The commit of the project under test, told cheaply and without running anything of it."""

import pathlib
import subprocess

import pytest

from harness.trainers.shared import checkout
from harness.trainers.shared.checkout import commit_of


def git(folder: pathlib.Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def project(tmp_path: pathlib.Path) -> pathlib.Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "train.py").write_text("pass\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def test_the_commit_and_whether_files_changed_since(project: pathlib.Path) -> None:
    commit = git(project, "rev-parse", "HEAD")
    assert commit_of(project) == commit
    (project / "untracked").write_text("x")
    assert commit_of(project) == commit
    (project / "train.py").write_text("raise\n")
    assert commit_of(project) == f"{commit}-dirty"


def test_outside_of_a_checkout_there_is_none(tmp_path: pathlib.Path) -> None:
    assert commit_of(tmp_path) is None
    git(tmp_path, "init", "--quiet")
    assert commit_of(tmp_path) is None, "no commit yet"


def test_without_git_or_with_a_slow_one_there_is_none(project: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = commit_of(project)
    monkeypatch.setattr(checkout, "LIMIT_S", 1e-9)
    assert commit and commit_of(project) is None
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/nowhere")
    assert commit_of(project) is None


def test_nothing_of_the_checkout_is_run(project: pathlib.Path) -> None:
    trap = project / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {project}/sprung\n")
    trap.chmod(0o755)
    for setting in ("core.fsmonitor", "core.pager", "diff.external"):
        git(project, "config", setting, str(trap))
    assert commit_of(project)
    assert not (project / "sprung").exists()
