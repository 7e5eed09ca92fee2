"""Where scenarios and reports are unless the command line says otherwise: in a checkout, or installed."""

from __future__ import annotations

import importlib.metadata
import pathlib

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SHIPPED = "share/chaos-harness/scenarios"  # the same place as in pyproject.toml


def in_checkout() -> bool:
    """Whether this is the source tree and not an installed copy."""
    return (_ROOT / "pyproject.toml").is_file() and (_ROOT / "scenarios").is_dir()


def reports() -> pathlib.Path:
    """`reports/` of the checkout for who works in it; else `reports/` of the working directory."""
    here = pathlib.Path.cwd()
    return _ROOT / "reports" if in_checkout() and here.is_relative_to(_ROOT) else here / "reports"


def scenarios() -> pathlib.Path:
    """`scenarios/` of the checkout, or the copy that was installed with the package."""
    return _ROOT / "scenarios" if in_checkout() else _shipped() or pathlib.Path.cwd() / "scenarios"


def _shipped() -> pathlib.Path | None:
    """The installer's own list of files knows the folder, whatever scheme it was installed by."""
    try:
        files = importlib.metadata.files("chaos-harness") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (pathlib.Path(str(file.locate())) for file in files if str(file.parent).endswith(_SHIPPED))
    return next((path.resolve().parent for path in found), None)
