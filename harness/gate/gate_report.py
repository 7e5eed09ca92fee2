"""Makes the report files of a gate: suite.json, report.md, report.html and junit.xml."""

from __future__ import annotations

import re
import statistics
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from harness.campaign.repeats import RepeatVerdict
from harness.gate.baseline_comparison import RUNS_MIN, RUNS_USUAL, Question, Regressions, Success, title
from harness.gate.baseline_comparison import Answer as Comparison
from harness.gate.stored_gate import SCHEMA, Part, Run
from harness.judge.score import S, Scorecard
from harness.judge.verdict import Verdict
from harness.report import html_page, junit, markdown, run_report
from harness.report.commands import command, copied, step_here
from harness.report.strict_json import json_text, strict
from harness.report.view import in_words
from harness.report.words import gpu_seconds, minute, seconds
from harness.units import counted

MUCH_BETTER = 0.75  # ratio to the baseline up to which runs did much better
NO_PART = Part(0, 0, "", "", 0, "", ())
HEAD = ("Verdict", "Scenario", "Runs", "Reason", "Newest run")


@dataclass(frozen=True)
class SuiteRow:
    name: str
    title: str
    result: RepeatVerdict
    cards: Sequence[Scorecard] = ()
    known: bool = False  # its failure is a known one
    stored: Sequence[Run] = ()
    swept: bool = False  # it is a sweep over the saves of its job, without a fault

    @property
    def runs(self) -> Sequence[Run]:
        return self.stored or [Run(card.run_id, card.verdict) for card in self.cards]

    @property
    def took_s(self) -> float:
        return sum(card.evidence.run.end - card.evidence.run.begin for card in self.cards) / S

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        newest = self.runs[-1].run_id if self.runs else "—"
        said = "; ".join(self.result.reasons[: 2 if self.result.verdict is Verdict.FAIL else 1])
        return self.result.verdict.value, self.name, str(len(self.runs)), in_words(said), newest


@dataclass(frozen=True)
class GateResult:
    """The result of a gate, which runs a suite of scenarios for one verdict. `rows` is empty if no scenario ran, for
    example because the blindness check (a scenario that must fail) did not fail."""

    suite: str
    title: str
    run_id: str
    verdict: Verdict
    reason: str
    blindness_check: SuiteRow
    rows: Sequence[SuiteRow] = ()
    held: Regressions | None = None  # comparison with a baseline
    part: Part = NO_PART
    path: str = ""  # path of its file, if its name alone does not find it

    @property
    def counts_later(self) -> bool:
        """Returns True if each run of the gate recorded the version of the trainer's code, so that a later gate can
        count these runs, too (`--add`)."""
        codes = [card.environment for row in self.rows for card in row.cards]
        return all(code.get("trainer_diff") or code.get("image_digest") for code in codes)


def yes_or_no(answer: GateResult) -> str:
    """Returns the gate's result in one line, such as `NO: of 12 scenarios, 1 failed, 9 passed, 2 did not run.`"""
    if answer.verdict is Verdict.PASS:
        part = answer.part.again or answer.part.tag or answer.part.shard
        return f"{'YES, for a part of the suite' if part else 'YES'}: {answer.reason}."
    if not answer.rows:
        return f"NO: {answer.reason}."
    verdicts = [row.result.verdict for row in answer.rows]
    failed, passed = verdicts.count(Verdict.FAIL), verdicts.count(Verdict.PASS)
    absent = max(0, len(answer.part.names) - len(verdicts))
    whole = counted(len(verdicts) + absent, "scenario")
    if passed == len(verdicts):
        return f"NO: {answer.reason}."
    told = [f"{failed} failed"] if failed else []
    told += [f"{unknown} could not be judged"] if (unknown := len(verdicts) - failed - passed) else []
    told += [f"{passed} passed"] if passed else []
    told += [f"{absent} did not run"] if absent else []
    held = answer.held
    against = f"; against baseline {held.baseline}: {held.verdict}" if held and held.verdict is not Verdict.PASS else ""
    return f"NO: of {whole}, {', '.join(told)}{against}."


def clauses(reason: str) -> list[str]:
    return [in_words(each) for each in re.split(r"; (?![^(]*\))", reason)]


def next_steps(answer: GateResult) -> list[str]:
    steps = []
    for row in answer.rows:
        run_id = next((run.run_id for run in row.runs if run.verdict is Verdict.FAIL), "")
        if row.result.verdict is Verdict.FAIL and run_id:
            look = f"chaos show {copied(run_id)}"
            steps.append(f"{row.name} failed: {look}")
    return [*steps, *_what_got_worse(answer), *_what_would_settle(answer)]


def _what_got_worse(answer: GateResult) -> Iterator[str]:
    held = answer.held or Regressions("", ())
    worse = {each.question.scenario for each in held.answers if each.verdict is Verdict.FAIL}
    for row in answer.rows:
        if row.name in worse and row.runs and (before := held.runs.get(row.name)):
            compared = f"chaos compare {copied(before)} {copied(row.runs[-1].run_id)}"
            yield f"{row.name} got worse; find the phase, rank or account of GPU time: {compared}"
    better = sorted({each.question.scenario for each in held.answers if each.bounds and each.bounds[1] < MUCH_BETTER})
    if better:
        yield (
            f"{', '.join(better)} did much better than the baseline, which may be of a busier host and hide what"
            f" gets worse; on a quiet host, make a new one: {command('baseline', 'set', held.baseline)}"
        )


def _what_would_settle(answer: GateResult) -> Iterator[str]:
    verdicts = {row.result.verdict for row in answer.rows}
    open_ones = verdicts & {Verdict.INCONCLUSIVE, Verdict.INVALID}
    unclear = bool(open_ones or answer.part.incomplete) and not answer.part.shard
    compared = answer.held.answers if answer.held is not None and Verdict.FAIL not in verdicts else ()
    more = max((each.more or 0 for each in compared), default=0)
    before = [each.question.runs_before for each in compared if isinstance(each.question, Success)]
    if answer.held is not None and min(before, default=RUNS_MIN) < RUNS_MIN:
        yield (
            f"The baseline has too few runs: make a gate with --repeat {RUNS_USUAL} on the stack that you trust, then:"
            f" {command('baseline', 'set', answer.held.baseline)}"
        )
        more = 0
    if any(row.stored for row in answer.rows):
        if unclear or more:
            yield "Run the shards again with more runs (--repeat), on quiet hosts; then merge them"
        return
    known = answer.counts_later and not (answer.part.again and not answer.part.added)
    again = _again(answer, "--add", answer.run_id) if known else _again(answer)
    if unclear and known:
        yield f"Run the scenarios that did not pass again, on a quiet host: {again} --last-failed{_repeat(answer)}"
    elif unclear:
        yield f"Run the gate again, on a quiet host: {again}{_repeat(answer)}"
    elif answer.part.again and not answer.part.added and answer.rows:
        yield f"This was a part of the suite; for an answer about all of it: {again}{_repeat(answer)}"
    if more:
        runs = more if known else more + max(len(row.runs) for row in answer.rows)
        yield f"To settle the comparison: {again} --repeat {runs}"


def _again(answer: GateResult, *more: str) -> str:
    words = ["gate", answer.path or answer.suite, *more]
    words += ["--tag", answer.part.tag] if answer.part.tag else []
    words += ["--backend", answer.part.backend] if answer.part.backend not in ("", "local") else []
    words += ["--seed", str(answer.part.seed)] if answer.part.seed != 1 else []
    words += ["--against", answer.held.baseline] if answer.held is not None else []
    return command(*words)


def _repeat(answer: GateResult) -> str:
    return f" --repeat {answer.part.repeat}" if answer.part.repeat else ""


COMPARED_HEAD = ("Verdict", "Scenario", "Figure", "Baseline", "Now", "Ratio", "95 % bounds", "Reason")


def compared_cells(answer: Comparison) -> tuple[str, ...]:
    question = answer.question
    ratio = "—" if answer.ratio is None else f"{answer.ratio:.2f} ×"
    bounds = "—" if answer.bounds is None else f"{answer.bounds[0]:.2f} to {answer.bounds[1]:.2f}"
    head = answer.verdict.value, question.scenario, title(question.figure)
    why = answer.reason if answer.verdict is Verdict.INCONCLUSIVE else ""
    if not isinstance(question, Question):
        rates = f"{question.failed_before} of {question.runs_before}", f"{question.failed_now} of {question.runs_now}"
        return (*head, *(f"{rate} failed" for rate in rates), ratio, bounds, why)
    return (*head, *(middle(question.figure, side) for side in (question.before, question.now)), ratio, bounds, why)


def middle(figure: str, values: Sequence[float]) -> str:
    if not values:
        return "none"
    middle = statistics.median(values)
    shown = seconds(middle) if figure == "recovery_time" else gpu_seconds(middle)
    return f"{shown} (median of {len(values)})" if len(values) > 1 else f"{shown} (1 run)"


def render(answer: GateResult) -> dict[str, str]:
    compared = [compared_cells(each) for each in answer.held.answers] if answer.held else []
    told: dict[str, Any] = {"answer": answer, "compared": compared, "in_words": in_words}
    begun = [str(card.environment.get("begun_at") or "") for row in answer.rows for card in row.cards]
    first = min(filter(None, begun), default="")  # empty if no run was judged here
    runs = sum(len(row.runs) for row in answer.rows)
    crumbs = [*([minute(first)] if first else []), *([counted(runs, "run")] if runs else [])]
    told |= {"yes_or_no": yes_or_no(answer), "next_steps": next_steps(answer), "crumbs": crumbs}
    return {
        "suite.json": json_text(strict(suite_json(answer))),
        "report.md": _markdown(answer),
        "report.html": html_page.fill(f"{__package__}/suite.jinja", **told),
        "junit.xml": _junit(answer),
    }


def suite_json(answer: GateResult) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "suite": answer.suite,
        "title": answer.title,
        "run_id": answer.run_id,
        "verdict": answer.verdict.value,
        "reason": answer.reason,
        "blindness_check": _json_row(answer.blindness_check),
        "scenarios": [_json_row(row) for row in answer.rows],
        "part": msgspec.to_builtins(answer.part),
        "against": None if answer.held is None else against_json(answer.held),
        "answer": yes_or_no(answer),
        "next_steps": next_steps(answer),
    }


def against_json(held: Regressions) -> dict[str, object]:
    return {
        "baseline": held.baseline,
        "verdict": held.verdict.value,
        "reasons": held.reasons,
        "comparisons": [_json_comparison(answer) for answer in held.answers],
        "not_compared": list(held.not_compared),
    }


def _json_comparison(answer: Comparison) -> dict[str, object]:
    question = answer.question
    values: dict[str, object] = {"scenario": question.scenario, "figure": question.figure}
    values |= {"verdict": answer.verdict.value, "reason": answer.reason, "more_runs": answer.more}
    values |= {"ratio": answer.ratio, "bounds": None if answer.bounds is None else list(answer.bounds)}
    if isinstance(question, Question):
        return values | {"before": list(question.before), "now": list(question.now)}
    rates = {"failed_before": question.failed_before, "runs_before": question.runs_before}
    return values | rates | {"failed_now": question.failed_now, "runs_now": question.runs_now}


def _json_row(row: SuiteRow) -> dict[str, object]:
    figures = {}
    for name, found in row.result.assessments.items():
        shares = {"median_share": found.median, "median_interval": list(found.interval), "tail_share": found.tail}
        figures[name] = {"runs": found.runs, **shares}
    return {
        "scenario": row.name,
        "title": row.title,
        "verdict": row.result.verdict.value,
        "reasons": list(row.result.reasons),
        "known_failure": row.known,
        "swept": row.swept,
        "runs": msgspec.to_builtins(row.runs),
        "shares_of_bounds": figures,
    }


def _markdown(answer: GateResult) -> str:
    sign = markdown.SIGNS[answer.verdict]
    head = f"# {sign} {answer.verdict.value.capitalize()}: {markdown.text(answer.reason)}"
    name = f"**{markdown.text(answer.title)}** · suite {markdown.code(answer.suite)} · {markdown.code(answer.run_id)}"
    caught = answer.blindness_check.result
    check = f"The blindness check, which must fail: {caught.verdict}, {caught.reasons[0]}"
    rows = [row.cells for row in answer.rows]
    parts = [f"**{markdown.text(yes_or_no(answer))}**", head, name]
    parts += [markdown.text(step_here(step)) for step in next_steps(answer)]
    parts += [markdown.text(check), markdown.table(HEAD, rows)]
    parts += [markdown.text(f"Left out: {each.scenario}, {each.why}") for each in answer.part.left_out]
    if answer.held is not None:
        parts.append(f"## Against baseline {markdown.code(answer.held.baseline)}")
        parts.append(markdown.table(COMPARED_HEAD, [compared_cells(each) for each in answer.held.answers]))
        parts += [markdown.text(f"Not compared: {each}") for each in answer.held.not_compared]
        parts += [markdown.text(f"Missing: the baseline has no runs of {each}") for each in answer.held.missing]
    return "\n\n".join(parts) + "\n"


def _one_of(row: SuiteRow, number: int) -> str:
    return f"{row.name}, run {number} of {len(row.cards)}" if len(row.cards) > 1 else row.name


def _junit(answer: GateResult) -> str:
    caught = bool(answer.rows)
    check = (Verdict.PASS, answer.blindness_check.result.reasons) if caught else (Verdict.INVALID, (answer.reason,))
    cases: list[tuple[str, Verdict, Sequence[str], float]] = [("blindness check", *check, 0)]
    cases += [(row.name, row.result.verdict, row.result.reasons, row.took_s) for row in answer.rows]
    left_out = [each for each in answer.part.left_out if each.required]
    cases += [(each.scenario, Verdict.INCONCLUSIVE, (f"left out: {each.why}",), 0) for each in left_out]
    if held := answer.held:
        for each in held.answers:
            name = f"{each.question.scenario}, {title(each.question.figure)} against {held.baseline}"
            cases.append((name, each.verdict, (each.reason or "as before",), 0))
        cases += [(f"{name} against {held.baseline}", Verdict.INCONCLUSIVE, ("not in it",), 0) for name in held.missing]
    verdicts = [verdict for _, verdict, *_ in cases]
    gate = junit.empty_suite(answer.suite, verdicts, time=f"{sum(took_s for *_, took_s in cases):.3f}")
    for name, verdict, reasons, took_s in cases:
        junit.case(gate, answer.suite, name, verdict, reasons[0], "\n".join(reasons), took_s)
    ElementTree.SubElement(gate, "system-out").text = junit.clean(
        "\n".join([yes_or_no(answer), *map(step_here, next_steps(answer))])
    )
    return junit.document(
        [
            gate,
            *(
                junit.suite_of(run_report.from_scorecard(card), _one_of(row, number))
                for row in answer.rows
                for number, card in enumerate(row.cards, 1)
            ),
        ]
    )
