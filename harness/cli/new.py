"""The command `chaos new`."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import pathlib
import re
from typing import Annotated

import jinja2
import typer

from harness.cli.output import note, say
from harness.errors import UsageError
from harness.faults.contract import fault_names

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
LENGTH_MAX = 40
app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def new() -> None:
    """Write the repository of a plug-in, with its test.

    Example: chaos new fault disk_nap
    """


@app.command()
def fault(
    name: Annotated[str, typer.Argument(help="Its name in scenarios: small letters, digits and _.")],
    folder: Annotated[pathlib.Path | None, typer.Option(help="A new folder; default: chaos-NAME.")] = None,
) -> None:
    """Write the repository of a fault: one that stops a rank, to be replaced by your own act.

    Example: chaos new fault disk_nap
    """
    if not _NAME.fullmatch(name) or len(name) > LENGTH_MAX:
        raise UsageError(f"{name!r} is no name of a fault; use small letters, digits and single _, like disk_nap")
    if name in fault_names():
        raise UsageError(f"there is a fault {name!r} already; choose another name")
    place = folder or pathlib.Path(f"chaos-{name.replace('_', '-')}")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"{place} is there already and not empty; give a new folder with --folder")
    for path, text in files(name).items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    say(f"{place}: the fault {name}, a scenario and a test")
    note(f"next: pip install -e {place}, then chaos plan {place}/scenarios/{name.replace('_', '-')}.yaml")


def files(name: str) -> dict[str, str]:
    """Returns path → text of the repository of a fault with this name."""
    dashed = name.replace("_", "-")
    values = {
        "name": name,
        "dashed": dashed,
        "camel": "".join(part.capitalize() for part in name.split("_")),
        "version": importlib.metadata.version("chaos-harness"),
    }
    templates = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
    source = importlib.resources.files("harness.cli") / "new_fault"
    places = {
        "README.md": "README.md",
        "pyproject.toml": "pyproject.toml",
        "fault.py": f"chaos_{name}/fault.py",
        "scenario.yaml": f"scenarios/{dashed}.yaml",
        "test_fault.py": f"tests/test_{name}.py",
    }
    texts = {
        place: templates.from_string((source / f"{template}.jinja").read_text()).render(values)
        for template, place in places.items()
    }
    return {**texts, f"chaos_{name}/__init__.py": ""}
