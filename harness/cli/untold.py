"""The lines of `chaos plan` on a trainer that tells little: unjudged items, and bounds that cannot be judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.judge.facts import reported
from harness.node.emitter import TELLS

BY_HARNESS = ("clocks",)  # compared by the harness, whatever the trainer tells


def forecast(tells: frozenset[str] | None, expect: Mapping[str, Any], teller: str = "its trainer") -> list[str]:
    """Returns these lines. `tells`: kinds that the trainer declares (`None`: no declaration). `teller`: its name."""
    if tells is None:
        text = "What its trainer reports is seen when it runs. Whatever is missing then will not be judged"
        return [f"{text}, and the verdict names it; what `trainer: {{tells: […]}}` names must be there."]
    tells = reported.stood_in_for(tells)
    untold = [kind for kind in TELLS if kind not in tells and kind not in (*BY_HARNESS, *reported.BY_FAULT)]
    if not untold:
        return [f"{teller[0].upper()}{teller[1:]} reports everything that is judged."]
    items = dict.fromkeys(reported.ITEMS[kind] for kind in untold)
    lines = [f"Not judged, because {teller} does not report it: {', '.join(items)}."]
    for name, needed in _needed(expect):
        if lacking := [reported.ITEMS[kind] for kind in needed if kind not in tells]:
            lines.append(f"  {name} would be inconclusive: {teller} does not report {', '.join(lacking)}.")
    return lines


def _needed(expect: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yields each bound with the kinds of evidence that it needs."""
    asked = {name: bounds for name, bounds in expect.items() if isinstance(bounds, Mapping)}
    if "loss_continuity" in asked:
        exact = asked["loss_continuity"].get("mode", "exact") == "exact"
        yield "loss_continuity", ("loss",) if exact else ("loss", "positions")
    for phase in asked.get("recovery_time", {}).get("phases") or {}:
        yield f"recovery_time.phases.{phase}", sorted(reported.PHASE_NEEDS.get(phase, set()))
    if asked.get("metrics", {}).get("checkpoint_success_min") is not None:
        yield "metrics.checkpoint_success_min", ("checkpoints",)
