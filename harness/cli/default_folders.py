"""Finds the default folders of scenarios and reports, in a checkout or in an installed copy."""

import importlib.metadata
import pathlib

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SHIPPED = "share/chaos-harness/scenarios"  # the same place as in pyproject.toml


def in_checkout() -> bool:
    return (_ROOT / "pyproject.toml").is_file() and (_ROOT / "scenarios").is_dir()


def reports() -> pathlib.Path:
    """Returns the folder `reports/` of the checkout if the working directory is in the checkout, otherwise `reports/`
    in the working directory."""
    here = pathlib.Path.cwd()
    return _ROOT / "reports" if in_checkout() and here.is_relative_to(_ROOT) else here / "reports"


def scenarios() -> pathlib.Path:
    """Returns the folder `scenarios/` of the checkout, or the copy that was installed with the package."""
    if in_checkout():
        return _ROOT / "scenarios"
    try:  # by the installer's own list of files, whatever the installation scheme
        files = importlib.metadata.files("chaos-harness") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = (pathlib.Path(str(file.locate())) for file in files if str(file.parent).endswith(_SHIPPED))
    return next((path.resolve().parent for path in found), pathlib.Path.cwd() / "scenarios")


def docs() -> str:
    """Returns the folder of the documentation in a checkout, or "" in an installed copy."""
    if not in_checkout():
        return ""
    return "docs" if pathlib.Path.cwd() == _ROOT else str(_ROOT / "docs")
