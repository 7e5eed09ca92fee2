"""What a report says, before it is HTML, Markdown or terminal text: words, figures and tables."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.judge.score import Expectation, Scorecard, Verdict
from harness.timeline.timeline import Episode, Timeline
from harness.units import format_duration

DASH = "–"
VERDICT_MEANING = {
    Verdict.PASS: "The training survived what was done to it, within every bound.",
    Verdict.FAIL: "At least one bound was not met.",
    Verdict.INCONCLUSIVE: "The evidence does not allow a yes or a no.",
    Verdict.INVALID: "The fault did not act as planned, so nothing was tested.",
}
NAMES = {
    "interrupted_step": "Interrupted step",
    "detect": "Detect",
    "drain": "Drain",
    "teardown": "Teardown",
    "reschedule": "Wait for capacity",
    "startup": "Start-up",
    "rendezvous": "Rendezvous",
    "restore": "Restore",
    "first_step": "First new step",
    "recompute": "Recompute",
    "running": "Running",
    "finish": "Finish",
    "wasted_gpu_hours": "Wasted GPU-hours",
    "gpus_in_use": "GPUs in use",
    "effect_end": "End of effect",
}
PHASE_MEANING = {
    "interrupted_step": "the step that was under way when progress stopped",
    "detect": "from the injection to the first evidence of it",
    "drain": "save and leave within the notice",
    "teardown": "stop what is left of the job",
    "reschedule": "wait for capacity",
    "startup": "processes start and import",
    "rendezvous": "the process group forms",
    "restore": "load the checkpoint",
    "first_step": "the first step after the restore",
    "recompute": "repeat the steps that were rolled back",
}
_SINGULAR = {"nodes": "node", "processes": "process", "ranks": "rank", "files": "file", "packets": "packet"}
_UNIT_S = {"µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "m": 60, "h": 3600}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*(µs|us|ms|min|s|m|h)(?![A-Za-z])")


@dataclass(frozen=True)
class Figure:
    """One headline number. `share` is observed / bound where both are known (1.0 = exactly at the bound)."""

    name: str
    value: str
    detail: str = ""
    bound: str = ""
    verdict: Verdict | None = None
    share: float | None = None


@dataclass(frozen=True)
class Account:
    """One line of the GPU-time ledger, already rounded so that the lines add up to the printed total."""

    name: str
    label: str
    seconds: str
    hours: str
    percent: str
    share: float


def headline(card: Scorecard) -> str:
    return reasons(card)[0] if card.reasons else VERDICT_MEANING[card.verdict]


def reasons(card: Scorecard) -> list[str]:
    """The reasons as sentences: a score's or expectation's name in front becomes words."""
    names = {e.name for e in card.expectations} | set(card.scores)
    return [_sentence(reason.strip(), names) for reason in card.reasons]


def not_judged(card: Scorecard) -> str:
    """`Not judged: pace (nothing disturbed the job); …`, or an empty text."""
    items = "; ".join(f"{item} ({why})" for item, why in card.not_judged.items())
    return f"Not judged: {items}." if items else ""


def _sentence(reason: str, names: Collection[str]) -> str:
    name, colon, rest = reason.partition(": ")
    if colon and name in names:
        return f"{expectation_name(name)}: {rest}"
    return reason[:1].upper() + reason[1:]


def seconds(value: object, missing: str = DASH) -> str:
    """`4.21 s` from a number of seconds; `missing` for anything that is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return missing
    return format_duration(round(value * 1e9)) if value else "0 s"


def quantity(value: object, unit: str = "") -> str:
    """A measured number in few digits with its unit; other things as they are."""
    if value is None:
        return DASH
    if isinstance(value, float) and unit == "s":
        return seconds(value)
    if isinstance(value, float) and math.isfinite(value):
        value = f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
    elif isinstance(value, int) and not isinstance(value, bool):
        value = f"{value:,}"
    return f"{value} {_SINGULAR.get(unit, unit) if value == '1' else unit}".strip()


def percent(value: object) -> str:
    if isinstance(value, int | float) and math.isfinite(value):
        return f"{value:.1f} %"
    return DASH


def words(name: str) -> str:
    """`straggler_drag` → `Straggler drag`."""
    return NAMES.get(name, name.replace("_", " ").replace(".", " ").strip().capitalize())


def from_begin(run: Timeline, at: object) -> str:
    """When something happened, counted from the start of the run."""
    return seconds((at - run.begin) / 1e9) if isinstance(at, int) else DASH


def expectation_name(name: str) -> str:
    """`wasted_gpu_hours.max_percent` → `Wasted GPU-hours, percent`; that it is a maximum, the bound's ≤ says."""
    score, _, bound = name.partition(".")
    bound = bound.removeprefix("max").removeprefix("min").strip("_")
    return f"{words(score)}, {bound.replace('_', ' ')}" if bound else words(score)


def figures(card: Scorecard) -> list[Figure]:
    """Recovery time, first new step, waste by faults and loss continuity, each against its bound."""
    return [_recovery(card), _first_step(card), _waste(card), _continuity(card)]


def _bound(card: Scorecard, score: str, *, having: str = "", lacking: str = "\0") -> Expectation | None:
    found = [e for e in card.expectations if e.name.startswith(score) and having in e.name and lacking not in e.name]
    return next((e for e in found if e.verdict is not Verdict.PASS), found[0] if found else None)


def _figure(name: str, value: str, detail: str, expectation: Expectation | None, observed: object) -> Figure:
    if expectation is None:
        return Figure(name, value, detail)
    bound = expectation.bound.strip()
    if bound[:1].isdigit():
        bound = f"allowed {bound}"
    elif bound[:1].isalpha():
        bound = f"expected: {bound}"
    return Figure(name, value, detail, bound, expectation.verdict, _share(observed, expectation.bound))


def _share(observed: object, bound: str) -> float | None:
    if not isinstance(observed, int | float) or not math.isfinite(observed):
        return None
    if match := re.search(r"(\d+(?:\.\d+)?)\s*%", bound):
        limit = float(match[1])
    else:
        limit = sum(float(amount) * _UNIT_S[unit] for amount, unit in _QUANTITY.findall(bound))
    return observed / limit if limit > 0 else None


def _recovery(card: Scorecard) -> Figure:
    values = card.scores.get("recovery_time", {})
    took, episodes = values.get("seconds"), card.evidence.run.episodes
    expectation = _bound(card, "recovery_time", lacking="first_step")
    if took is None and episodes and episodes[-1].t_regained is None:
        stuck = episodes[-1].segments[-1].phase if episodes[-1].segments else "unknown"
        return _figure("Recovery time", "Never", f"stuck in {words(stuck).lower()}", expectation, None)
    slow = values.get("degraded", [])
    if not episodes and took is None:
        if any(interval["slowdown_before"] is None for interval in slow):
            return _figure("Recovery time", "Never", "it never was back at its usual speed", expectation, None)
        why = "it was as slow before the fault" if slow else _no_outage(card)
        return _figure("Recovery time", DASH, why, expectation, None)
    detail = "from the last step before to new progress"
    if len(episodes) > 1:
        detail = f"the longest of {len(episodes)} recoveries"
    elif not episodes:
        detail = "from the fault until back at its usual speed"
    return _figure("Recovery time", seconds(took), detail, expectation, took)


def _no_outage(card: Scorecard) -> str:
    return "progress never stopped" if len(card.evidence.run.steps) else "no step was completed"


def _first_step(card: Scorecard) -> Figure:
    took = card.scores.get("recovery_time", {}).get("first_step_seconds")
    expectation = _bound(card, "recovery_time", having="first_step")
    missing = "Never" if card.evidence.run.episodes else DASH
    detail = "until the first step after the fault" if card.evidence.run.episodes else _no_outage(card)
    return _figure("First new step", seconds(took, missing), detail, expectation, took)


def _waste(card: Scorecard) -> Figure:
    values = card.scores.get("wasted_gpu_hours", {})
    share, allocated = values.get("percent_by_faults"), values.get("gpu_seconds_allocated")
    expectation = _bound(card, "wasted_gpu_hours")
    if not isinstance(share, int | float) or not isinstance(allocated, int | float):
        return _figure("Wasted by faults", DASH, "no ledger", expectation, None)
    lost = values.get("gpu_seconds_wasted_by_faults", allocated * share / 100)
    detail = f"{gpu_seconds(lost)} of {gpu_seconds(allocated)}"
    return _figure("Wasted by faults", percent(share), detail, expectation, share)


def _continuity(card: Scorecard) -> Figure:
    values = card.scores.get("loss_continuity", {})
    expectation = _bound(card, "loss_continuity")
    if card.evidence.twin is None or not values:
        return _figure("Loss continuity", DASH, "no fault-free twin to compare with", expectation, None)
    difference, at = values.get("max_abs_diff"), values.get("first_divergent_step")
    samples = _samples(values)
    if difference == 0 and at is None:
        return _figure("Loss continuity", "Identical", f"bit for bit with the twin; {samples}", expectation, None)
    if at is not None:
        samples = f"differs from step {at:,}; {samples}" if isinstance(at, int) else samples
    gap = values.get("final_gap_percent")
    if values.get("mode") == "final" and isinstance(gap, int | float):
        detail = f"mean of the last steps against the twin's; {samples}"
        return _figure("Loss continuity", f"{gap:+.2g} %", detail, expectation, None)
    shown = f"{difference:.2g}" if isinstance(difference, int | float) else DASH
    return _figure("Loss continuity", shown, f"largest difference; {samples}", expectation, None)


def continuity_words(card: Scorecard) -> str:
    """The finding on the losses as a clause: `identical bit for bit; every sample once`."""
    values = card.scores.get("loss_continuity", {})
    difference, at = values.get("max_abs_diff"), values.get("first_divergent_step")
    if difference == 0 and at is None:
        return f"identical, bit for bit; {_samples(values)}"
    shown = f"the largest difference is {difference:.2g}" if isinstance(difference, int | float) else "not comparable"
    first = f", the first one at step {at:,}" if isinstance(at, int) else ""
    return f"{shown}{first}; {_samples(values)}"


def _samples(values: Mapping[str, Any]) -> str:
    repeated, skipped = values.get("samples_repeated"), values.get("samples_skipped")
    if repeated is None and skipped is None:
        return "samples not logged"
    if not repeated and not skipped:
        return "every sample once"
    return f"{quantity(repeated or 0)} samples repeated, {quantity(skipped or 0)} skipped"


def gpu_seconds(value: float) -> str:
    return f"{value:,.1f} GPU-s" if value < 36_000 else f"{value / 3600:,.1f} GPU-h"


def accounts(card: Scorecard) -> tuple[list[Account], Account | None]:
    """The ledger's lines, productive first and then the largest, and their total; nothing without a ledger."""
    values = card.scores.get("wasted_gpu_hours", {})
    booked = {name: float(amount) for name, amount in values.get("accounts", {}).items()}
    allocated = values.get("gpu_seconds_allocated")
    if not booked or not isinstance(allocated, int | float):
        return [], None
    names = sorted(booked, key=lambda name: (name != "productive", -booked[name]))
    names = [name for name in names if booked[name] > 0 or name == "productive"]
    digits = 3 if allocated < 1000 else 1 if allocated < 1_000_000 else 0
    rounded = _rounded([booked[name] for name in names], float(allocated), digits)
    lines = [_account(name, amount, float(allocated), digits) for name, amount in zip(names, rounded, strict=True)]
    return lines, _account("allocated", float(allocated), float(allocated), digits)


def closed_forms(card: Scorecard) -> list[tuple[str, str, str]]:
    """(what, measured, by closed form); nothing where no failure was recovered from."""
    found = card.scores.get("wasted_gpu_hours", {}).get("closed_forms") or {}
    if not found.get("failures") or found.get("ettr") is None:
        return []
    best = " · ".join(f"{name} {seconds(found[f'interval_s_{name.lower()}'])}" for name in ("Young", "Daly"))
    return [
        ("ETTR, first step to last", percent(100 * found["ettr"]), percent(100 * found["ettr_expected"])),
        ("Work lost by a failure", seconds(found["lost_s"]), f"{seconds(found['lost_s_expected'])}, half an interval"),
        ("Work between two checkpoints", seconds(found["interval_s"]), f"best: {best}"),
    ]


def closed_forms_words(card: Scorecard) -> str:
    found = card.scores["wasted_gpu_hours"]["closed_forms"]
    rate = f"a failure every {seconds(found['mean_time_to_failure_s'])} that costs {seconds(found['restart_s'])}"
    text = f"By closed form from this run's own rates: {rate} besides lost work, and a checkpoint that stops training"
    return f"{text} for {seconds(found['checkpoint_s'])}. Expected are means over failures at random moments."


def baseline_words(card: Scorecard) -> str:
    """From how much the band was taken that straggler drag exceeds."""
    return f"Straggler drag is what exceeds the band of {card.scores['wasted_gpu_hours'].get('baseline', 'none')}."


def _account(name: str, amount: float, allocated: float, digits: int) -> Account:
    share = amount / allocated if allocated else 0.0
    return Account(name, words(name), f"{amount:,.{digits}f}", f"{amount / 3600:,.5f}", f"{100 * share:.2f} %", share)


def _rounded(amounts: Sequence[float], total: float, digits: int) -> list[float]:
    """Rounds to `digits` so that the lines add up to the rounded total (largest remainders go up).

    Amounts that do not add up to the total in the first place are only rounded: a report must not hide that.
    """
    scale = 10**digits
    units = [math.floor(amount * scale + 1e-6) for amount in amounts]
    missing = round(total * scale) - sum(units)
    if not 0 <= missing <= len(units):
        return [round(amount, digits) for amount in amounts]
    by_remainder = sorted(range(len(units)), key=lambda i: units[i] - amounts[i] * scale)
    for i in by_remainder[:missing]:
        units[i] += 1
    return [unit / scale for unit in units]


def phase_sums(episode: Episode) -> list[tuple[str, int]]:
    """(phase, nanoseconds) of one episode in the order in which the phases first came."""
    sums: dict[str, int] = {}
    for segment in episode.segments:
        sums[segment.phase] = sums.get(segment.phase, 0) + segment.end - segment.begin
    return list(sums.items())


def longest_first(run: Timeline) -> list[tuple[int, Episode]]:
    """(number from 1, episode): those that never ended first, then the longest."""
    numbered = list(enumerate(run.episodes, start=1))
    return sorted(numbered, key=lambda item: (item[1].t_regained is not None, item[1].t_stop - item[1].end))


def fault_rows(card: Scorecard) -> list[dict[str, str]]:
    """The faults table: what, whom, when, whether its effect was measured, and whether it was undone."""
    records = {record.id: record for record in card.evidence.run.faults}
    rows = []
    for fault in card.faults:
        record = records.get(str(fault.get("id")))
        effect = fault.get("effect") or {}
        unit = str(effect.get("unit") or "")
        rows.append(
            {
                "id": str(fault.get("id", DASH)),
                "kind": str(fault.get("kind", DASH)),
                "target": target_text(fault.get("target")),
                "injected": from_begin(card.evidence.run, record.injected) if record else DASH,
                "measured": quantity(effect.get("measured"), unit),
                "expected": quantity(effect.get("expected"), unit),
                "healed": "yes" if fault.get("healed") else "no",
                "error": str(record.error) if record and record.error else "",
            }
        )
    return rows


def target_text(target: object) -> str:
    """`node-1, rank 3` from what the log says about a target."""
    if isinstance(target, Mapping):
        node, rank = target.get("node"), target.get("rank")
        parts = [str(node) if node is not None else "", f"rank {rank}" if rank is not None else ""]
        return ", ".join(part for part in parts if part) or json.dumps(dict(target), default=str)
    if isinstance(target, Sequence) and not isinstance(target, str):
        return "; ".join(target_text(one) for one in target) or DASH
    return str(target) if target not in (None, "") else DASH


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested values as (name, text) lines: `gpu.name`, `H100`."""
    lines: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            lines += flat(value, f"{name}.")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            lines.append((name, ", ".join(str(item) for item in value) or DASH))
        else:
            lines.append((name, DASH if value is None else str(value)))
    return lines


def metric_rows(card: Scorecard) -> list[tuple[str, str]]:
    """A metric's name without its unit, and its value with it."""
    return [(_metric_name(name), metric_text(name, card.metrics[name])) for name in card.metrics]


def _metric_name(name: str) -> str:
    return words(name.replace("_seconds", "_time").replace("_percent", ""))


_SECONDS_NAME = re.compile(r"(_s|_seconds)(_|$)")


def metric_text(name: str, value: object) -> str:
    """A metric's unit is in its name: `..._seconds...`, `..._percent`, `..._bytes`."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {metric_text(name, item)}" for key, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if _SECONDS_NAME.search(name):
            return seconds(value)
        if "percent" in name:
            return percent(value)
        return size(value) if "bytes" in name else quantity(value)
    return DASH if value is None else str(value)


def reproduce(card: Scorecard) -> list[str]:
    """The commands that play this run again, and the one that judges it again."""
    command = ["chaos", "run", card.scenario, "--seed", str(card.seed)]
    if card.backend != "local":
        command += ["--backend", card.backend]
    if profile := card.evidence.run.plan.get("profile"):
        command += ["--profile", str(profile)]
    return [shlex.join(command), shlex.join(["chaos", "score", f"reports/{card.run_id}"])]


def problems(run: Timeline) -> list[str]:
    """What is wrong with the evidence itself."""
    found = [f"the last line of {writer} was cut by a kill" for writer in run.torn]
    if run.dropped:
        found.append(f"{run.dropped:,} events were lost because the disk took no more")
    return [*found, *run.problems]


def event_rows(events: Sequence[Mapping[str, Any]], run: Timeline) -> list[tuple[str, str, str]]:
    """(when, where, what) of log events, for plain lists."""
    return [(from_begin(run, event.get("at")), _where(event), _what(event)) for event in events]


def _where(event: Mapping[str, Any]) -> str:
    node, rank = event.get("node"), event.get("rank")
    return DASH if node is None and rank is None else target_text({"node": node, "rank": rank})


_NOT_SHOWN = {"at", "node", "rank", "incarnation", "process", "event", "wall_ns", "mono_ns"}


def _what(event: Mapping[str, Any]) -> str:
    """`committed: step 20, kind periodic, 15 MiB, duration 27 ms` from the fields of a log event."""
    fields = ", ".join(_field(key, value) for key, value in event.items() if key not in _NOT_SHOWN)
    _, dot, edge = str(event.get("event", "")).partition(".")
    return f"{edge}: {fields}" if dot else fields


def _field(key: str, value: object) -> str:
    if isinstance(value, int) and key == "bytes":
        return size(value)
    if isinstance(value, int) and key.endswith("_ns"):
        return f"{key.removesuffix('_ns')} {format_duration(value)}"
    return f"{key} {short_path(str(value))}"


_DIRECTORIES = re.compile(r"(?<![\w/])/(?:[^\s/,;]+/)+(?=[^\s/,;]+/[^\s/,;]+)")


def short_path(text: str) -> str:
    """Absolute paths by their last two parts: `…/checkpoints/step-00000020`. Where it ran is nobody's business."""
    return _DIRECTORIES.sub("…/", text)


def size(amount: float) -> str:
    """`15.0 MiB`."""
    power = next((power for power in range(1, 5) if amount < 1024 ** (power + 1)), 5)
    if amount < 1024:
        return f"{amount:.0f} B"
    return f"{amount / 1024**power:.1f} {'KMGTP'[power - 1]}iB"
