"""Judged runs for forecasts: the sample report of this project, with other figures in it."""

import json
import pathlib
from typing import Any

SAMPLE = pathlib.Path(__file__).resolve().parents[2] / "reports" / "sample" / "report.json"


def store(reports: pathlib.Path, name: str, **changes: Any) -> str:
    """Writes a run and returns its name. `phases`: of its one recovery; `fault`: its kind; `stall`: seconds; the others
    are keys of the report."""
    values = json.loads(SAMPLE.read_text()) | {"run_id": name}
    if (phases := changes.pop("phases", None)) is not None:
        values["scores"]["recovery_time"]["episodes"][0]["phases"] = phases
    if fault := changes.pop("fault", None):
        values["faults"][0]["kind"] = fault
    if (stall := changes.pop("stall", None)) is not None:
        values["scores"]["wasted_gpu_hours"]["closed_forms"]["checkpoint_s"] = stall
    folder = reports / name
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps(values | changes))
    return name
