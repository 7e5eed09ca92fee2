"""The package as people install it: it works outside of the checkout, with nothing of the checkout on its path."""

import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.wheel


def call(*command: object, cwd: pathlib.Path, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "CHAOS_REPORTS", "CHAOS_SCENARIOS")
    }
    return subprocess.run([str(word) for word in command], cwd=cwd, env={**kept, **env}, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Built from the files that git knows, so that nothing left over from another build gets in."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "reports/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", built, ".")
    done = call(sys.executable, *pip, cwd=source)
    assert done.returncode == 0, done.stderr
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def chaos(
    wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The installed command. What it depends on is taken from the environment of the tests, without the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    site = pathlib.Path(
        call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).stdout.strip()
    )
    done = call(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    # A path file would run those of the other environment as well, the one of an editable install among them.
    dependencies = folder / "dependencies"
    dependencies.mkdir()
    for entry in pathlib.Path(sysconfig.get_path("purelib")).iterdir():
        if entry.suffix != ".pth" and "editable" not in entry.name and not entry.name.startswith("chaos_harness"):
            (dependencies / entry.name).symlink_to(entry)
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    work = folder / "work"
    work.mkdir()
    return lambda *words, **env: call(folder / "venv" / "bin" / "chaos", *words, cwd=work, **env)


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


def test_it_runs_a_scenario_and_keeps_the_report_in_the_working_directory(
    chaos: Callable[..., subprocess.CompletedProcess[str]], tmp_path: pathlib.Path
) -> None:
    text = (ROOT / "scenarios" / "rank-kill.yaml").read_text()
    lighter = {
        "steps: 200": "args: [--layers, '1', --width, '64', --context, '32']\n  restore_drill: false\n  steps: 60",
        "step: 90": "step: 30",
        "by_faults: 40": "by_faults: 90",
        "expect:": "expect:\n  pace: {max_slowdown: 10}",
    }
    for shipped, fewer in lighter.items():
        assert shipped in text
        text = text.replace(shipped, fewer, 1)
    (tmp_path / "few.yaml").write_text(text.replace("name: rank-kill", "name: few"))
    done = chaos("run", tmp_path / "few.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    listed = json.loads(chaos("runs", "--json").stdout)
    assert [(run["scenario"], run["verdict"]) for run in listed] == [("few", "pass")]
    shown = chaos("show", "last")
    assert shown.returncode == 0 and "PASS" in shown.stdout, shown.stderr
    again = chaos("score", "last")
    assert again.returncode == 0 and "PASS" in again.stdout, again.stderr
