"""Formats names, quantities and texts from logs for people, independently of reports and charts."""

import datetime
import math
import re
import sys
from typing import TypeGuard

from harness.timeline.phase_names import PHASE_NAMES
from harness.units import format_duration

DASH = "–"
BEYOND = (  # as docs/trust.md says it, too
    "No pass looks at memory that grows by itself, at what a checkpoint holds besides tensors, or at what a trainer "
    "writes elsewhere."
)
NAMES = {
    **PHASE_NAMES,
    "running": "Running",
    "standstill": "Standstill",
    "finish": "Finish",
    "wasted_gpu_hours": "Wasted GPU-hours",
    "effect_end": "End of effect",
    "tells": "Kinds of evidence",
    "cuda": "CUDA of torch",
    "cuda_driver": "CUDA of the driver",
    "nccl": "NCCL",
}
PHASE_MEANING = {
    "interrupted_step": "the step that was under way when progress stopped",
    "detect": "from the injection to the first evidence of it",
    "drain": "save and leave within the notice",
    "teardown": "stop what is left of the job",
    "reschedule": "until the nodes are there that it needs",
    "startup": "processes start and import",
    "rendezvous": "the process group forms",
    "restore": "set up model and data, load the checkpoint",
    "first_step": "the first step after the restore",
    "recompute": "repeat the steps that were rolled back",
    "standstill": "the processes are alive, and no step comes to its end",
}
_SINGULAR = {  # of units, or of their first words, that do not only lose an s
    "processes": "process",
    "batches": "batch",
    "times": "times",
    "failed starts": "failed start",
    "rendezvous stores running": "rendezvous store running",
}
_NAMES_WITHIN = {"cpu": "CPU", "cpus": "CPUs", "gpu": "GPU", "gpus": "GPUs", "nvlink": "NVLink"}

# Control characters, marks that turn the direction of text, invisible fillers, lone surrogates, tag characters.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def plain(value: object) -> str:
    """Returns a text from a log without characters that control a terminal or the direction of text."""
    return _UNPRINTABLE.sub("�", str(value).replace("\r\n", "\n"))


def short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def minute(iso: str) -> str:
    return f"{iso[:16].replace('T', ' ')} UTC"


def clock_time(iso: str, after_s: float) -> str:
    """Formats the time `after_s` seconds after a UTC time as `06:43:17`. Returns "" for an invalid time."""
    try:
        return f"{datetime.datetime.fromisoformat(iso) + datetime.timedelta(seconds=after_s):%H:%M:%S}"
    except (ValueError, OverflowError):
        return ""


def one_line(value: object) -> str:
    return " ".join(plain(value).split())


def words(name: str) -> str:
    """Turns a name from a report, such as `straggler_drag`, into words for people, such as `Straggler drag`."""
    if name in NAMES:
        return NAMES[name]
    text = name.replace("_", " ").replace(".", " ").strip().capitalize()
    return " ".join(_NAMES_WITHIN.get(word.lower(), word) for word in text.split(" "))


def expectation_name(name: str) -> str:
    """Turns a name such as `wasted_gpu_hours.max_percent` into words such as `Wasted GPU-hours, percent`."""
    score, _, bound = name.partition(".")
    if bound.startswith("phases."):
        return f"{words(score)}, {words(bound.removeprefix('phases.')).lower()}"
    bound = bound.removeprefix("max").removeprefix("min").removesuffix("_max").removesuffix("_min").strip("_")
    return f"{words(score)}, {bound.replace('_', ' ')}" if bound else words(score)


def is_number(value: object) -> TypeGuard[float]:
    """Returns True for a finite number, but not for `True` or `False`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def seconds(value: float | None, missing: str = DASH) -> str:
    """Formats seconds as `4.21 s`. Returns `missing` for any value that is not a finite number."""
    if value is None or not is_number(value):
        return missing
    if abs(value) > 1e12:
        return f"{value:.3g} s"
    return format_duration(round(value * 1e9)) if value else "0 s"


def quantity(value: object, unit: str = "") -> str:
    if value is None:
        return DASH
    if isinstance(value, float) and unit == "s":
        return seconds(value)
    if isinstance(value, float) and math.isfinite(value):
        value = f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
    elif isinstance(value, int) and not isinstance(value, bool):
        value = f"{value:,}"
    return f"{value} {_of_one(unit) if value == '1' else unit}".strip()


def _of_one(unit: str) -> str:
    if unit in _SINGULAR:
        return _SINGULAR[unit]
    noun, space, rest = unit.partition(" ")
    one = _SINGULAR.get(noun) or (noun[:-1] if len(noun) > 3 and noun.endswith("s") else noun)
    return one + space + rest


def percent(value: float | None) -> str:
    return f"{value:.1f} %" if value is not None and is_number(value) else DASH


def gpu_seconds(value: float) -> str:
    return f"{value:,.1f} GPU-s" if value < 36_000 else f"{value / 3600:,.1f} GPU-h"


def size(amount: float) -> str:
    power = next((power for power in range(1, 5) if amount < 1024 ** (power + 1)), 5)
    if amount < 1024:
        return f"{amount:.0f} B"
    return f"{amount / 1024**power:.1f} {'KMGTP'[power - 1]}iB"


_DIRECTORIES = re.compile(r"(?<![\w/])/(?:[^\s/,;]+/)+(?=[^\s/,;]+/[^\s/,;]+)")


def short_commit(commit: str) -> str:
    return commit[:8] + ("*" if commit.endswith("-dirty") else "")


def short_path(text: str) -> str:
    """Hides private folders: shortens absolute paths to their last two parts, as in `…/checkpoints/step-00000020`."""
    return _DIRECTORIES.sub("…/", text)
