"""How an extra of this package is installed, also where it came from a folder and is in no index."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import shlex

_ROOT = pathlib.Path(__file__).resolve().parents[1]


def how_to_install(extra: str) -> str:
    """The command for this copy of the package: a checkout, one that was installed from a place, or from an index."""
    if (_ROOT / "pyproject.toml").is_file():
        return "pip install -e " + shlex.quote(f"{_ROOT}[{extra}]")
    source = _source()
    return "pip install " + shlex.quote(f"chaos-harness[{extra}]" + (f" @ {source}" if source else ""))


def _source() -> str:
    """The URL that it was installed from, as the installer noted it; empty for an index."""
    try:
        noted = importlib.metadata.distribution("chaos-harness").read_text("direct_url.json")
        known = json.loads(noted or "{}")
        control = known.get("vcs_info", {}).get("vcs")
        return (f"{control}+" if control else "") + str(known.get("url", ""))
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return ""
