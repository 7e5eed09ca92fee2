"""A release: what it is refused over, two builds with the same bytes, and the tag."""

import pathlib
import shutil
import subprocess
import sys
import tarfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.0.0rc1] - 2026-11-29\n\n- all of it\n"
SETUP = "import setuptools, time; setuptools.setup(description={description})\n"


def call(folder: pathlib.Path, *words: str) -> tuple[int, str]:
    env = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "GIT_CONFIG_GLOBAL": str(folder.parent / "git")}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=env)
    return done.returncode, done.stdout + done.stderr


def commit(folder: pathlib.Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)
    assert call(folder, "git", "add", ".")[0] == call(folder, "git", "commit", "--quiet", "--message", "x")[0] == 0


@pytest.fixture
def project(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "git").write_text("[user]\nname = a\nemail = a@example.org\n")
    folder = tmp_path / "project"
    (folder / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "release.sh", folder / "tools")
    (folder / "pyproject.toml").write_text('[project]\nname = "one"\ndynamic = ["description"]\nversion = "1.0.0rc1"\n')
    assert call(folder, "git", "init", "--quiet")[0] == 0
    commit(folder, CHANGELOG_md=CHANGELOG, setup_py=SETUP.format(description="'one'"), _gitignore="/dist\n")
    return folder


def test_a_commit_is_tagged_once_and_ready_for_that_tag_alone(project: pathlib.Path) -> None:
    assert call(project, "tools/release.sh", "tag")[0] == 0
    assert call(project, "git", "cat-file", "-t", "v1.0.0rc1") == (0, "tag\n"), "it is annotated"
    assert "the tag v1.0.0rc1 exists" in call(project, "tools/release.sh", "tag")[1]
    assert call(project, "tools/release.sh", "ready", "v1.0.0rc1") == (0, "")
    assert "pyproject.toml has version 1.0.0rc1" in call(project, "tools/release.sh", "ready", "v1.0.0")[1]


@pytest.mark.parametrize(
    ("changelog", "said"),
    [
        (CHANGELOG.replace("rc1", "rc2"), "no section [1.0.0rc1] with a date"),
        (CHANGELOG.replace(" - 2026-11-29", ""), "no section [1.0.0rc1] with a date"),
        (CHANGELOG.replace("## [1", "- more\n\n## [1"), "lines under [Unreleased]"),
    ],
)
def test_a_changelog_that_does_not_fit_is_refused(project: pathlib.Path, changelog: str, said: str) -> None:
    commit(project, CHANGELOG_md=changelog)
    code, told = call(project, "tools/release.sh", "tag")
    assert code == 1 and said in told and call(project, "git", "tag") == (0, "")


def test_two_builds_must_have_the_same_bytes(project: pathlib.Path) -> None:
    code, told = call(project, "tools/release.sh", "build")
    assert code == 0, told
    (archive,) = (project / "dist").glob("*.tar.gz")
    assert len(list((project / "dist").glob("*.whl"))) == 1
    with tarfile.open(archive) as files:
        assert {(each.uid, each.mtime) for each in files} == {(0, int(call(project, "git", "log", "--format=%ct")[1]))}
    commit(project, setup_py=SETUP.format(description="str(time.time_ns())"))
    code, told = call(project, "tools/release.sh", "build")
    assert code == 1 and "two builds of one commit differ" in told
    (project / "more").touch()
    assert "not committed" in call(project, "tools/release.sh", "tag")[1]
