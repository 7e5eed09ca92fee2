"""The commit of the project under test, told cheaply and without running anything of it."""

import pathlib
import subprocess

import pytest

from harness.backends.contract import load_backend
from harness.plan.making import make_plan
from harness.run import provenance
from harness.spec.scenario import parse_scenario
from harness.trainers.shared import checkout
from harness.trainers.shared.checkout import commit_of


def git(folder: pathlib.Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


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


@pytest.mark.parametrize(
    "command",
    [
        ["ENV/bin/python", "CODE/train.py"],
        ["ENV/bin/launch", "--ranks", "2", "CODE/train.py"],
        ["sh", "-c", "ENV/bin/python CODE/train.py --out x"],
        ["bash", "CODE/start.sh"],
        ["ENV/bin/python", "-m", "train"],
    ],
)
def test_the_commit_is_that_of_the_code_and_not_of_what_starts_it(
    command: list[str], project: pathlib.Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interpreter may lie in a checkout of its own, as those of pyenv do."""
    env = tmp_path_factory.mktemp("env")
    (env / "bin").mkdir()
    for name in ("bin/python", "bin/launch", "pyvenv.cfg"):
        (env / name).write_text("#!/bin/sh\n")
        (env / name).chmod(0o755)
    git(env, "init", "--quiet")
    git(env, "add", ".")
    git(env, "commit", "--quiet", "--message", "an interpreter")
    (project / "start.sh").write_text("python train.py\n")
    monkeypatch.chdir(project)
    words = [word.replace("ENV", str(env)).replace("CODE", str(project)) for word in command]
    text = f"{{version: 1, name: x, title: x, workload: {{trainer: {{command: {words}}}}}}}"
    plan = make_plan(parse_scenario(text, "x.yaml"), 1, "local", "run")
    told = provenance.facts(plan, load_backend("local"))
    assert (told["trainer_commit"], told["trainer_diff"]) == (git(project, "rev-parse", "HEAD"), "clean")
