"""The Python API: runs scenarios and gates (scenario suites), and loads stored results. docs/python.md describes the
API.

    from harness.api import run

    assert run("chaos/rank-kill.yaml").passed

Each call runs the command `chaos` in a process of its own, so that all faults are undone even if the test is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import INTERRUPTED, BackendError, CannotRunError, ChaosError, UsageError
from harness.report import run_report
from harness.report.run_report import Report

__tracebackhide__ = True  # pytest shows the line of the test that a mistake is in, and none of this file
VERDICTS = (0, 1, 3)  # exit codes of a command that came to a verdict
STOPS_WITHIN_S = 120.0  # a stopped run heals what it did, and judges
Path = str | os.PathLike[str]


class _Judged:
    """The base class of the results of runs and gates. The `repr` of a result is short, because pytest cuts a long
    `repr`."""

    verdict: str
    folder: pathlib.Path

    def __repr__(self) -> str:
        return f"<{self.verdict}: {self.folder.name}>"

    @property
    def passed(self) -> bool:
        return self.verdict == "pass"

    @property
    def page(self) -> pathlib.Path:
        return self.folder / "report.html"


@dataclass(frozen=True, repr=False)
class Result(_Judged):
    """The result of one run of a scenario, with its verdict. `verdict` is pass, fail, inconclusive or invalid; `folder`
    holds all evidence of the run. With `repeat` above 1, `verdict` is the verdict on all repeats together, and `report`
    and `folder` belong to the last run."""

    verdict: str
    reasons: tuple[str, ...]
    folder: pathlib.Path
    report: Report


@dataclass(frozen=True, repr=False)
class GateResult(_Judged):
    """The result of a gate: a suite of scenarios with one verdict. `scenarios` maps the name of each scenario to its
    verdict; `values` is the content of suite.json."""

    verdict: str
    reason: str
    folder: pathlib.Path
    scenarios: Mapping[str, str]
    values: Mapping[str, Any]


def run(
    scenario: Path | Mapping[str, Any],
    *,
    command: Sequence[str] = (),
    backend: str = "local",
    seed: int = 1,
    profile: str = "",
    repeat: int = 0,
    labels: Mapping[str, str] | None = None,
    reports: Path = "reports",
    timeout_s: float | None = None,
) -> Result:
    """Runs a scenario and judges the run. `scenario` is a name from `chaos list`, the path of a scenario file, or the
    content of a scenario file.

    If `command` is given, the faults are injected into the job that this command starts, not into the scenario's own
    workload. After `timeout_s` seconds, the run is stopped and its faults are undone. Raises `UsageError` for a wrong
    argument or scenario, `CannotRunError` if this machine cannot run the scenario, and `ChaosError` for any other end
    without a verdict.
    """
    folder = pathlib.Path(reports).resolve()
    if command or isinstance(scenario, Mapping):
        scenario = _written(scenario, command, folder)
    words = ["run", os.fspath(scenario), "--backend", backend, "--seed", str(seed)]
    words += ["--profile", profile] if profile else []
    words += ["--repeat", str(repeat)] if repeat else []
    words += [word for key, value in (labels or {}).items() for word in ("--label", f"{key}={value}")]
    told = json.loads(_called([*words, "--json", "--reports", str(folder)], timeout_s))
    if not told["runs"]:
        raise ChaosError("the command ended with a verdict and without a run")
    last = load(told["runs"][-1]["folder"])
    return Result(told["verdict"], tuple(told["reasons"]), last.folder, last.report)


def gate(
    suite: Path,
    *,
    against: str = "",
    backend: str = "local",
    seed: int = 1,
    repeat: int = 0,
    reports: Path = "reports",
    timeout_s: float | None = None,
) -> GateResult:
    """Runs a suite of scenarios and gives one verdict. `suite` is the name of a shipped suite or the path of a suite
    file. Raises the same errors as `run`."""
    folder = pathlib.Path(reports).resolve()
    words = ["gate", os.fspath(suite), "--backend", backend, "--seed", str(seed)]
    words += ["--against", against] if against else []
    words += ["--repeat", str(repeat)] if repeat else []
    told = json.loads(_called([*words, "--json", "--reports", str(folder)], timeout_s))
    scenarios = {row["name"]: row["verdict"] for row in told["scenarios"]}
    return GateResult(told["verdict"], told["reason"], folder / told["run_id"], scenarios, told)


def load(folder: Path) -> Result:
    """Loads a stored run from its report.json, without judging it again. Raises `ChaosError` if the report cannot be
    read."""
    place = pathlib.Path(folder)
    report = run_report.read(place / "report.json")
    return Result(report.verdict.value, report.reasons, place, report)


def score(folder: Path) -> Result:
    """Judges a stored run again, as `chaos score` does, and writes its reports again. Raises the same errors as
    `run`."""
    _called(["score", os.fspath(folder)], None)
    return load(folder)


def bend(
    folder: Path, change: Callable[[dict[str, Any]], object], event: str = "", logs: str = "events/**/*.jsonl"
) -> None:
    """Edits the log of a copied run, so that a test can see how a guarantee judges the changed log. The function
    `change` gets each log line whose event has the name `event`, as a dict, and edits the dict in place. If `change`
    empties the dict by `line.clear()`, the log line is removed, and the later lines get new numbers. Without `event`,
    `change` gets every log line. The first line of a log file (the header) has no `event`, but has the `rank`, `node`
    and `incarnation` of the process that wrote the file. Log files are edited in the order of their names. The folder
    of a node has one log file for each process, the earliest process first."""
    for path in sorted(pathlib.Path(folder).glob(logs)):
        lines = path.read_bytes().splitlines(keepends=True)
        cut = [lines.pop()] if lines and lines[-1][-1:] != b"\n" else []  # a killed process may leave such a line
        told, removed = [json.loads(line) for line in lines], 0
        for line in told:
            if event in ("", line.get("event")):
                change(line)
            removed += not line
            if "line" in line:
                line["line"] -= removed
        path.write_bytes(b"".join([*(json.dumps(line).encode() + b"\n" for line in told if line), *cut]))


def delay(folder: Path, after_ns: int, by_ns: int) -> None:
    """Delays all later events in the log of a copied run, as if the job had paused for `by_ns` at the time `after_ns`.
    The times `mono_ns`, `wall_ns` and `begin_ns` change in all logs, but durations, such as `sync_ns`, do not.
    `after_ns` is a time on the monotonic clock, as in `mono_ns`. All logs of the run must have the same monotonic
    clock, as on a single host."""

    def later(line: dict[str, Any]) -> None:
        at = {"mono_ns": line["mono_ns"], "wall_ns": line["mono_ns"], "begin_ns": line.get("begin_ns") or 0}
        line.update((key, line[key] + by_ns) for key, moment in at.items() if line.get(key) and moment > after_ns)

    bend(folder, later)


def _written(scenario: Path | Mapping[str, Any], command: Sequence[str], reports: pathlib.Path) -> pathlib.Path:
    import yaml

    from harness.adopt.proposal import workload_of
    from harness.adopt.recognise import recognise
    from harness.cli import default_folders
    from harness.spec.scenario import find_scenario

    if isinstance(scenario, Mapping):
        content = dict(scenario)
    else:
        content = yaml.safe_load(find_scenario(os.fspath(scenario), default_folders.scenarios()).read_text())
    folder = reports / "scenarios"
    folder.mkdir(parents=True, exist_ok=True)
    if command:
        found = recognise(command)
        content["workload"] = workload_of(found, folder, found.ranks)
        content.pop("profiles", None)  # they are of the other workload
    path = folder / f"{content.get('name', 'scenario')}-{os.getpid()}.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def _called(words: Sequence[str], timeout_s: float | None) -> str:
    command = [sys.executable, "-m", "harness", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _stop(process)
            raise ChaosError(f"chaos {' '.join(words)} was stopped after {timeout_s:g} s") from None
        except BaseException:  # such as the user's ^C, or the end of a test
            _stop(process)
            raise
    if process.returncode in VERDICTS and out:
        return out
    message = err.strip().removeprefix("error: ") or f"exit code {process.returncode}"
    if process.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    kinds = {UsageError.exit_code: UsageError, CannotRunError.exit_code: CannotRunError, 3: BackendError}
    raise kinds.get(process.returncode, ChaosError)(message)


def _stop(process: subprocess.Popen[str]) -> None:
    """Asks a `chaos` command to undo its faults and to end. If the command does not end in time, it is killed, and its
    reverter (a separate process) undoes the faults."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=STOPS_WITHIN_S)
        return
    process.kill()
    process.communicate()
