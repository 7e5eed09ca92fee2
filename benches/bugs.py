"""`make bug`: public bugs that the shipped commands find in the released code of other projects.

    python -m benches.bugs                 lists them
    python -m benches.bugs NAME… | all     shows them again: the released code, and its fixed form

A bug is a folder of `examples/bugs/` with `bug.yaml` and `requirements.txt`. `chaos init` looks at the trainer. Then
one shipped command runs, on the released code and on the fixed form. Their answers are kept in docs/track-record.json;
the page is docs/track-record.md.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import yaml
from pydantic import Field, TypeAdapter, model_validator

from benches import environments
from harness.explore.answers import BAD
from harness.parameters import Parameters

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "bugs"
PLACE = ROOT / "reports" / "bugs"
PAGE, KEPT = ROOT / "docs" / "track-record.md", ROOT / "docs" / "track-record.json"
NOT_SHOWN = FOLDER / "not-shown.yaml"
RUN_LIMIT_S = 1500
REASON_MAX = 240  # characters in the table
BUDGET = "2m"  # of a sweep over the released code: one finding is enough
HEAD = ("Bug", "Versions", "When", "Command", "What broke", "Last shown", "Passes with")
INTRODUCTION = """\
# Track record

Real, public bugs in released code, each found by `chaos init` and one shipped command on two CPU cores. No scenario was
written for any of them. Each trainer is a small script after the project's own documentation. A row stands here only if
the command fails on the released code, with the guarantee named here broken, and passes on the fixed form.

`make bug` lists them; `make bug NAME=…` shows one again, in an environment of its own from its locked
`requirements.txt`.
"""
VAIN = "\n## Tried and not shown\n\n"
KINDS = {"schedule": "learning rate", "computed": "losses", "saved": "tensors of a save", "end": "end of the job"}


class Fixed(Parameters):
    """The form that passes: other releases, or a patch of ours for the packages or for the script."""

    pins: dict[str, str] = Field({}, description="Package → the release without the bug.")
    packages: str = Field("", description="A patch for the installed packages.")
    script: str = Field("", description="A patch for the trainer's folder: the project has no other remedy.")
    words: str = Field(min_length=1, description="What it is, for the table.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(map(bool, (self.pins, self.packages, self.script))) != 1:
            raise ValueError("fixed: write one of pins, packages and script")
        return self


class Bug(Parameters):
    """The content of a `bug.yaml`."""

    title: str = Field(description="What goes wrong, in a few words.")
    sources: dict[str, str] = Field(min_length=1, description="`owner/project#number` → its address.")
    shown: tuple[str, ...] = Field(min_length=1, description="Packages whose versions the table names.")
    when: str = Field(description="The condition that shows it.")
    trainer: str = Field(".", description="The folder of the script, seen from here.")
    start: str = Field(description="The command for `chaos init`; $BIN is the environment's folder of programs.")
    look: int = Field(20, description="Steps that `chaos init` watches.")
    command: Literal["matrix resume", "explore checkpoint", "run"]
    options: tuple[str, ...] = ()
    scenario: str = Field("rank-kill", description="One that `chaos init` writes.")
    breaks: str = Field(description="What the command must call broken, by its name in the JSON answer.")
    fixed: Fixed


class NotShown(Parameters):
    """A public bug that no shipped command showed."""

    source: str
    address: str
    why: str


def bugs() -> dict[str, Bug]:
    """Returns each bug by its name. Raises `pydantic.ValidationError` for a wrong file."""
    return {path.parent.name: Bug(**yaml.safe_load(path.read_text())) for path in sorted(FOLDER.glob("*/bug.yaml"))}


def requirements(name: str) -> str:
    return (FOLDER / name / "requirements.txt").read_text()


def versions(name: str, bug: Bug) -> dict[str, str]:
    """Returns the locked version of each package that the table names."""
    return {each: re.findall(rf"^{re.escape(each)}==(\S+)$", requirements(name), re.M)[0] for each in bug.shown}


def digest(name: str, bug: Bug) -> str:
    """Returns a digest of all that a row depends on: its files, and what is done with them."""
    folders = {FOLDER / name, (FOLDER / name / bug.trainer).resolve()}
    files = sorted(path for each in folders for path in each.iterdir() if path.suffix in (".py", ".txt", ".patch"))
    done = bug.model_dump_json(include={"start", "command", "options", "scenario", "breaks"}).encode()
    return hashlib.sha256(b"".join([done, *(path.read_bytes() for path in files)])).hexdigest()[:12]


def broken(command: str, told: Mapping[str, Any]) -> Iterator[str]:
    """Yields what a JSON answer calls broken, with repetitions."""
    match command:
        case "matrix resume":
            yield from (kind for each in told["tried"] if not each["right"] for kind in each["differs"] or ["end"])
        case "explore checkpoint":
            yield from (each["came"] for each in told["states"] if each["came"] in BAD)
        case _:
            yield from (each["name"] for each in told.get("guarantees", ()) if each["state"] == "broken")
            yield from (each["name"] for each in told["expectations"] if each["verdict"] == "fail")


def reason(command: str, told: Mapping[str, Any]) -> str:
    """Returns the first thing that went wrong, in words."""
    if command == "matrix resume":
        wrong = (f"{each['moment']}: {each['result']}" for each in told["tried"] if not each["right"])
        return next(iter([*told["saves_show"], *wrong]), told["why"])
    return str(told.get("why") or next(iter(told.get("reasons", ())), ""))


def show(name: str, bug: Bug) -> dict[str, Any]:
    """Runs the command on the released code and on the fixed form, and returns what both showed."""
    python = environments.environment(requirements(name), PLACE / "environments", name)
    trainer = (FOLDER / name / bug.trainer).resolve()
    place = PLACE / name
    shutil.rmtree(place, ignore_errors=True)
    scenarios = place / "scenarios"
    start = shlex.split(bug.start.replace("$BIN", str(pathlib.Path(python).parent)))
    look = "--folder", scenarios, "--steps", bug.look, "--reports", place / "runs"
    seen = _chaos(trainer, "init", *look, "--", *start)
    path = scenarios / f"{bug.scenario}.yaml"
    if not path.exists():
        sys.exit(f"{name}: chaos init wrote no {path.name}\n{seen.stdout}{seen.stderr}")
    short = ("--budget", BUDGET) if bug.command == "matrix resume" else ()
    released = _play(bug, trainer, place, path, *short)
    if bug.fixed.script:
        copy = shutil.copytree(trainer, place / "script")
        environments.patch(copy, FOLDER / name / bug.fixed.script)
        old, new = (os.path.relpath(each, scenarios) for each in (trainer, copy))
    else:
        old, new = (str(pathlib.Path(each).parent) for each in (python, _fixed_python(name, bug, python)))
    if old not in (text := path.read_text()):
        sys.exit(f"{path}: {old} is not in it, so the fixed form cannot be put in its place")
    path.with_stem("fixed").write_text(text.replace(old, new))
    fixed = _play(bug, trainer, place, path.with_stem("fixed"))
    about = {"files": digest(name, bug), "date": datetime.date.today().isoformat(), "versions": versions(name, bug)}
    return about | {"released": released, "fixed": fixed}


def _fixed_python(name: str, bug: Bug, python: str) -> str:
    if bug.fixed.packages:
        return environments.patched(python, FOLDER / name / bug.fixed.packages)
    text = requirements(name)
    for package, version in bug.fixed.pins.items():
        text = re.sub(rf"^{re.escape(package)}==\S+$", f"{package}=={version}", text, flags=re.M)
    return environments.environment(text, PLACE / "environments", f"{name}, fixed")


def _play(bug: Bug, trainer: pathlib.Path, place: pathlib.Path, scenario: pathlib.Path, *more: str) -> dict[str, Any]:
    print(f"chaos {bug.command} {scenario.name}", flush=True)
    done = _chaos(trainer, *bug.command.split(), scenario, *bug.options, *more, "--json", "--reports", place / "runs")
    try:
        told = json.loads(done.stdout)
    except ValueError:
        sys.exit(f"{scenario}: no answer; exit {done.returncode}\n{done.stdout}{done.stderr}")
    if bug.command == "run":  # the answer names the run; its report says what broke
        told |= json.loads((pathlib.Path(told["runs"][0]["folder"]) / "report.json").read_text())
    why = reason(bug.command, told).replace(f"{ROOT}/", "")
    return {"verdict": told["verdict"], "broken": sorted(set(broken(bug.command, told))), "reason": why}


def _chaos(trainer: pathlib.Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *map(str, words)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=trainer, env=env, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False
    )


def true(bug: Bug, seen: Mapping[str, Any]) -> str:
    """Returns why this is no row of the table, or an empty text."""
    released, fixed = seen["released"], seen["fixed"]
    if released["verdict"] != "fail" or bug.breaks not in released["broken"]:
        return f"the released code: {released['verdict']}, broken: {', '.join(released['broken']) or 'nothing'}"
    if fixed["verdict"] != "pass":
        return f"the fixed form: {fixed['verdict']}: {fixed['reason']}"
    return ""


def kept() -> dict[str, Any]:
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


def markdown() -> str:
    """Returns the page. A bug that was not shown, or is not gone in the fixed form, is no row of it."""
    stored, rows, projects = kept(), [], set()
    for name, bug in bugs().items():
        if (seen := stored.get(name)) is None or true(bug, seen):
            continue
        sources = ", ".join(f"[{source}]({address})" for source, address in bug.sources.items())
        used = ", ".join(f"{package} {version}" for package, version in seen["versions"].items())
        command = f"`chaos {bug.command}`" + (f" {bug.scenario}" if bug.command == "run" else "")
        why = textwrap.shorten(seen["released"]["reason"], REASON_MAX, placeholder=" …")
        broke = f"**{KINDS.get(bug.breaks, bug.breaks)}**: {why}"
        what = f"`{name}`: {bug.title} ({sources})"
        rows.append((what, used, bug.when, command, broke, seen["date"], bug.fixed.words))
        projects.add(next(iter(bug.sources)).partition("#")[0])
    counted = f"Bugs: {len(rows)}, of {len(projects)} projects.\n\n"
    vain = TypeAdapter(list[NotShown]).validate_python(yaml.safe_load(NOT_SHOWN.read_text()))
    others = [(f"[{each.source}]({each.address})", each.why) for each in vain]
    return f"{INTRODUCTION}\n{counted}{_table(HEAD, rows)}{VAIN}{_table(('Bug', 'Why not'), others)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([text.replace("|", "\\|") for text in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    given, known = parser.parse_args().names, bugs()
    names = list(known) if given == ["all"] else given
    if unknown := set(names) - set(known):
        sys.exit(f"unknown bug {min(unknown)!r}; choose from: {', '.join(known)}")
    for name in names:
        seen = show(name, known[name])
        why = true(known[name], seen)
        print(f"{name}: " + (f"not shown: {why}" if why else f"shown, and gone with {known[name].fixed.words}"))
        print(f"  {seen['released']['reason']}", flush=True)
        KEPT.write_text(json.dumps(kept() | {name: seen}, indent=1, sort_keys=True) + "\n")
        PAGE.write_text(markdown())
    for name, bug in () if names else known.items():
        print(f"{name:24} {', '.join(bug.sources)}: {bug.title}")


if __name__ == "__main__":
    main()
