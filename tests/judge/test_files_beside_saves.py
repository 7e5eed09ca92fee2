"""Files beside the saves that the fault-free run left, and a run with faults did not."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from judging import Bend, bending, bent, verdict
from simulator import Job, Logs, Outage, clocks, simulate

from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.report import run_report, view

JOB = Job(nodes=2, steps=40)
LEFT = ["checkpoints/best.json", "checkpoints/eval/40.json", "checkpoints/log.txt"]
ASKED: dict[str, Any] = {"files_beside_saves": {}}


@bending
def leaving(logs: Logs, files: Sequence[str], count: int | None = None) -> None:
    """The harness saw these beside the saves when all nodes had ended."""
    found = {"event": "files.left", "files": list(files), "count": len(files) if count is None else count}
    logs.put(found | clocks(logs.told("run.finished"), -1))


AS_USUAL = leaving(LEFT)


def unseen(logs: Logs) -> None:
    logs.put({"event": "checkpoint.unseen", "why": "no way in"} | clocks(logs.told("run.finished"), -2))


def judged(bend: Bend, expect: dict[str, Any] = ASKED, usual: Bend = AS_USUAL) -> Scorecard:
    history = simulate(JOB, [Outage(20, "rank")])
    return verdict(history, bend, expect, bent(JOB, usual))


def said(card: Scorecard) -> str:
    (line,) = (each for each in card.expectations if each.name == "files_beside_saves.max_missing")
    assert line.verdict is card.verdict, card.reasons
    return line.reason


def test_the_same_files_pass_and_who_does_not_ask_is_told() -> None:
    card = judged(leaving([*LEFT[:1], "checkpoints/eval/41.json", *LEFT[2:], "checkpoints/core.17"]))
    assert (card.verdict, said(card)) == (Verdict.PASS, "")
    assert card.scores["files_beside_saves"] == {"files": 3, "missing": 0, "names": [], "words": ""}
    card = judged(leaving(LEFT[:2]), {})
    assert card.verdict is Verdict.PASS and card.scores["files_beside_saves"]["names"] == [LEFT[2]]
    assert "files_beside_saves" not in judged(lambda logs: None, {}).scores


@pytest.mark.parametrize(("allowed", "expected"), [(0, Verdict.FAIL), (1, Verdict.FAIL), (2, Verdict.PASS)])
def test_a_missing_file_is_named_and_judged_by_its_bound(allowed: int, expected: Verdict) -> None:
    card = judged(leaving(LEFT[1:2]), {"files_beside_saves": {"max_missing": allowed}})
    assert card.verdict is expected
    assert card.scores["files_beside_saves"]["words"] == f"{LEFT[0]}, {LEFT[2]} were not written"
    assert said(card) == ("" if expected is Verdict.PASS else f"{LEFT[0]}, {LEFT[2]} were not written")


@pytest.mark.parametrize(
    ("bend", "usual", "why"),
    [
        (lambda logs: None, leaving(LEFT), "the log does not tell which files it left"),
        (leaving(LEFT), lambda logs: None, "of the fault-free run, the log does not tell which files it left"),
        (leaving(LEFT), leaving([]), "no file beside the saves of the fault-free run"),
        (leaving(LEFT, 2000), leaving(LEFT), "only 3 of 2000 files are told"),
        (leaving(LEFT), leaving(LEFT, 2000), "of the fault-free run, only 3 of 2000 files are told"),
        (unseen, leaving(LEFT), "the harness did not see all files: no way in"),
    ],
)
def test_missing_evidence_is_not_judged(bend: Bend, usual: Bend, why: str) -> None:
    card = judged(bend, ASKED, usual)
    assert card.verdict is Verdict.INCONCLUSIVE and why in said(card)
    assert view.figures(run_report.from_scorecard(card))[-1].value == "–"


def test_nothing_is_judged_by_a_fault_free_run_on_another_number_of_ranks() -> None:
    smaller = replace(JOB, nodes=1)
    card = verdict(simulate(JOB), leaving(LEFT), ASKED, bent(smaller, leaving(LEFT)))
    assert card.verdict is Verdict.INCONCLUSIVE and "it has another number of ranks" in said(card)


def test_hostile_names_stay_short_and_on_one_line() -> None:
    names = [f"checkpoints/{letter * 900}\n\x1b[31m" for letter in "abcdefgh"]
    card = judged(leaving(LEFT), ASKED, leaving([*LEFT, *names]))
    assert card.verdict is Verdict.FAIL and len(said(card)) < 700 and "and 3 more were not written" in said(card)
    shown = view.figures(run_report.from_scorecard(card))[-1]
    assert (shown.name, shown.value) == ("Beside the saves", "3 of 11 files")
    assert "\n" not in shown.detail and "\x1b" not in shown.detail


def test_the_report_shows_it() -> None:
    as_before, missing = (
        view.figures(run_report.from_scorecard(judged(leaving(left), {})))[-1] for left in (LEFT, LEFT[:2])
    )
    assert (as_before.value, as_before.detail, as_before.verdict) == ("3 of 3 files", "as without faults", None)
    assert (missing.value, missing.detail) == ("2 of 3 files", f"{LEFT[2]} was not written")
