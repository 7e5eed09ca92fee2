"""Finds the inputs in which two runs differ: scenario, seed, size, arguments, faults, expectations, code or host."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.report.run_report import NOT_HERE, Report
from harness.report.words import short

VALUES_MAX = 3  # differing values of one input that are shown
CHARS_MAX = 40  # of a value
OWN = ("run_id", "version", "workload.trainer.scenario_dir", "workload.restore_drill")  # each run may have others
PLANNED = (  # an input, and the beginnings of its keys in a plan; the first that fits
    ("seed", ("seed",)),
    ("size", ("workload.nodes", "workload.min_nodes", "workload.ranks_per_node", "workload.steps", "workload.mesh")),
    ("arguments", ("workload.trainer", "workload.args", "workload.env")),
    ("workload", ("workload",)),
    ("faults", ("faults",)),
    ("expectations", ("expect",)),
    ("limits", ("abort", "limits")),
    ("scenario", ("",)),
)
CODE = ("source_digest", "trainer_commit", "trainer_diff", "image_digest", "data_digest")
HOST = ("cpu", "cpus", "machine", "kernel", "gpu", "gpus", "driver", "cuda", "torch", "python")
CODE_UNKNOWN = "not known of both runs, and may differ"


def different_inputs(before: Report, after: Report, plans: tuple[Mapping[str, Any], Mapping[str, Any]]) -> list[str]:
    flat = [dict(_leaves(plan)) for plan in plans]
    if not all(flat):
        names = "scenario", "profile", "backend", "seed"
        flat = [{name: getattr(report, name) for name in names} for report in (before, after)]
    found = dict[str, list[str]]()
    for key in dict.fromkeys([*flat[0], *flat[1]]):
        if flat[0].get(key) != flat[1].get(key) and not key.startswith(OWN):
            name = next(name for name, begins in PLANNED if key.startswith(begins))
            found.setdefault(name, []).append(_both(key, name, flat[0].get(key), flat[1].get(key)))
    told = [_facts(report) for report in (before, after)]
    for name, keys in (("code", CODE), ("host", HOST)):
        pairs = [(key, told[0].get(key), told[1].get(key)) for key in keys]
        found[name] = [_both(key, name, old, new) for key, old, new in pairs if old != new and None not in (old, new)]
    if not found["code"] and not all({"source_digest", "image_digest"} & each.keys() for each in told):
        found["code"] = [CODE_UNKNOWN]
    order = [name for name, _ in PLANNED] + ["code", "host"]
    return [f"{name}: {_some(found[name])}" for name in order if found.get(name)]


def _facts(report: Report) -> dict[str, Any]:
    told = {**report.environment, **report.provenance}
    return {name: value for name, value in told.items() if value not in (None, "", NOT_HERE)}


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _leaves(each, f"{key}.{name}" if key else str(name))
    elif (
        isinstance(value, Sequence) and not isinstance(value, str) and any(isinstance(each, Mapping) for each in value)
    ):
        for place, each in enumerate(value):
            yield from _leaves(each, f"{key}.{place}")
    else:
        yield key, value


def _both(key: str, name: str, old: Any, new: Any) -> str:
    words = key.rpartition(".")[2].replace("_", " ")
    values = " and ".join(_word(each) for each in (_apart(old, new), _apart(new, old)))
    return values if words == name else f"{words} {values}"


def _apart(mine: Any, other: Any) -> Any:
    if not (isinstance(mine, list | tuple) and isinstance(other, list | tuple)):
        return mine
    same = _alike(mine, other)
    behind = min(_alike(mine[::-1], other[::-1]), min(len(mine), len(other)) - same)
    return mine[max(0, same - 1) : len(mine) - behind]


def _alike(mine: Sequence[Any], other: Sequence[Any]) -> int:
    pairs = zip(mine, other, strict=False)
    return next((place for place, (one, two) in enumerate(pairs) if one != two), min(len(mine), len(other)))


def _word(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        value = " ".join(value) or "none"
    return short(value if isinstance(value, str) else json.dumps(value, default=str), CHARS_MAX)


def _some(told: Sequence[str]) -> str:
    more = f" and {len(told) - VALUES_MAX} more" if len(told) > VALUES_MAX else ""
    return f"{', '.join(told[:VALUES_MAX])}{more}"
