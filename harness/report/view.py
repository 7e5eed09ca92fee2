"""Computes a `Report`'s figures and tables for HTML, Markdown and terminal."""

import json
import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.judge.bounds import WASTED_BY_FAULTS, bounds_by_score
from harness.judge.verdict import Verdict
from harness.report.commands import as_here, copied, run_again
from harness.report.run_report import NOT_HERE, Episode, Expectation, Report
from harness.report.words import (
    BEYOND,
    DASH,
    expectation_name,
    gpu_seconds,
    one_line,
    percent,
    quantity,
    seconds,
    size,
    words,
)
from harness.timeline.lookups import grouped
from harness.units import counted

_NAME = re.compile(r"(?:^|(?<=: )|(?<=; ))[a-z_]+(?:\.[a-z0-9_]+)*(?=: )")
OF_SAMPLES = ("result.batches_whole", "result.samples_in_order")  # guarantees
DECIDING_MAX = 3  # cards of what decided a verdict
NAMED_MAX = 3  # guarantees of which a pass says nothing
OF_ONE_RANK = "of the lowest rank that tells a loss"


@dataclass(frozen=True)
class Figure:
    """A headline figure of a report. `share` is the figure's value divided by its bound."""

    name: str
    value: str
    detail: str = ""
    bound: str = ""
    verdict: Verdict | None = None
    share: float | None = None
    of: str = ""  # the expectation that it shows
    decided: bool = False  # True: it decided the verdict


@dataclass(frozen=True)
class Account:
    """One line of a report's table of GPU time, rounded so that the lines add up to the total."""

    name: str
    label: str
    seconds: str
    by_faults: str  # the part of it that faults caused; empty: none
    hours: str  # empty: the run had less than one
    percent: str
    share: float


def guarantee_name(name: str) -> str:
    family, _, rest = name.partition(".")
    return f"{family.capitalize()} · {rest.replace('_', ' ')}"


def guarantee_rows(report: Report) -> list[tuple[str, str, str, str]]:
    """Returns state, name, sentence and reason of each guarantee that did not hold, the broken guarantees first."""
    odd = sorted((each for each in report.guarantees if each.state in ("broken", "open")), key=lambda each: each.state)
    return [(each.state, guarantee_name(each.name), each.statement, each.why) for each in odd]


def headline(report: Report) -> str:
    return next(iter(reasons(report)), report.verdict.capitalize())


def reasons(report: Report) -> list[str]:
    return [in_words(reason) for reason in report.reasons]


def in_words(reason: str) -> str:
    """Returns a verdict's reason as a sentence. A name before a colon, such as `recovery_time.max`, becomes words."""

    def named(match: re.Match[str]) -> str:
        return expectation_name(match[0]) if match[0].partition(".")[0] in bounds_by_score() else match[0]

    text = _NAME.sub(named, reason.strip())
    return text[:1].upper() + text[1:]


def headline_alone(report: Report) -> str:
    return headline(report).removesuffix(f"; not judged: {', '.join(report.not_judged_because)}")


def not_judged(report: Report) -> str:
    alike = grouped((why, item) for item, why in report.not_judged_because.items())
    told = "; ".join(f"{', '.join(items)} ({why})" for why, items in alike.items())
    return " ".join([f"Not judged: {told}."] * bool(told) + beyond(report))


def beyond(report: Report) -> list[str]:
    """Returns sentences on what a pass does not prove: guarantees that were not tested, and the limits of every
    pass."""
    if report.verdict is not Verdict.PASS:
        return []
    if mute := [each.name for each in report.guarantees if each.state == "not judged"]:
        more = f" and {len(mute) - NAMED_MAX} more" if len(mute) > NAMED_MAX else ""
        told = f"This run says nothing of {counted(len(mute), 'guarantee')}: {', '.join(mute[:NAMED_MAX])}{more}."
        return [told, BEYOND]
    return [BEYOND] if report.not_judged else ["Not judged: nothing.", BEYOND]


def figures(report: Report) -> list[Figure]:
    found = [*lasting_figures(report), *_restarts(report), *_files(report)]
    return [*_deciding(report, {figure.of for figure in found}), *found]


def lasting_figures(report: Report) -> list[Figure]:
    return [_recovery(report), _first_step(report), _waste(report), _continuity(report)]


def _deciding(report: Report, shown: Container[str]) -> Iterator[Figure]:
    if report.verdict is Verdict.PASS:
        return
    gave = [each for each in report.expectations if each.verdict is report.verdict]
    for each in [each for each in gave if each.name not in shown][:DECIDING_MAX]:
        yield replace(_figure(expectation_name(each.name), each.observed, each.reason, each), decided=True)
    if not gave and report.reasons:
        told = "What decided it", report.verdict.capitalize(), headline(report), "not a bound of the scenario"
        yield Figure(*told, report.verdict, decided=True)


def _restarts(report: Report) -> Iterator[Figure]:
    for name, score in (("Restore drill", "last_checkpoint"), ("Second restart", "second_restart")):
        values = report.scores.get(score, {})
        outcome, took, gpus = (values.get(key) for key in ("outcome", "seconds", "gpu_seconds"))
        if isinstance(took, float) and isinstance(gpus, float) and outcome != "skipped":
            cost = f"took {seconds(took)} and {gpu_seconds(gpus)} after the run"
            told = "Not judged" if outcome == "untold" else str(outcome).capitalize()
            if why := report.not_judged_because.get(score.replace("_", " ")):
                cost = f"{why}; {cost}" if outcome == "untold" else f"not judged: {why}; {cost}"
            bound = _bound(report, score)
            passed = bound is not None and bound.verdict is Verdict.PASS
            yield _figure(name, told, cost, None if passed and (why or outcome == "untold") else bound)


def _files(report: Report) -> Iterator[Figure]:
    values, bound = report.scores.get("files_beside_saves", {}), _bound(report, "files_beside_saves")
    if "not_compared" in values:
        yield _figure("Beside the saves", DASH, str(values["not_compared"]), bound)
    elif isinstance(due := values.get("files"), int) and isinstance(missing := values.get("missing"), int):
        told = one_line(values.get("words") or "as without faults")
        yield _figure("Beside the saves", f"{due - missing} of {counted(due, 'file')}", told, bound)


def _bound(report: Report, score: str, *, having: str = "", lacking: str = "\0") -> Expectation | None:
    found = [e for e in report.expectations if e.name.startswith(score) and having in e.name and lacking not in e.name]
    return next((e for e in found if e.verdict is not Verdict.PASS), found[0] if found else None)


def _figure(name: str, value: str, detail: str, expectation: Expectation | None, measured: bool = False) -> Figure:
    if expectation is None:
        return Figure(name, value, detail)
    bound = expectation.bound.strip()
    if bound[:1].isdigit():
        bound = f"allowed {bound}"
    elif bound[:1].isalpha():
        bound = f"expected: {bound}"
    share = expectation.share if measured else None
    return Figure(name, value, detail, bound, expectation.verdict, share, expectation.name)


def _recovery(report: Report) -> Figure:
    values = report.recovery_time
    episodes, slow = values.episodes, values.degraded
    expectation = _bound(report, "recovery_time", lacking="first_step")
    if values.seconds is None and episodes and episodes[-1].seconds is None:
        if report.run.outcome in (None, "interrupted"):
            return _figure("Recovery time", "Not over", "when the run was stopped", expectation)
        last = report.run.stuck_in
        detail = f"at the end in {words(last).lower()}" if last not in ("", "unknown") else "no step came after"
        return _figure("Recovery time", "Never", detail, expectation)
    if not episodes and values.seconds is None:
        if any(interval.slowdown_before is None for interval in slow):
            return _figure("Recovery time", "Never", "it never returned to its usual speed", expectation)
        why = "it was already this slow before the fault" if slow else _no_outage(report)
        return _figure("Recovery time", DASH, why, expectation)
    detail = "from the last step until new progress"
    if len(episodes) > 1:
        detail = f"the longest of {len(episodes)} recoveries"
    elif not episodes:
        detail = "from the fault until back at its usual speed"
    if fell_back := report.metrics.get("fell_back"):
        detail = f"{detail}; fell back {fell_back}"
    if expectation and expectation.verdict is not Verdict.PASS and expectation.observed.startswith(">"):
        return _figure("Recovery time", expectation.observed, expectation.reason, expectation)
    return _figure("Recovery time", seconds(values.seconds), detail, expectation, measured=True)


def _no_outage(report: Report) -> str:
    return "no step was completed" if report.run.furthest_step == 0 else "progress never stopped"


def _first_step(report: Report) -> Figure:
    values = report.recovery_time
    expectation = _bound(report, "recovery_time", having="first_step")
    stood = max((each.standstill_seconds or 0 for each in values.degraded), default=0)
    if values.episodes:
        told = seconds(values.first_step_seconds, "Never"), "until the first step after the fault, new or repeated"
    elif stood:
        told = seconds(stood), "the longest time without a step"
    else:
        told = seconds(values.first_step_seconds), _no_outage(report)
    return _figure("Steps again after", *told, expectation, measured=True)


_WASTED_BY_FAULTS = ("wasted_gpu_hours.max_percent_by_faults", "wasted_gpu_hours.max_gpu_seconds_by_faults")


def wasted_percent(report: Report) -> float | None:
    """Returns the percentage of GPU time that faults wasted, or `None` if this percentage is unknown, or if no step was
    done."""
    bounds = [each for each in report.expectations if each.name in _WASTED_BY_FAULTS]
    unknown = WASTED_BY_FAULTS in report.not_judged_because or any(each.observed_value is None for each in bounds)
    return None if unknown or report.run.furthest_step == 0 else report.wasted_gpu_hours.percent_by_faults


def _waste(report: Report) -> Figure:
    values = report.wasted_gpu_hours
    share, allocated = wasted_percent(report), values.gpu_seconds_allocated
    expectation = _bound(report, "wasted_gpu_hours")
    if share is None or allocated is None:
        why = "no step was completed" if report.run.furthest_step == 0 else "no ledger"
        why = report.not_judged_because.get(WASTED_BY_FAULTS, why)
        told = expectation.reason if expectation is not None and expectation.observed_value is None else ""
        return _figure("Wasted by faults", DASH, told or why, expectation)
    lost = values.gpu_seconds_wasted_by_faults
    detail = f"{gpu_seconds(allocated * share / 100 if lost is None else lost)} of {gpu_seconds(allocated)}"
    measured = expectation is not None and expectation.name.endswith("max_percent_by_faults")
    return _figure("Wasted by faults", percent(share), detail, expectation, measured)


def _continuity(report: Report) -> Figure:
    values = report.loss_continuity
    expectation = _bound(report, "loss_continuity")
    untold = "Held" if expectation is not None and expectation.verdict is Verdict.PASS else DASH
    if report.run.fault_free is False or values.mode is None:
        return _figure("Loss continuity", untold, "no fault-free run to compare with", expectation)
    difference, at, samples = values.max_abs_diff, values.first_divergent_step, _samples(report)
    beyond = next((each for each in report.not_judged_because if each.startswith("losses after step ")), "")
    samples += f"; {beyond} were not compared" if beyond else ""
    if difference == 0 and at is None and report.run.outcome not in (None, "completed"):
        until = f"to step {report.run.furthest_step or 0:,}, where the job ended early; {samples} until then"
        return _figure("Loss continuity", "Identical", until, expectation)
    if difference == 0 and at is None:
        return _figure("Loss continuity", "Identical", f"bit for bit with the fault-free run; {samples}", expectation)
    if at is not None:
        samples = f"differs from step {at:,}; {samples}"
    if values.mode == "final" and values.final_gap_percent is not None:
        detail = f"mean of the last steps against the fault-free run's; {samples}"
        return _figure("Loss continuity", f"{values.final_gap_percent:+.2g} %", detail, expectation)
    shown = f"{difference:.2g}" if difference is not None else untold
    return _figure("Loss continuity", shown, f"largest difference, {OF_ONE_RANK}; {samples}", expectation)


def continuity_words(report: Report) -> str:
    values = report.loss_continuity
    difference, at = values.max_abs_diff, values.first_divergent_step
    if difference == 0 and at is None and report.run.outcome not in (None, "completed"):
        return f"identical to step {report.run.furthest_step or 0:,}, where the job ended early"
    if difference == 0 and at is None:
        return f"identical, bit for bit; {_samples(report)}"
    shown = "not comparable" if difference is None else f"the largest difference, {OF_ONE_RANK}, is {difference:.2g}"
    first = f", the first one at step {at:,}" if at is not None else ""
    return f"{shown}{first}; {_samples(report)}"


def _samples(report: Report) -> str:
    values = report.loss_continuity
    repeated, skipped = values.samples_repeated, values.samples_skipped
    states = {each.state for each in report.guarantees if each.name in OF_SAMPLES}
    if repeated is None and skipped is None:
        return "samples not logged"
    if not repeated and not skipped:
        told = "samples wrong" if "broken" in states else "samples in doubt" if "open" in states else ""
        return f"{told}: see Guarantees" if told else "every sample once"
    return f"{counted(repeated or 0, 'sample')} repeated, {quantity(skipped or 0)} skipped"


def accounts(report: Report) -> tuple[list[Account], Account | None]:
    """Returns GPU time by kind of use (productive time first, then the largest amounts), and the total. If GPU time is
    unknown, returns an empty list and `None`."""
    booked, allocated = report.wasted_gpu_hours.accounts, report.wasted_gpu_hours.gpu_seconds_allocated
    if not booked or allocated is None:
        return [], None
    names = sorted(booked, key=lambda name: (name != "productive", -booked[name]))
    names = [name for name in names if booked[name] > 0 or name == "productive"]
    digits = 3 if allocated < 1000 else 1 if allocated < 1_000_000 else 0
    rounded = _rounded([booked[name] for name in names], allocated, digits)
    by_faults = report.wasted_gpu_hours.accounts_by_faults
    by_faults = by_faults | {"allocated": sum(by_faults.values())}
    found = []
    for name, amount in [*zip(names, rounded, strict=True), ("allocated", allocated)]:
        share, lost = amount / allocated if allocated else 0.0, by_faults.get(name, 0.0)
        gpu_s, caused = f"{amount:,.{digits}f}", f"{lost:,.{digits}f}" if lost > 0 else ""
        gpu_h = f"{amount / 3600:,.2f}" if allocated >= 3600 else ""
        found.append(Account(name, words(name), gpu_s, caused, gpu_h, f"{100 * share:.2f} %", share))
    return found[:-1], found[-1]


def closed_forms(report: Report) -> list[tuple[str, str, str]]:
    """Returns rows (name, measured value, value that a formula predicts), or no rows if the job recovered from no
    failure."""
    found = report.wasted_gpu_hours.closed_forms
    if not found.failures or found.ettr is None or found.ettr_expected is None:
        return []
    best = f"best: Young {seconds(found.interval_s_young)} · Daly {seconds(found.interval_s_daly)}"
    best = DASH if found.checkpoint_s is None else best
    return [
        ("ETTR, first step to last", percent(100 * found.ettr), percent(100 * found.ettr_expected)),
        ("Work lost by a failure", seconds(found.lost_s), f"{seconds(found.lost_s_expected)}, half an interval"),
        ("Work between two checkpoints", seconds(found.interval_s), best),
    ]


def closed_forms_words(report: Report) -> str:
    found = report.wasted_gpu_hours.closed_forms
    rate = f"a failure every {seconds(found.mean_time_to_failure_s)} that costs {seconds(found.restart_s)}"
    stops = "an unknown time" if found.checkpoint_s is None else seconds(found.checkpoint_s)
    return (
        f"What formulas from the literature expect at this run's rates: {rate} besides lost work, and a checkpoint that"
        f" stops training for {stops}. ETTR, the effective training time ratio, is the share of productive time. Young"
        " and Daly say how much work between two checkpoints wastes least. Expected values are means over failures at"
        " random moments."
    )


def baseline_words(report: Report) -> str:
    if not report.wasted_gpu_hours.accounts.get("straggler_drag"):
        return ""
    return f"Straggler drag: step time above the band of {report.wasted_gpu_hours.baseline}."


def _rounded(amounts: Sequence[float], total: float, digits: int) -> list[float]:
    """Rounds amounts so that they add up to the rounded total: amounts with the largest remainders are rounded up."""
    scale = 10**digits
    units = [math.floor(amount * scale + 1e-6) for amount in amounts]
    missing = round(total * scale) - sum(units)
    if not 0 <= missing <= len(units):
        return [round(amount, digits) for amount in amounts]
    by_remainder = sorted(range(len(units)), key=lambda i: units[i] - amounts[i] * scale)
    for i in by_remainder[:missing]:
        units[i] += 1
    return [unit / scale for unit in units]


def longest_first(report: Report) -> list[tuple[int, Episode]]:
    numbered = enumerate(report.recovery_time.episodes, start=1)
    return sorted(numbered, key=lambda item: (item[1].seconds is not None, -(lasted_s(report, item[1]) or 0)))


def lasted_s(report: Report, episode: Episode) -> float | None:
    return episode.seconds if episode.seconds is not None else report.run.duration_s - episode.t_stop


def fault_rows(report: Report) -> list[dict[str, str]]:
    return [
        {
            "id": fault.id,
            "kind": fault.kind,
            "target": (f"{fault.domain}: " if fault.domain else "") + target_text(fault.target),
            "struck": seconds(fault.t_injected),
            "measured": quantity(fault.effect.measured, fault.effect.unit or ""),
            "expected": quantity(fault.effect.expected, fault.effect.unit or ""),
            "undone": "no" if not fault.healed else "nothing to undo" if fault.kills else "yes",
            "error": fault.error,
        }
        for fault in report.faults
    ]


def target_text(target: object) -> str:
    if isinstance(target, Mapping):
        node, rank = target.get("node"), target.get("rank")
        parts = [str(node)] * (node is not None) + [f"rank {rank}"] * (rank is not None)
        return ", ".join(parts) or json.dumps(dict(target), default=str)
    if isinstance(target, Sequence) and not isinstance(target, str):
        return "; ".join(target_text(one) for one in target) or DASH
    return str(target) if target not in (None, "") else DASH


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Flattens nested values into pairs of name and text, such as `gpu.name` and `H100`."""
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


def hangs(report: Report) -> list[str]:
    told = report.scores.get("collectives", {}).get("hangs", [])
    return [str(each) for each in told] if isinstance(told, list) else []


def metric_rows(report: Report) -> list[tuple[str, str]]:
    rows = []
    for name, value in report.metrics.items():
        unit = "" if "time" in name else "_time"
        shown = words(name.replace("_seconds", unit).replace("_percent", ""))
        rows.append((shown, NOT_HERE if value is None else metric_text(name, value)))
    return rows


KINDS = {"untold": "of no known kind"}
_SECONDS_NAME = re.compile(r"(_s|_seconds)(_|$)")


def metric_text(name: str, value: object) -> str:
    """Formats the value of a metric by the unit in its name, such as `..._seconds`, `..._percent` or `..._bytes`."""
    if isinstance(value, Mapping):
        if list(value) == ["untold"]:
            return metric_text(name, value["untold"])
        return ", ".join(f"{KINDS.get(key, key)} {metric_text(name, item)}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(metric_text(name, item) for item in value) or DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if _SECONDS_NAME.search(name):
            return seconds(value)
        if "percent" in name:
            return percent(value)
        return size(value) if "bytes" in name else quantity(value)
    return DASH if value is None else str(value)


def reproduce(report: Report) -> list[str]:
    name = report.kept_as or copied(report.run_id)
    return [as_here(run_again(name)), as_here(f"chaos score {name}")]
