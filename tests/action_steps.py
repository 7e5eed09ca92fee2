"""The steps of action.yml, read from that file and run in order by bash, as GitHub's runner does. A step that `uses:`
another action (set-up of Python, cache, upload of artefacts) runs nothing here: its inputs are handed back."""

import os
import pathlib
import re
import subprocess
from dataclasses import dataclass, field
from typing import Any

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())


@dataclass
class Job:
    code: int = 0  # of the first step that failed
    out: str = ""
    used: dict[str, Any] = field(default_factory=dict)  # by the name of the other action: what it was given
    outputs: str = ""
    summary: str = ""


def run(
    work: pathlib.Path, temp: pathlib.Path, path: pathlib.Path, given: dict[str, str], action: pathlib.Path = ROOT
) -> Job:
    """A job of this one action in `work`. `path` has the programs that stand in front of this machine's."""
    inputs = {name: each["default"] for name, each in ACTION["inputs"].items()} | given
    known = {f"inputs.{name}": value for name, value in inputs.items()}
    known |= {"runner.temp": str(temp), "runner.os": "Linux", "strategy.job-index": "0", "github.run_id": "7"}

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found: known[found[1]], text)

    def wanted(condition: str, failed: bool) -> bool:
        words = re.sub(r"inputs\.[\w-]+", lambda found: repr(known[found[0]]), condition).replace("&&", "and")
        return bool(eval(words, {"always": lambda: True})) and ("always()" in condition or not failed)

    job, output, summary = Job(), temp / "output", temp / "summary"
    runner: dict[str, object] = {
        "GITHUB_ACTION_PATH": action,
        "GITHUB_OUTPUT": output,
        "GITHUB_STEP_SUMMARY": summary,
        "RUNNER_TEMP": temp,
    }
    runner["PATH"] = f"{path}:{os.environ['PATH']}"
    for step in ACTION["runs"]["steps"]:
        if not wanted(step.get("if", "True"), bool(job.code)):
            continue
        if "uses" in step:
            job.used[step["uses"].partition("@")[0]] = {name: filled(text) for name, text in step["with"].items()}
            continue
        script = temp / "step.sh"
        script.write_text(step["run"])
        env = os.environ | {name: str(value) for name, value in runner.items()}
        env |= {name: filled(text) for name, text in step.get("env", {}).items()}
        called = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
        done = subprocess.run(called, cwd=work, env=env, capture_output=True, text=True)
        job.code, job.out = job.code or done.returncode, f"{job.out}{done.stdout}{done.stderr}"
    job.outputs, job.summary = (file.read_text() if file.exists() else "" for file in (output, summary))
    return job
