"""Judges whether a job that somebody else started survived injected faults, by what can be observed from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from harness.gameday.codes import Code
from harness.judge.verdict import Doubt, Finding, Verdict, merge
from harness.units import counted

Record = Mapping[str, Any]
LOSSES = "loss continuity"
NOT_JUDGED = (
    "phases of recovery",
    "wasted GPU-hours",
    LOSSES,
    "sample order",
    "restored checkpoints",
    "use of GPUs",
)
GOOD = ("running", "ended")
failed, unknown = partial(Finding, Verdict.FAIL), partial(Finding, Verdict.INCONCLUSIVE)
invalid = partial(Finding, Verdict.INVALID)


@dataclass(frozen=True)
class AttachedResult:
    verdict: Verdict
    reasons: Sequence[str]


def not_judged(records: Sequence[Record]) -> list[str]:
    """Returns the names of the aspects (such as sample order) that cannot be judged for a job that somebody else
    started. Losses are judged if each step that a restart repeated could be compared with its first execution."""
    answers = [record["same"] for record in records if record["what"] == "done_again"]
    judged = bool(answers) and None not in answers
    return [each for each in NOT_JUDGED if not (judged and each == LOSSES)]


def judge_attached(records: Sequence[Record], planned: int) -> AttachedResult:
    """Judges a running job by the records of the faults that were injected into it. `planned` is the number of faults
    in the schedule."""
    findings = [*_of_the_schedule(records, planned)]
    struck = False
    for record in records:
        struck |= record["what"] == "struck"
        findings += _of_probe(record, struck) if record["what"] == "probe" else _findings_of(record)
    verdict = merge([Verdict.PASS, *(finding.verdict for finding in findings)])
    reasons = [finding.text for finding in findings if finding.verdict is verdict]
    reasons += [finding.text for finding in findings if finding.verdict is not verdict]
    return AttachedResult(verdict, reasons or [f"each of {planned} strikes acted, was undone, and the job went on"])


def _of_the_schedule(records: Sequence[Record], planned: int) -> Iterator[Finding]:
    last = records[-1] if records else {}
    struck = sum(record["what"] == "struck" for record in records)
    watched = sum(record["what"] == "after" for record in records)
    if last.get("what") != "finished":
        yield unknown("the harness ended before the schedule was over", Code.STRIKES_NO_END)
    elif last["outcome"] == "not_steady" and struck:
        yield failed(f"after {counted(struck, 'strike')}: {last['reason']}", Code.STRIKES_NOT_STEADY)
    elif last["outcome"] != "completed":
        text = f"the schedule was not completed: {last['outcome']}: {last['reason']}"
        yield unknown(text, Code.STRIKES_NOT_COMPLETED)
    if watched < planned:
        yield unknown(f"only {watched} of {planned} strikes were seen to their end", Code.STRIKES_NOT_SEEN)


def _findings_of(record: Record) -> Iterator[Finding]:
    number = int(record.get("entry", 0)) + 1
    if record["what"] == "struck":
        for node in (node for node, acted in record["acted"].items() if not acted):
            yield invalid(f"entry {number}: {record['verb']} did not act on {node}", Code.STRIKE_NO_EFFECT)
    elif record["what"] == "undone":
        for node in (node for node, healed in record["healed"].items() if not healed):
            text = f"entry {number}: {node} is still {record['seen'][node]['state']}: run `chaos heal`"
            yield invalid(text, Code.STRIKE_NOT_HEALED)
    elif record["what"] == "after":
        yield from _went_on(record, f"entry {number}")
    elif record["what"] == "done_again" and record["same"] is False:
        yield failed(f"{record['node']}: {record['text']}", Code.STRIKE_DONE_OTHERWISE)


def _of_probe(record: Record, struck: bool) -> Iterator[Finding]:
    if not record["ok"]:
        why = f"probe {record['name']} failed ({record['moment']}): {record['detail']}"
        text = f"entry {int(record['entry']) + 1}: {why}"
        yield failed(text, Code.PROBE_FAILED) if struck else unknown(text, Code.PROBE_FAILED, Doubt.NOTHING_STRUCK)


def _went_on(record: Record, entry: str) -> Iterator[Finding]:
    codes = record["codes"]
    for node, code in codes.items():
        if code != 0:
            yield failed(f"{entry}: {node} ended with {code}", Code.STRIKE_NODE_ENDED)
    lost = [f"{node} is {seen['state']}" for node, seen in record["seen"].items() if seen["state"] not in GOOD]
    if lost:
        yield failed(f"{entry}: the job is not whole again: {', '.join(lost)}", Code.STRIKE_NOT_WHOLE)
    if codes and not any(codes.values()) and len(codes) == len(record["seen"]):
        return
    highest, now = record["highest"], record["now"]
    if highest is None or now is None:
        text = f"{entry}: nothing shows whether the job went on; the plan's progress: can"
        yield unknown(text, Code.STRIKE_UNKNOWN_PROGRESS)
    elif now <= highest and not any(codes.values()):
        text = f"{entry}: no progress for {record['took_s']:.0f} s after it was undone: still at {now:g}"
        yield failed(text, Code.STRIKE_NO_PROGRESS)
