"""Markdown, JUnit, terminal summary, and writing them all."""

import io
import json
import pathlib
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from unittest.mock import Mock

import pytest
import report_runs
from judging import Bend
from msgspec.structs import replace as replace_fields
from rich.console import Console
from simulator import Logs, change

import harness.report
from harness.cli import terminal
from harness.judge.score import Expectation
from harness.judge.verdict import Verdict
from harness.judge.weighing import Judged
from harness.report import html_page, junit, markdown, run_report, view
from harness.report.words import BEYOND

FOUR = [Expectation(f"score.{verdict}", "1 s", "2 s", verdict, f"it is {verdict}") for verdict in Verdict]


def test_junit_has_a_case_for_the_verdict_and_for_each_expectation() -> None:
    card = replace(report_runs.spot_evict(), verdict=Verdict.FAIL, expectations=FOUR)
    suite = ElementTree.fromstring(junit.render(run_report.from_scorecard(card)).split("\n", 1)[1]).find("testsuite")
    assert suite is not None
    outcome = {case.get("name"): [child.tag for child in case] for case in suite.findall("testcase")}
    told = {"pass": [], "inconclusive": ["error"], "invalid": ["error"], "fail": ["failure"]}
    assert outcome == {"verdict": ["failure"]} | {f"score.{verdict}": tags for verdict, tags in told.items()}
    hostile = ElementTree.fromstring(junit.render(run_report.from_scorecard(report_runs.hostile())).split("\n", 1)[1])
    assert [case.get("name") for case in hostile.iter("testcase")][:1] == ["verdict"]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "2", "2")
    properties = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert properties["seed"] == "7"
    assert float(str(properties["recovery_time.seconds"])) > 0
    assert "wasted_gpu_hours.percent" in properties


def test_a_summary_names_the_save_to_which_a_job_fell_back() -> None:
    def falls_back(logs: Logs) -> None:
        restored = [line for line in logs.all("restored", life=-1) if line["step"]]
        change(restored, fallback=[{"source": "/run/checkpoints/save_000100.pth", "reason": "its end is lost"}])

    for bends, said in (([falls_back], "; fell back to step 80, past checkpoints/save_000100.pth"), ([], "")):
        report = run_report.from_scorecard(report_runs.judged(report_runs.JOB, [report_runs.LOST], *bends))
        (recovery,) = [figure for figure in view.figures(report) if figure.name == "Recovery time"]
        assert recovery.detail == f"from the last step until new progress{said}"


def test_markdown_has_everything_a_ci_summary_needs() -> None:
    text = markdown.render(run_report.from_scorecard(report_runs.never_recovered()))
    assert text.startswith("# ❌ Fail: ")
    for e in report_runs.never_recovered().expectations:
        assert markdown.text(e.name) in text
    for heading in ("## Expectations", "## Recovery 1: never recovered", "## Where the GPU time went", "## Faults"):
        assert heading in text
    assert "chaos run --plan spot-evict-7" in text


def test_markdown_tables_keep_their_columns_whatever_the_log_says() -> None:
    text = markdown.render(run_report.from_scorecard(report_runs.hostile()))
    assert "<script>" not in text.replace("\\<script\\>", "").split("```")[0].replace("`<script>", "")
    for block in text.split("\n\n"):
        rows = [line for line in block.split("\n") if line.startswith("|")]
        columns = {row.replace("\\|", "").count("|") for row in rows}
        assert len(columns) <= 1, block


@pytest.mark.parametrize(
    ("allocated", "booked", "lines"),
    [
        (1.0, [1 / 3] * 3, ["0.334", "0.333", "0.333"]),
        (10.0, [3.3334, 3.3333, 3.3333], ["3.334", "3.333", "3.333"]),
        (10.0, [1.0, 1.0], ["1.000", "1.000"]),
    ],
)
def test_rounded_lines_add_up_and_a_ledger_that_does_not_is_not_made_to(
    allocated: float, booked: list[float], lines: list[str]
) -> None:
    waste = {"gpu_seconds_allocated": allocated, "accounts": dict(zip("abc", booked, strict=False))}
    report = replace_fields(run_report.from_scorecard(report_runs.spot_evict()), scores={"wasted_gpu_hours": waste})
    assert [each.seconds for each in view.accounts(report)[0]] == lines


def test_the_terminal_summary_is_plain_when_not_on_a_terminal() -> None:
    out = io.StringIO()
    report = run_report.from_scorecard(report_runs.spot_evict())
    terminal.print_report(report, pathlib.Path("/r/report.html"), Console(file=out))
    text = out.getvalue()
    assert "\x1b" not in text
    assert text.splitlines()[0].startswith("✔ PASS  Recovered in")
    assert all(name in text for name in ("Recovery time", "Steps again after", "Wasted by faults", "Loss continuity"))
    assert "/r/report.html" in text
    assert len(text.splitlines()) == 8, "no line is wrapped"


def test_all_reports_are_written_and_the_json_is_strict(tmp_path: pathlib.Path) -> None:
    files = harness.report.write_reports(report_runs.spot_evict(), tmp_path)
    assert sorted(files) == ["junit.xml", "report.html", "report.json", "report.md"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files), "no temporary file stays"
    assert json.loads(files["report.json"].read_text())["verdict"] == "pass"
    card = replace(report_runs.spot_evict(), metrics={"loss": float("nan"), "high": float("inf")})
    text = harness.report.write_reports(card, tmp_path)["report.json"].read_text()
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_a_failing_write_leaves_the_earlier_reports(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.report.write_reports(report_runs.spot_evict(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        harness.report.write_reports(report_runs.never_recovered(), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize(
    "untold", [{}, {"order": "untold", "<b>pace</b>": "a `reason`"}], ids=["all-judged", "not-all"]
)
def test_what_was_not_judged_is_named_and_a_pass_says_once_what_it_leaves_open(
    verdict: Verdict, untold: dict[str, str]
) -> None:
    passed, mute = verdict is Verdict.PASS, [Judged("team.own", "It holds.", "not judged", "nothing restarted the job")]
    card = replace(report_runs.spot_evict(), verdict=verdict, not_judged=untold, guarantees=mute)
    report, shown = run_report.from_scorecard(card), io.StringIO()
    Console(file=shown, width=300).print(terminal.summary(report))
    page, marked = html_page.render(report), markdown.render(report)
    for text in (page, marked, shown.getvalue()):
        assert text.count(BEYOND) == passed and "Not judged: nothing." not in text
        assert ("This run says nothing of 1 guarantee: team.own." in text) is passed
    assert "Team · own | nothing restarted the job" in marked
    if untold:
        assert "Not judged: order (untold)" in marked
        assert "Not judged: order (untold); &lt;b&gt;pace&lt;/b&gt;" in page and "order, " in junit.render(report)
        assert ("Not judged: order" in shown.getvalue()) is not passed
    told = report.to_json()
    assert told["not_judged"] == list(untold) and told["not_judged_because"] == untold
    report = run_report.from_scorecard(replace(card, guarantees=()))
    for text in (html_page.render(report), markdown.render(report)):
        assert ("Not judged: nothing." in text) is (passed and not untold)


def test_a_restore_drill_that_told_nothing_is_called_not_judged() -> None:
    card = report_runs.spot_evict()
    scores = {**card.scores, "last_checkpoint": {"outcome": "untold", "seconds": 3.0, "gpu_seconds": 6.0}}
    untold = {"last checkpoint": "nothing told what they had restored"}
    report = run_report.from_scorecard(replace(card, scores=scores, not_judged=untold))
    (drill,) = (each for each in view.figures(report) if each.name == "Restore drill")
    assert drill.value == "Not judged"
    assert drill.detail == "nothing told what they had restored; took 3.00 s and 6.0 GPU-s after the run"


def test_a_difference_says_whose_loss_it_is_of() -> None:
    """The table has that of one rank, which is what is judged; the chart has the largest over the ranks."""

    def off(rank: int, by: float) -> Bend:
        return lambda logs: change(logs.steps(200, rank=rank), loss=lambda line: line["loss"] + by)

    card = report_runs.judged(report_runs.JOB, [report_runs.LOST], off(0, 0.25), off(1, 0.75))
    page = html_page.render(run_report.from_scorecard(card), card.evidence)
    assert "largest difference, of the lowest rank that tells a loss; differs from step 200" in page
    assert "the largest difference, of the lowest rank that tells a loss, is 0.25, the first one at step 200" in page
    assert "Largest difference of any rank, log scale" in page
