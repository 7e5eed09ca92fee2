"""The Markdown report: what a CI summary or a chat message shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from harness.judge.score import Scorecard, Verdict
from harness.report import view
from harness.report.charts.svg import seconds_text

SIGNS = {Verdict.PASS: "✅", Verdict.FAIL: "❌", Verdict.INCONCLUSIVE: "❔", Verdict.INVALID: "⚠️"}
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~!])")


def render(card: Scorecard) -> str:
    parts = [
        f"# {SIGNS[card.verdict]} {card.verdict.value.capitalize()}: {text(view.headline(card))}",
        f"**{text(card.title or card.scenario)}** · scenario {code(card.scenario)} · backend {code(card.backend)}"
        f" · seed {code(str(card.seed))} · run {code(card.run_id)}",
        "\n".join(f"- {text(reason)}" for reason in view.reasons(card)[1:]),
        text(view.not_judged(card)),
        _figures(card),
        _expectations(card),
        _recoveries(card),
        _accounts(card),
        _closed_forms(card),
        _faults(card),
        "## Play it again\n\n```sh\n" + "\n".join(view.reproduce(card)).replace("```", "") + "\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def text(value: object) -> str:
    """Words from a log as plain text: no markup, no HTML, no table break."""
    return _SPECIAL.sub(r"\\\1", " ".join(str(value).split()))


def code(value: str) -> str:
    return "`" + " ".join(value.replace("`", "'").replace("|", "¦").split()) + "`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table; the columns in `right` hold numbers."""
    rule = ["--:" if i in right else ":--" for i in range(len(head))]
    lines = [head, rule, *([text(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _figures(card: Scorecard) -> str:
    rows = [(f.name, f.value, f.bound or view.DASH, f.verdict or view.DASH, f.detail) for f in view.figures(card)]
    return table(["", "Observed", "Bound", "Verdict", ""], rows)


def _expectations(card: Scorecard) -> str:
    if not card.expectations:
        return ""
    rows = [(f"{SIGNS[e.verdict]} {e.verdict}", e.name, e.bound, e.observed, e.reason) for e in card.expectations]
    return "## Expectations\n\n" + table(["Verdict", "Expectation", "Bound", "Observed", "Reason"], rows)


def _recoveries(card: Scorecard) -> str:
    parts = []
    for number, episode in view.longest_first(card.evidence.run)[:3]:
        took = seconds_text((episode.end - episode.t_stop) / 1e9)
        ended = f"recovered in {took}" if episode.t_regained is not None else f"never recovered, {took} until the end"
        rows = [(view.words(phase), seconds_text(ns / 1e9)) for phase, ns in view.phase_sums(episode)]
        parts.append(f"## Recovery {number}: {ended}\n\n" + table(["Phase", "Time"], rows, right=[1]))
    return "\n\n".join(parts)


def _accounts(card: Scorecard) -> str:
    lines, total = view.accounts(card)
    if total is None:
        return ""
    rows = [(line.label, line.seconds, line.percent) for line in [*lines, total]]
    ledger = table(["Account", "GPU-seconds", "Share"], rows, right=[1, 2])
    return f"## Where the GPU time went\n\n{ledger}\n\n{text(view.baseline_words(card))}"


def _closed_forms(card: Scorecard) -> str:
    rows = view.closed_forms(card)
    if not rows:
        return ""
    forms = table(["", "Measured", "Closed form"], rows, right=[1, 2])
    return f"## Held against closed forms\n\n{text(view.closed_forms_words(card))}\n\n{forms}"


def _faults(card: Scorecard) -> str:
    keys = ["id", "kind", "target", "injected", "measured", "expected", "healed"]
    rows = [[row[key] for key in keys] for row in view.fault_rows(card)]
    head = ["Fault", "Kind", "Target", "Injected at", "Effect measured", "Expected", "Undone"]
    return "## Faults\n\n" + table(head, rows, right=[3, 4, 5]) if rows else ""
