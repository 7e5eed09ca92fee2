"""Two runs beside each other: the phase, the rank and the account that explain the difference are named."""

import json
import pathlib
import re
from dataclasses import replace

import msgspec
import pytest
import report_runs
from judging import load
from report_pages import Page
from simulator import PHASE_MS, Job, Outage, simulate

import harness.report
from harness.cli.output import print_json
from harness.errors import UsageError
from harness.evidence.logs import load_evidence
from harness.gate import two_runs_report
from harness.gate.beside_chart import beside_chart
from harness.gate.history_command import compare_runs
from harness.gate.two_runs_difference import Line, lines, rank_lines, starts_by_rank
from harness.gate.two_runs_inputs import CODE_UNKNOWN, different_inputs
from harness.gate.two_runs_report import Section, compare, render, sentences
from harness.judge.score import judge
from harness.report import run_report, view
from harness.report.words import seconds

JOB = Job(nodes=2, steps=40)
KILL = [Outage(after=12, kind="rank")]


@pytest.fixture
def runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Two real logs of one job; in the second one a restore takes 2 s more."""
    for name, more_ms in (("fast", 0), ("slow", 2000)):
        monkeypatch.setitem(PHASE_MS, "restore", 140 + more_ms)
        history = simulate(JOB, KILL, seed=5)
        folder = history.write(tmp_path / name)
        card = judge(load_evidence(folder), folder.name)
        harness.report.write_reports(card, folder)
        (folder / "plan.json").write_text(json.dumps(card.evidence.run.plan, default=str))
    return tmp_path


def test_the_slow_restore_is_named(runs: pathlib.Path) -> None:
    found = compare_runs("fast", "slow", runs)
    phases, ranks, accounts = found.sections
    assert phases.largest and phases.largest.name == "restore"
    assert phases.largest.change == pytest.approx(2.0, abs=0.8)
    assert ranks.largest and ranks.largest.name.endswith("restore") and ranks.largest.name.startswith("rank ")
    assert accounts.largest and accounts.largest.name == "restore"
    said = " ".join(sentences(found))
    assert "By phase of the longest recovery: most of it is restore, +" in said
    back, there = compare_runs("slow", "fast", runs), phases.largest.change
    assert there and back.sections[0].largest and back.sections[0].largest.change == -there
    assert "restore, −" in " ".join(sentences(back))
    with pytest.raises(UsageError, match="both are run fast"):
        compare_runs("fast", "fast", runs)


def test_a_part_below_half_of_the_difference_is_not_most_of_it() -> None:
    before = run_report.from_scorecard(report_runs.spot_evict())
    slower = before.metrics["step_seconds_p50"] * 1.34
    recovery = before.scores["recovery_time"] | {"seconds": before.scores["recovery_time"]["seconds"] + 0.65}
    scores, metrics = before.scores | {"recovery_time": recovery}, before.metrics | {"step_seconds_p50": slower}
    after = msgspec.structs.replace(before, scores=scores, metrics=metrics)
    found = compare(before, after, ({"rank 1, startup": 1.0}, {"rank 1, startup": 1.071}))
    assert "By rank, in that recovery: the largest part is rank 1, start-up, +71 ms of +650 ms." in sentences(found)
    found = compare(before, after, ({"rank 1, startup": 1.0}, {"rank 1, startup": 6.0}))
    said = " ".join(sentences(found)).replace("start-up", "startup")
    assert "startup changed most" in said, "5 s are not most of 650 ms"
    unknown, pace = found.cautions
    assert pace.startswith("median step: ") and pace.endswith("by the host's load or by the trainer")
    assert compare(before, before, None, "gone").cautions == [unknown] == [f"code: {CODE_UNKNOWN}"]


def test_the_inputs_that_differ_are_named() -> None:
    card = report_runs.spot_evict()
    known = run_report.from_scorecard(replace(card, environment={**card.environment, "source_digest": "a", "cpu": "x"}))
    other = msgspec.structs.replace(known, environment=known.environment | {"source_digest": "b", "cpu": "y"})
    words = ["python", "train.py", *["--lr", "0.1"], *["--data", "d" * 60]]
    before = {"run_id": "1", "seed": 1, "workload": {"nodes": 2, "steps": 40, "trainer": {"command": words}}}
    changed = {"command": [*words[:3], "0.2", *words[4:]]}
    after = {"run_id": "2", "seed": 3, "workload": {"nodes": 4, "steps": 40, "trainer": changed}}
    after |= {"faults": [{"id": "kill"}], "scenario": {"file_digest": "f"}}
    assert different_inputs(known, known, (before, before)) == []
    assert "Nothing that goes in differs" in " ".join(sentences(compare(known, known, None, "", (before, before))))
    assert different_inputs(known, other, (before, after)) == [
        "seed: 1 and 3",
        "size: nodes 2 and 4",
        "arguments: command --lr 0.1 and --lr 0.2",
        "faults: id none and kill",
        "scenario: file digest none and f",
        "code: source digest a and b",
        "host: cpu x and y",
    ]


def test_without_a_log_the_ranks_are_not_known(runs: pathlib.Path) -> None:
    for file in (runs / "slow" / "events").iterdir():
        file.unlink()
    found = compare_runs("fast", "slow", runs)
    assert found.sections[1].lines == [] or not found.sections[1].lines
    assert "not known, an event log cannot be read" in " ".join(sentences(found))
    assert found.sections[0].largest, "the reports still tell the phases"


def test_lines_are_in_order_of_their_change_and_what_a_rank_lacks_is_not_zero() -> None:
    found = lines({"a": 1.0, "b": 5.0, "c": 2.0}, {"a": 1.5, "b": 1.0, "d": 0.1})
    assert [line.name for line in found] == ["b", "c", "a", "d"]
    assert lines({"restore": 1.0}, {})[0] == Line("restore", 1.0, 0.0)
    (lacking,) = rank_lines({"rank 0, restore": 1.0}, {})
    assert lacking == Line("rank 0, restore", 1.0, None) and lacking.change is None
    assert starts_by_rank(load(simulate(JOB, (), seed=1))) == {}, "ranks that kept their process have no start"


def test_the_page_is_whole_and_escapes(runs: pathlib.Path) -> None:
    page = Page(render(compare_runs("fast", "slow", runs)))
    assert page.open == [] and "What explains the difference" in page.text
    hostile = run_report.from_scorecard(report_runs.hostile())
    source = two_runs_report.render(compare(hostile, hostile, None, "<script>alert"))
    assert "<script>alert" not in source and not {"\x1b", "\u202e"} & set(source)


def test_a_run_without_an_outage_or_an_end_of_it_is_not_compared_phase_by_phase() -> None:
    makers = report_runs.spot_evict, report_runs.no_outage, report_runs.never_recovered
    before, calm, never = (run_report.from_scorecard(make()) for make in makers)
    said = " ".join(sentences(compare(before, calm, ({"rank 0, restore": 1.0}, {}))))
    assert "Recovery time: 3.04 s in the first run, progress never stopped in the second." in said
    assert "By phase of the longest recovery: not known, only the first run has an outage." in said
    assert "By rank, in that recovery: not known, only the first run has a rank that was started again." in said
    assert "nothing differs" not in said
    found = compare(never, before, None)
    assert sentences(found)[0] == "Recovery time: never in the first run, 3.04 s in the second."
    assert "Never" in Page(render(found)).text
    source = render(compare(before, msgspec.structs.replace(before, backend="docker"), None))
    assert "backend local and docker" in Page(source).text
    assert '<p class="note">' in source and "inconclusive" not in Page(source).text, "a neutral note"
    again = {"outcome": "restored", "seconds": 12.0, "gpu_seconds": 24.0}
    more = msgspec.structs.replace(before, scores={**before.scores, "last_checkpoint": again})
    assert len(view.figures(more)) > len(view.figures(before))
    assert "wasted by faults: " in Page(render(compare(before, more, None))).text


def test_rows_have_the_words_of_the_report_and_show_nothing_that_rounds_to_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    section = Section("ranks", "By rank", "s", rank_lines({"rank 0, startup": 1.0}, {"rank 0, startup": 3.0}))
    assert two_runs_report.rows(section) == [("Rank 0, start-up", "1.00 s", "3.00 s", "+2.00 s")]
    section = Section("accounts", "By account", "GPU-s", lines({"a": 5.0, "b": 0.01}, {"a": 5.01, "b": 0.02}))
    assert two_runs_report.rows(section) == [("A", "5.0 GPU-s", "5.0 GPU-s", "0.0 GPU-s")]
    drawn = beside_chart("Parts", [("a", 4.0, 2.0), ("b", 0.0, None)], seconds)
    assert [float(width) for width in re.findall(r'<rect[^>]* width="([0-9.]+)"', drawn)] == [780.0, 390.0]
    same = run_report.from_scorecard(report_runs.spot_evict())
    print_json(two_runs_report.to_json(compare(same, same, ({"rank 0": -1.7e308}, {"rank 0": 1.7e308}))))
    assert json.loads(capsys.readouterr().out)["ranks"]["lines"][0]["change"] is None, "beyond all numbers"
