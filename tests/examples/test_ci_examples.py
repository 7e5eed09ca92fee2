"""The CI examples: they can be read, every command in them exists with its options, and the scripts do what they say."""

import os
import pathlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import yaml

from harness.cli import main

CI = pathlib.Path(__file__).resolve().parents[2] / "examples" / "ci"
VALUES = {"SUITE": "ci/suites/mine.yaml", "BASELINE": "ci/baseline.json", "CI_NODE_INDEX": "2", "CI_NODE_TOTAL": "4"}
VALUES["GITHUB_STEP_SUMMARY"] = "summary.md"


def read(name: str) -> list[Any]:
    return [each for each in yaml.safe_load_all((CI / name).read_text()) if each]


def steps(tree: Any) -> Iterator[str]:
    """Every shell command anywhere in a pipeline."""
    if isinstance(tree, dict):
        yield from (tree["run"].splitlines() if isinstance(tree.get("run"), str) else ())
        yield from tree["script"] if isinstance(tree.get("script"), list) else ()
        for value in tree.values():
            yield from steps(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from steps(value)


def words(command: str) -> list[str]:
    """With the variables of the pipeline in it."""
    command = re.sub(r"\$\{\{ matrix\.shard \}\}", "2", command)
    command = re.sub(r"\$\{?([A-Z_]+)\}?", lambda found: VALUES[found[1]], command)
    return shlex.split(command)


def parses(arguments: list[str]) -> Any:
    """The command line as `chaos` reads it; nothing is run. Raises what an unknown command or option raises."""
    app: Any = typer.main.get_command(main.make_app())
    command = app.commands[arguments[0]]
    with command.make_context(arguments[0], arguments[1:]) as context:
        return context.params


def test_every_example_is_in_the_table() -> None:
    table = (CI / "README.md").read_text()
    for path in CI.iterdir():
        assert path.name == "README.md" or f"]({path.name})" in table, path.name


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_every_command_of_a_pipeline_exists(name: str) -> None:
    (pipeline,) = read(name)
    found = [words(step) for step in steps(pipeline) if step.startswith("chaos ")]
    assert {each[1] for each in found} == {"doctor", "gate"}
    told = [parses(each[1:]) for each in found]
    assert [each["shard"] for each in told if each.get("shard")] == ["2/4"]
    (merged,) = [each for each in told if "shards" in each]
    assert merged["against"] == "ci/baseline.json" and merged["shards"]
    assert {each["suite"] for each in told if each.get("suite")} == {"ci/suites/mine.yaml"}
    text = (CI / name).read_text()
    assert len(re.findall(r"SUITE", text)) == 2, "a suite may be a path, of which no folder is named"


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml", "slurm-pre-job.sh", "kubernetes-cronjob.yaml"])
def test_no_answer_is_swallowed(name: str) -> None:
    for line in (CI / name).read_text().splitlines():
        assert "|| true" not in line and "continue-on-error" not in line, line


def test_the_last_job_waits_for_every_shard_and_decides() -> None:
    (github,), (gitlab,) = read("github-actions.yml"), read("gitlab-ci.yml")
    assert github["jobs"]["answer"]["needs"] == "shard" and github["jobs"]["answer"]["if"] == "always()"
    assert github["jobs"]["shard"]["strategy"]["fail-fast"] is False
    assert gitlab["shard"]["allow_failure"] is True and "allow_failure" not in gitlab["answer"]
    assert gitlab["stages"].index("answer") > gitlab["stages"].index("gate")


def test_the_cronjob_runs_a_gate_once_and_alone() -> None:
    claim, job = read("kubernetes-cronjob.yaml")
    assert [each["kind"] for each in (claim, job)] == ["PersistentVolumeClaim", "CronJob"]
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    rights = CI.parents[1] / "harness" / "backends" / "kubernetes" / "rbac.yaml"
    accounts = [
        each["metadata"]["name"] for each in yaml.safe_load_all(rights.read_text()) if each["kind"] == "ServiceAccount"
    ]
    (container,) = pod["containers"]
    told = parses(container["args"])
    assert container["command"] == ["chaos"] and told["backend"] == "kubernetes" and told["against"] == "last-week"
    assert job["spec"]["concurrencyPolicy"] == "Forbid" and job["spec"]["jobTemplate"]["spec"]["backoffLimit"] == 0
    assert pod["restartPolicy"] == "Never" and pod["serviceAccountName"] in accounts
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


@pytest.fixture
def queue(tmp_path: pathlib.Path) -> pathlib.Path:
    """Stand-ins for Slurm: `srun` runs what stands behind its options, both write down how they were called."""
    (tmp_path / "srun").write_text('#!/bin/bash\necho "srun $*" >> "$CALLS"\nexit "${GATE_ENDS:-0}"\n')
    (tmp_path / "sbatch").write_text('#!/bin/bash\necho "sbatch $*" >> "$CALLS"\n')
    for name in ("srun", "sbatch"):
        (tmp_path / name).chmod(0o755)
    (tmp_path / "train.sbatch").write_text("#!/bin/bash\n")
    return tmp_path


def submit(queue: pathlib.Path, *arguments: str, ends: int = 0) -> tuple[int, str]:
    calls = queue / "calls"
    env = os.environ | {"PATH": f"{queue}:{os.environ['PATH']}", "CALLS": str(calls), "GATE_ENDS": str(ends)}
    done = subprocess.run([CI / "slurm-pre-job.sh", *arguments], env=env, capture_output=True, text=True)
    return done.returncode, calls.read_text() if calls.exists() else ""


def test_a_green_gate_submits_the_training(queue: pathlib.Path) -> None:
    code, calls = submit(queue, "last-week", str(queue / "train.sbatch"), "--qos=high")
    gate, training = calls.splitlines()
    assert code == 0 and training == f"sbatch --qos=high {queue / 'train.sbatch'}"
    arguments = shlex.split(gate.partition(" chaos ")[2])
    told = parses(arguments)
    assert told["suite"] == "pre-launch" and told["against"] == "last-week" and told["repeat"] == 5


@pytest.mark.parametrize("ends", [1, 2, 3, 4, 130, 137])
def test_anything_else_does_not(queue: pathlib.Path, ends: int) -> None:
    code, calls = submit(queue, "last-week", str(queue / "train.sbatch"), ends=ends)
    assert code == ends and "sbatch" not in calls


@pytest.mark.parametrize("arguments", [[], ["last-week"], ["last-week", "nowhere.sbatch"]])
def test_a_wrong_call_runs_nothing(queue: pathlib.Path, arguments: list[str]) -> None:
    assert submit(queue, *arguments) == (2, "")
