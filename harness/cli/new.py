"""Defines the command `chaos new`, which writes the repository of a plug-in."""

import importlib.metadata
import importlib.resources
import pathlib
import re
from collections.abc import Sequence
from typing import Annotated

import jinja2
import typer

from harness.cli.output import note, say
from harness.errors import UsageError
from harness.faults.contract import fault_names
from harness.judge.guarantee import FAMILY as GUARANTEES

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
LENGTH_MAX = 40
PLACES = {  # by kind and template; each kind has its folder `new_KIND`
    "fault": {
        "README.md": "README.md",
        "pyproject.toml": "pyproject.toml",
        "fault.py": "chaos_{name}/fault.py",
        "scenario.yaml": "scenarios/{dashed}.yaml",
        "test_fault.py": "tests/test_{name}.py",
    },
    "guarantee": {
        "pyproject.toml": "pyproject.toml",
        "guarantee.py": "chaos_{name}/guarantee.py",
        "test_guarantee.py": "tests/test_{name}.py",
    },
}
Folder = Annotated[pathlib.Path | None, typer.Option(help="A new folder; default: chaos-NAME.")]
app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def new() -> None:
    """Write the repository of a plug-in, with its test.

    Example: chaos new fault disk_nap
    """


@app.command()
def fault(
    name: Annotated[str, typer.Argument(help="Its name in scenarios: small letters, digits and _.")],
    folder: Folder = None,
) -> None:
    """Write the repository of a fault. The generated example stops a rank; replace it by your own fault.

    Example: chaos new fault disk_nap
    """
    if not _NAME.fullmatch(name) or len(name) > LENGTH_MAX:
        raise UsageError(f"{name!r} is no name of a fault; use small letters, digits and single _, like disk_nap")
    place = _write("fault", name, fault_names(), folder)
    say(f"{place}: the fault {name}, a scenario and a test")
    note(f"next: pip install -e {place}, then chaos plan {place}/scenarios/{name.replace('_', '-')}.yaml")


@app.command()
def guarantee(
    name: Annotated[str, typer.Argument(help="FAMILY_NAME: small letters, digits and _.")], folder: Folder = None
) -> None:
    """Write the repository of a guarantee. The generated example judges the loss; replace it by your own guarantee.

    Example: chaos new guarantee steps_small_loss
    """
    if not _NAME.fullmatch(name) or "_" not in name or len(name) > LENGTH_MAX:
        raise UsageError(f"{name!r} is no name of a guarantee; write FAMILY_NAME, like steps_small_loss")
    place = _write("guarantee", name, GUARANTEES.names(), folder)
    say(f"{place}: the guarantee {name} and a test")
    note(f"next: pip install -e {place}, then copy a run's folder to {place}/tests/run, then pytest {place}")


def _write(kind: str, name: str, known: Sequence[str], folder: pathlib.Path | None) -> pathlib.Path:
    if name in known:
        raise UsageError(f"there is a {kind} {name!r} already; choose another name")
    place = folder or pathlib.Path(f"chaos-{name.replace('_', '-')}")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"{place} is there already and not empty; give a new folder with --folder")
    for path, text in files(name, kind).items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    return place


def files(name: str, kind: str = "fault") -> dict[str, str]:
    dashed = name.replace("_", "-")
    values = {
        "name": name,
        "dashed": dashed,
        "dotted": name.replace("_", ".", 1),
        "camel": "".join(part.capitalize() for part in name.split("_")),
        "version": importlib.metadata.version("chaos-harness"),
    }
    templates = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
    source = importlib.resources.files("harness.cli") / f"new_{kind}"
    texts = {
        place.format(**values): templates.from_string((source / f"{template}.jinja").read_text()).render(values)
        for template, place in PLACES[kind].items()
    }
    return {**texts, f"chaos_{name}/__init__.py": ""}
