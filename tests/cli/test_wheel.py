"""The package as people install it: it works outside of the checkout, with nothing of the checkout on its path."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.wheel


def call(*command: object, cwd: pathlib.Path, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "CHAOS_REPORTS", "CHAOS_SCENARIOS")
    }
    return subprocess.run([str(word) for word in command], cwd=cwd, env={**kept, **env}, capture_output=True, text=True)


def tracked(folder: pathlib.Path) -> pathlib.Path:
    """A commit of the files that git knows, so that nothing left over from another build gets in."""
    listed = call("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for words in ("init --quiet", "add .", "-c user.name=a -c user.email=a@example.org commit --quiet --message x"):
        done = call("git", *words.split(), cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


def environment(folder: pathlib.Path) -> pathlib.Path:
    """The programs of a new one, without the harness. What that depends on, and pip, the environment of the tests has."""
    venv.create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    site = call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).stdout.strip()
    # A path file would run those of the other environment as well, the one of an editable install among them.
    dependencies = folder / "dependencies"
    dependencies.mkdir()
    for entry in pathlib.Path(sysconfig.get_path("purelib")).iterdir():
        if entry.suffix != ".pth" and "editable" not in entry.name and not entry.name.startswith("chaos_harness"):
            (dependencies / entry.name).symlink_to(entry)
    (pathlib.Path(site) / "dependencies.pth").write_text(f"{dependencies}\n")
    return python.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder of a release: it was built twice, with the same bytes."""
    source = tracked(tmp_path_factory.mktemp("source"))
    done = call("tools/release.sh", "build", cwd=source, PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    return source / "dist"


@pytest.fixture(scope="module")
def chaos(
    built: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The installed command."""
    folder = tmp_path_factory.mktemp("installed")
    programs = environment(folder)
    (wheel,) = built.glob("*.whl")
    done = call(programs / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    work = folder / "work"
    work.mkdir()
    return lambda *words, **env: call(programs / "chaos", *words, cwd=work, **env)


def test_the_source_archive_holds_every_file_and_the_wheel_those_of_the_packages(built: pathlib.Path) -> None:
    (archive,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    with tarfile.open(archive) as files:
        held = {name.partition("/")[2] for name in files.getnames()}
    listed = call("git", "ls-files", cwd=built.parent).stdout.splitlines()
    assert {name for name in {*listed} - held if not name.startswith(".")} == set()
    packed = {name.split("/share/chaos-harness/")[-1] for name in zipfile.ZipFile(wheel).namelist()}
    wanted = {name for name in listed if name.startswith(("harness/", "reference_trainer/", "scenarios/"))}
    assert wanted - packed == set() and "harness/py.typed" in wanted <= held


def test_it_is_the_installed_copy_that_runs_with_its_suites(
    chaos: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = chaos("--version")
    assert (done.returncode, done.stdout.split()[:1]) == (0, ["chaos-harness"]), done.stderr
    done = chaos("gate", "no-such-suite")
    assert done.returncode == 2 and "pre-launch" in done.stderr, done.stderr


def test_it_brings_its_scenarios(chaos: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = chaos("list", "--json")
    assert done.returncode == 0, done.stderr
    names = {scenario["name"] for scenario in json.loads(done.stdout)}
    assert names == {path.stem for path in (ROOT / "scenarios").glob("*.yaml")}
    done = chaos("validate", *sorted(names))
    assert done.returncode == 0, done.stderr
    assert str(ROOT) not in done.stdout, "the checkout is not looked at"
    assert done.stdout.count(": ok") == len(names)
