"""Builds the command that installs an extra (optional dependencies) of this package, even if the package is on no
package index."""

import contextlib
import importlib.metadata
import json
import pathlib
import shlex
from collections.abc import Iterator

from harness.errors import CannotRunError

_ROOT = pathlib.Path(__file__).resolve().parents[1]


@contextlib.contextmanager
def needed(what: str, extra: str, instead: str = "") -> Iterator[None]:
    """Makes a context for imports that need an extra (optional dependencies). Raises `CannotRunError` if the extra is
    not installed."""
    try:
        yield
    except ImportError as error:
        raise CannotRunError(f"{what} needs {error.name}: {how_to_install(extra)}{instead}") from error


def how_to_install(extra: str = "") -> str:
    """Returns the command that installs this copy of the package with an extra: from its checkout, its URL or its wheel
    file. The command never gives the package's name alone, because anybody could register this name on the public
    index."""
    wanted = f"[{extra}]" if extra else ""
    if (_ROOT / "pyproject.toml").is_file():
        return "pip install -e " + shlex.quote(f"{_ROOT}{wanted}")
    if source := _source():
        return "pip install " + shlex.quote(f"chaos-harness{wanted} @ {source}")
    version = importlib.metadata.version("chaos-harness")
    return "pip install " + shlex.quote(f"./chaos_harness-{version}-py3-none-any.whl{wanted}")


def _source() -> str:
    try:
        noted = importlib.metadata.distribution("chaos-harness").read_text("direct_url.json")
        known = json.loads(noted or "{}")
        control = known.get("vcs_info", {}).get("vcs")
        return (f"{control}+" if control else "") + str(known.get("url", ""))
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return ""
