"""The CI examples: they can be read, every command in them exists with its options, and the scripts do what they say."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import sysconfig
import tomllib
from typing import Any

import action_steps
import pytest
import typer
import yaml

from harness.cli import main

ROOT = pathlib.Path(__file__).resolve().parents[2]
CI = ROOT / "examples" / "ci"
VALUES: dict[str, Any] = {"suite": "ci/suites/mine.yaml", "against": "ci/baseline.json", "harness": "x.whl"}
VALUES |= {"stage": "gate", "repeat": 5, "shards": 4, "image": "i", "CI_NODE_INDEX": 2, "CI_NODE_TOTAL": 4}


def read(name: str) -> list[Any]:
    return [each for each in yaml.safe_load_all((CI / name).read_text()) if each]


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


ANSWERS = [f"examples/ci/{path.name}" for path in CI.glob("*.*") if path.suffix != ".md"]
ANSWERS += ["action.yml", "templates/chaos-gate.yml"]


@pytest.mark.parametrize("name", ANSWERS)
def test_no_answer_is_swallowed(name: str) -> None:
    for line in (ROOT / name).read_text().splitlines():
        assert "|| true" not in line and "continue-on-error" not in line, line


@pytest.mark.parametrize(
    "name", [*ANSWERS, "README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_nobody_is_sent_to_a_package_index_and_every_version_is_this_one(name: str) -> None:
    """Whoever took the name there could run code with who follows the page."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    text = (ROOT / name).read_text()
    bare = r"""install (?:-\S+ )*['"]?chaos[-_]harness(?:\[\w+\])?(?!['"]? *@)(?![-\w/.\[])"""
    assert not re.search(bare, text)
    assert {*re.findall(r"chaos[-_](?:harness|node|gate)(?:\.git)?[-@:]v?(\d[^-'\"\s,`]*)", text)} <= {version}


@pytest.fixture
def stand_in(tmp_path: pathlib.Path) -> pathlib.Path:
    """Programs in front of a job's: pip installs nothing, and `chaos gate` answers with GATE and ends with ENDS."""
    (tmp_path / "bin").mkdir()
    answer = (
        'mkdir -p reports/g && echo "$GATE" >reports/g/suite.json && echo done >>"$GITHUB_STEP_SUMMARY"; exit $ENDS'
    )
    texts = {"python": f'[ "$2" = pip ] || exec {sys.executable} "$@"', "chaos": f"[ $1 = gate ] || exit 0; {answer}"}
    for name, text in texts.items():
        (tmp_path / "bin" / name).write_text(f'#!/bin/bash\necho "{name} $*" >>"$RUNNER_TEMP/calls"\n{text}\n')
        (tmp_path / "bin" / name).chmod(0o755)
    work = tmp_path / "work"
    (work / "ci").mkdir(parents=True)
    (work / "ci" / "a,b.yaml").write_text("version: 1\nname: mine\n")
    for words in ("init --quiet", "add ."):
        subprocess.run(["git", *words.split()], cwd=work, check=True)
    return tmp_path


@pytest.mark.parametrize(("verdict", "ends", "level"), [("fail", 1, "error"), ("inconclusive", 3, "warning")])
def test_a_red_gate_fails_the_action_and_is_told_on_the_scenario(
    stand_in: pathlib.Path, monkeypatch: pytest.MonkeyPatch, verdict: str, ends: int, level: str
) -> None:
    mine = {"scenario": "mine", "verdict": verdict, "reasons": ["50 % lost\nhere"]}
    rows = [mine, {"scenario": "o", "verdict": "pass"}]
    monkeypatch.setenv("GATE", json.dumps({"verdict": verdict, "scenarios": rows}))
    monkeypatch.setenv("ENDS", str(ends))
    asked = {"suite": "ci/suites/mine.yaml", "repeat": "5", "shard": "2/4", "arguments": "--budget 30m --fail-fast"}
    job = action_steps.run(stand_in / "work", stand_in, stand_in / "bin", asked)
    assert job.code == ends and job.outputs == f"verdict={verdict}\n" and job.summary == "done\n"
    assert job.out == f"::{level} file=ci/a%2Cb.yaml,line=2,title=mine%3A {verdict}::50 %25 lost%0Ahere\n"
    assert [*job.used] == ["actions/setup-python", "actions/cache", "actions/upload-artifact"]
    install, doctor, gate, _ = (stand_in / "calls").read_text().splitlines()
    assert install.endswith(f"{ROOT}[trainer]") and doctor == "chaos doctor"
    told = parses(shlex.split(gate)[1:])
    assert all(str(told[name]) == asked[name] for name in ("suite", "repeat", "shard"))
    assert told["budget"] == "30m" and told["fail_fast"] and str(told["summary"]) == str(stand_in / "summary")


def test_a_merge_that_gave_no_answer_tells_none_of_a_shard(
    stand_in: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (stand_in / "work" / "shards" / name).mkdir(parents=True)
        (stand_in / "work" / "shards" / name / "suite.json").write_text('{"verdict": "pass", "scenarios": []}')
    chaos = stand_in / "bin" / "chaos"
    chaos.write_text(chaos.read_text().partition("\n[")[0] + "\nexit 2\n")
    given = {"merge": "shards", "reports": "shards", "against": "ci/baseline.json", "extras": "", "artifact": ""}
    job = action_steps.run(stand_in / "work", stand_in, stand_in / "bin", given)
    assert (job.code, job.outputs, [*job.used]) == (2, "verdict=\n", ["actions/setup-python"])
    told = parses(shlex.split((stand_in / "calls").read_text().splitlines()[1])[1:])
    assert told["shards"] == ["shards/one/suite.json", "shards/two/suite.json"]
    assert told["against"] == "ci/baseline.json"


def test_the_workflow_uses_the_action_and_its_last_job_decides() -> None:
    (github,) = read("github-actions.yml")
    shard, answer = github["jobs"]["shard"], github["jobs"]["answer"]
    for job in (shard, answer):
        assert {*job["steps"][-1]["with"]} <= {*action_steps.ACTION["inputs"]}
    assert answer["needs"] == "shard" and answer["if"] == "always()" and shard["strategy"]["fail-fast"] is False


def test_every_command_of_the_component_exists_and_its_last_job_decides() -> None:
    head, body = (ROOT / "templates" / "chaos-gate.yml").read_text().split("\n---\n")
    declared = yaml.safe_load(head)["spec"]["inputs"]
    (include,) = read("gitlab-ci.yml")[0]["include"]
    required = {name for name, each in declared.items() if "default" not in each}
    assert required <= {*include["inputs"]} <= {*declared} <= {*VALUES}
    filled = re.sub(r"\$\[\[ inputs\.(\w+) \]\]|\$(CI_NODE_\w+)", lambda found: str(VALUES[found[1] or found[2]]), body)
    jobs = yaml.safe_load(filled)
    called = [shlex.split(line) for job in jobs.values() for line in job["script"] if line.startswith("chaos ")]
    doctor, shard, merged = (parses(each[1:]) for each in called)
    assert (shard["shard"], shard["suite"], shard["repeat"]) == ("2/4", "ci/suites/mine.yaml", 5) and doctor is not None
    assert merged["against"] == "ci/baseline.json" and merged["shards"]
    assert jobs["chaos-shard"]["allow_failure"] is True and "allow_failure" not in jobs["chaos-gate"]
    assert jobs["chaos-gate"]["needs"] == ["chaos-shard"]


def helm(*words: str | pathlib.Path) -> str:
    program = pathlib.Path(sysconfig.get_path("scripts"), "helm")
    if not program.exists():
        pytest.skip("helm: no wheel of it for this machine")
    return subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout


def test_the_chart_makes_the_plain_manifest_whose_gate_runs_once() -> None:
    (job,) = read("kubernetes-job.yaml")
    helm("lint", "--strict", CI / "chart")
    assert yaml.safe_load(helm("template", "chaos-gate", CI / "chart")) == job
    assert job["spec"]["backoffLimit"] == 0 and job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    told = parses(job["spec"]["template"]["spec"]["containers"][0]["args"])
    assert (told["suite"], told["backend"], told["against"]) == ("pre-launch", "kubernetes", "")


@pytest.mark.parametrize("against", ['a "quoted" one', "back\\slash", "{{ braces }}", "# 1: x"])
def test_a_value_of_the_chart_reaches_the_gate_as_it_is(tmp_path: pathlib.Path, against: str) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"against": against, "repeat": 5}))
    job = yaml.safe_load(helm("template", "chaos-gate", CI / "chart", "--values", values))
    told = parses(job["spec"]["template"]["spec"]["containers"][0]["args"])
    assert (told["against"], told["repeat"]) == (against, 5)


def test_the_cronjob_runs_a_gate_once_and_alone() -> None:
    claim, job = read("kubernetes-cronjob.yaml")
    assert [each["kind"] for each in (claim, job)] == ["PersistentVolumeClaim", "CronJob"]
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    rights = CI.parents[1] / "harness" / "backends" / "kubernetes" / "rbac.yaml"
    given = [(each["kind"], each["metadata"]["name"]) for each in yaml.safe_load_all(rights.read_text())]
    (container,) = pod["containers"]
    told = parses(container["args"])
    assert container["command"] == ["chaos"] and told["backend"] == "kubernetes" and told["against"] == "last-week"
    assert job["spec"]["concurrencyPolicy"] == "Forbid" and job["spec"]["jobTemplate"]["spec"]["backoffLimit"] == 0
    assert pod["restartPolicy"] == "Never" and ("ServiceAccount", pod["serviceAccountName"]) in given
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
