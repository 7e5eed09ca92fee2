"""The plan of a game day of a light trainer that does its steps without torch."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
PLAN = """version: 1
name: light-day
title: A light day
workload:
  trainer: {{command: ["{{python}}", -S, {trainer}, "{steps}", "1"], env: {{PYTHONPATH: {root}, LIGHT_HURRY: "{hurry}"}}}}
  nodes: 1
  steps: {steps}
fault_free: false
when_done: {when_done}
steady: {{steps: 2, band: 95%, checkpoint: false, within: 10m}}
entries:
{entries}
"""


def write(
    folder: pathlib.Path, entries: str, steps: int, hurry: str = "", when_done: str = "wait", **more: str
) -> pathlib.Path:
    """The file `day.yaml` in `folder`. `entries` is an indented YAML list; `hurry` is the file of light_trainer.py;
    `more` are further keys with their values."""
    trainer = ROOT / "tests" / "faults" / "light_trainer.py"
    text = PLAN.format(trainer=trainer, steps=steps, root=ROOT, entries=entries, hurry=hurry, when_done=when_done)
    path = folder / "day.yaml"
    path.write_text(text + "".join(f"{name}: {value}\n" for name, value in more.items()))
    return path
