"""The page as text: well formed, closed to the network, escaped, and complete."""

import io
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import report_runs
from msgspec import structs
from report_pages import CARDS, Page, page_of
from rich.console import Console

from harness.cli.terminal import print_report
from harness.judge import score
from harness.judge.bounds import WASTED_BY_FAULTS
from harness.judge.score import Expectation, Scorecard
from harness.judge.verdict import Doubt, Verdict
from harness.judge.weighing import State
from harness.report import drawing, html_page, markdown, run_report, view, words
from harness.report.charts import svg
from harness.report.charts.loss_curves import Curves, Series, step_time_chart

LIMIT_BYTES = 1_000_000


@pytest.fixture(scope="module", params=CARDS, ids=lambda make: make.__name__)
def card(request: pytest.FixtureRequest) -> Scorecard:
    return request.param()


@pytest.fixture(scope="module")
def source(card: Scorecard) -> str:
    """The page of the card."""
    return page_of(card)


def test_every_element_is_closed_and_the_page_is_small_and_loads_nothing(source: str) -> None:
    page = Page(source)
    assert page.open == [] and len(source.encode()) < LIMIT_BYTES
    for tag, attributes in page.elements:
        assert tag not in {"img", "iframe", "object", "embed", "base", "form", "use", "image"}
        for name, value in attributes.items():
            if name in {"src", "href", "action", "xlink:href", "srcset"}:
                assert (value or "").startswith(("#", "data:,")), (tag, name, value)
    assert "@import" not in source and "url(" not in source and not re.search(r"https?://", source)


def test_each_link_within_the_page_has_the_words_of_its_heading(source: str) -> None:
    links = dict(re.findall(r'<a href="#(\w+)">(.*?)</a>', source))
    assert len(links) >= 6
    assert [target for target, told in links.items() if f'<section id="{target}"><h2>{told}</h2>' not in source] == []


def test_text_from_logs_is_never_markup_and_the_policy_lets_only_our_own_script_run() -> None:
    source = page_of(report_runs.hostile())
    assert "<script>alert" not in source
    assert "&lt;script&gt;alert" in source
    assert [tag for tag, _ in Page(source).elements].count("script") == 1
    assert not [name for _, attributes in Page(source).elements for name in attributes if name.startswith("on")]
    source = page_of(report_runs.spot_evict())
    script = re.search(r"<script>(.*?)</script>", source, re.DOTALL)
    (policy,) = (a["content"] for _, a in Page(source).elements if "http-equiv" in a)
    assert script and policy == html_page.script_policy(script[1]) and str(policy).startswith("default-src 'none'; ")
    assert source == page_of(report_runs.spot_evict()), "the page is a pure function of the scorecard"


def test_verdict_and_reason_come_first_and_not_by_colour_alone() -> None:
    shapes = set()
    for verdict in Verdict:
        card = replace(report_runs.spot_evict(), verdict=verdict, reasons=["because of this", "and of that"])
        source = page_of(card)
        text = Page(source).text
        word = text.index(verdict.value.capitalize(), text.index(card.title) + len(card.title))
        assert word < text.index("Because of this") < text.index("Recovery time") and "And of that" in text
        shapes |= {*re.findall(r'class="sign">\s*(<\w+ [^>]*>)', source)}
    assert len(shapes) == len(Verdict)


def test_of_many_reasons_the_first_are_seen_and_the_others_folded() -> None:
    reasons = [f"reason {i}" for i in range(10)]
    source = page_of(replace(report_runs.spot_evict(), verdict=Verdict.FAIL, reasons=reasons))
    box = source[source.index('class="verdict') : source.index('class="figures"')]
    shown, folded = box.split("<details>")
    assert all(f"eason {i}" in shown for i in range(4)) and "<summary>6 more</summary>" in folded
    assert all(f"eason {i}" in folded for i in range(4, 10))
    assert folded.index("</details>") < folded.index("What to do next")


def test_names_sizes_and_quantities_are_words() -> None:
    for name, told in (
        ("recovery_time.max", "Recovery time"),
        ("recovery_time.phases.startup", "Recovery time, start-up"),
        ("metrics.checkpoint_success_min", "Metrics, checkpoint success"),
        ("wasted_gpu_hours.max_percent_by_faults", "Wasted GPU-hours, percent by faults"),
    ):
        assert words.expectation_name(name) == told
    values: dict[str, Any] = {"tells": ["steps", "loss"], "time_to_complete_seconds": 4.0}
    values |= {"checkpoint_seconds_max_by_kind": {"periodic": 0.02, "untold": 0.029}}
    assert view.metric_rows(report_of(metrics=values)) == [
        ("Kinds of evidence", "steps, loss"),
        ("Time to complete", "4.00 s"),
        ("Checkpoint time max by kind", "periodic 20 ms, of no known kind 29 ms"),
    ]
    assert [words.size(amount) for amount in (5, 1024, 15 * 2**20)] == ["5 B", "1.0 KiB", "15.0 MiB"]
    for amount, unit, told in (
        (1, "processes gone", "1 process gone"),
        (1, "bits flipped", "1 bit flipped"),
        (2, "bits flipped", "2 bits flipped"),
        (1, "ms late on average", "1 ms late on average"),
        (1, "nodes", "1 node"),
        (1, "times the step time", "1 times the step time"),
        (1, "rendezvous stores running", "1 rendezvous store running"),
        (1, "failed starts", "1 failed start"),
        (1, "", "1"),
    ):
        assert words.quantity(amount, unit) == told


def test_every_expectation_is_in_the_table_and_accounts_add_up_to_what_was_allocated(
    card: Scorecard, source: str
) -> None:
    rows = Page(source).rows
    for e in card.expectations:
        name = words.plain(words.expectation_name(e.name))
        shown = [row for row in rows if row[:1] == [e.verdict.value] and row[1].startswith(name)]
        assert shown, e
        assert [words.plain(e.bound), words.plain(e.observed)] == shown[0][2:4]
    table = re.search(r'<table id="accounts".*?</table>', source, re.DOTALL)
    assert table
    accounts = Page(table[0]).rows[1:]
    amounts = [round(float(row[1].replace(",", "")) * 1000) for row in accounts]
    assert accounts[-1][0] == "Allocated" and sum(amounts[:-1]) == amounts[-1] > 0


def test_every_fault_is_in_the_table_with_its_effect_and_only_what_can_be_undone_is() -> None:
    rows = Page(page_of(report_runs.double_evict())).rows
    assert ["fault1", "node_loss", "node1", "5.24 s", "1 death", "1 death", "nothing to undo"] in rows
    assert [row[0] for row in rows if row[1:2] == ["node_loss"]] == ["fault1", "fault2"]
    cases = (True, True), (True, False), (False, True), (False, False)
    faults = [run_report.Fault(id="a", kind="b", healed=healed, kills=kills) for healed, kills in cases]
    undone = [row["undone"] for row in view.fault_rows(report_of(faults=tuple(faults)))]
    assert undone == ["nothing to undo", "yes", "no", "no"]


def test_the_phases_of_a_recovery_carry_their_seconds() -> None:
    card = report_runs.spot_evict()
    source = page_of(card)
    text = Page(source).text
    for phase, amount in run_report.from_scorecard(card).recovery_time.episodes[0].phases.items():
        took = svg.seconds_text(amount)
        assert f"{words.words(phase)}: {took}" in text
        assert re.search(rf'class="(seconds|on .*)" text-anchor="\w+">{took}<', source), phase


def test_a_thousand_ranks_show_the_worst_32_and_say_so_and_ten_thousand_steps_are_thinned() -> None:
    source = page_of(report_runs.thousand_ranks())
    wide = source[source.index('id="timeline"') : source.index('class="chart narrow"')]
    lanes = re.findall(r">Rank (\d+)<", wide)
    assert len(lanes) == 32 and lanes[0] == "616", "the rank that the fault hit comes first"
    assert "All 1,000 ranks" in wide and "32 ranks that fared worst" in source
    source = page_of(report_runs.long_run())
    paths = re.findall(r'class="run" d="([^"]*)"|d="([^"]*)" class="run"', source)
    assert 0 < max(len("".join(pair)) for pair in paths) < 60_000
    assert "39 steps without a finite loss, first at step 8,001" in source


def test_a_run_that_never_recovered_names_the_phase_it_ended_in() -> None:
    card = report_runs.never_recovered()
    text = Page(page_of(card)).text
    assert "Never at the end in rendezvous" in text and "never came back" in text
    killed = report_runs.with_run(card, outcome=None)
    assert "Not over when the run was stopped" in Page(page_of(killed)).text


def test_without_a_fault_free_run_or_steps_the_page_says_so() -> None:
    told = Page(page_of(report_runs.no_outage())).text
    assert "no fault-free run" in told and "No fault was injected" in told
    card = report_runs.empty()
    report, page = run_report.from_scorecard(card), page_of(card)
    waste = view.figures(report)[2]
    assert (report.run.furthest_step, waste.value, waste.detail) == (0, words.DASH, "no step was completed")
    assert "no step was completed" in Page(page).text and "Slower than the usual step" not in page


def report_of(**told: Any) -> run_report.Report:
    return run_report.Report(run_id="a", scenario="b", backend="local", seed=1, verdict=Verdict.PASS, **told)


def test_what_was_not_judged_is_told_once_grouped_by_why() -> None:
    untold = {"loss": "the log does not report it", "pace": "nothing was slow", "exits": "the log does not report it"}
    reasons = [f"recovered in 4.78 s; not judged: {', '.join(untold)}"]
    report = run_report.from_scorecard(replace(report_runs.spot_evict(), not_judged=untold, reasons=reasons))
    for text in (Page(html_page.render(report)).text, markdown.render(report)):
        assert text.lower().count("not judged") == 1
        assert "Not judged: loss, exits (the log does not report it); pace (nothing was slow)." in text
    assert view.headline(report).endswith("not judged: loss, pace, exits"), "a terminal and JUnit have no other place"


def test_events_are_words() -> None:
    event = {"event": "checkpoint.committed", "step": 5, "files": ["ckpt.pt", "/a/b/c/d.pt"]}
    event |= {"content": "whole:" + 9 * "b7"}
    assert drawing._what(event) == "committed: step 5, files ckpt.pt, …/c/d.pt, fingerprint b7b7b7b7b7b7"


def test_the_band_is_told_only_where_drag_exceeds_it() -> None:
    told = []
    for drag in (0.0, 1.0):
        accounts = {"productive": 9.0, "straggler_drag": drag}
        waste = {"gpu_seconds_allocated": 9.0 + drag, "accounts": accounts, "baseline": "398 steps"}
        report = report_of(scores={"wasted_gpu_hours": waste})
        texts = html_page.render(report), markdown.render(report)
        told.append(["Straggler drag: step time above" in text for text in texts])
    assert told == [[False, False], [True, True]]


def test_checkpoints_are_folded_and_what_is_missing_is_one_line() -> None:
    metrics = {"gpu_busy_percent": None, "step_seconds_p50": None, "deaths": 1}
    card = report_runs.spot_evict()
    source = html_page.render(structs.replace(run_report.from_scorecard(card), metrics=metrics), card.evidence)
    assert "<details><summary>Checkpoints (" in source
    assert "Not available here: GPU busy, step time p50." in Page(source).text
    assert "<dt>Deaths</dt>" in source and "<dt>GPU busy</dt>" not in source


def test_the_head_says_when_and_what_ran_and_the_ledger_what_a_gpu_is() -> None:
    card = report_runs.spot_evict()
    plan = {**card.evidence.run.plan, "workload": {"trainer": {"torchrun": "/home/me/job/a/train.py"}}}
    card = report_runs.with_run(card, plan=plan)
    parts = ["2026-11-22 10:11 UTC", "trainer torchrun …/a/train.py", "2 ranks", "took ", "your commit abcd1234"]
    for gpu, cpu_slot in (({}, True), ({"gpu": "H100"}, False)):
        environment = {**card.environment, "begun_at": "2026-11-22T10:11:12+00:00", "commit": "abcd1234", **gpu}
        text = Page(page_of(replace(card, environment=environment))).text
        assert [part for part in parts if part not in text.replace("\u00a0", " ")] == []
        assert ("here a GPU is a rank's CPU slot" in text) is cpu_slot


@pytest.mark.parametrize("bounded", [True, False])
def test_a_waste_that_was_not_measured_has_neither_a_number_nor_a_tick(bounded: bool) -> None:
    why, name = "the slowdown by x cannot be measured", "wasted_gpu_hours.max_percent_by_faults"
    card = report_runs.spot_evict()
    assert card.scores["wasted_gpu_hours"]["percent_by_faults"] is not None
    line = score.left_open(name, "≤ 25 %", why, Doubt.UNMEASURED, bound_value=25, unit="%")
    told: dict[str, Any] = {"expectations": [line] if bounded else ()}
    told |= {} if bounded else {"not_judged": {WASTED_BY_FAULTS: why}}
    report = run_report.from_scorecard(replace(card, **told))
    waste = view.figures(report)[2]
    assert (waste.name, waste.value, waste.detail) == ("Wasted by faults", words.DASH, why)
    assert waste.verdict is (Verdict.INCONCLUSIVE if bounded else None) and waste.share is None
    out = io.StringIO()
    print_report(report, None, Console(file=out))
    rows = [*markdown.render(report).splitlines(), *out.getvalue().splitlines()]
    shown = [row for row in rows if row.lstrip("| ").startswith("Wasted by faults")]
    assert len(shown) == 2 and not any("✔" in row or "pass" in row or " 0.0 %" in row for row in shown)


def test_the_axis_of_step_times_leaves_out_steps_without_a_duration() -> None:
    def chart(*took_s: float) -> str:
        steps = np.arange(1.0, len(took_s) + 1)
        return str(step_time_chart(Curves(Series(steps, steps, np.array(took_s)), None, None, len(took_s))))

    assert ">20 ms<" in chart(0.02, 0.0, 0.03, 0.02)
    assert "µs" not in chart(0.02, 0.0, 0.03, -1.0, 0.02)
    assert chart(0.0, 0.0) == "None"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Run it again (about 60 s): chaos run x", "Run it again (about 60\u00a0s): <code>chaos run x</code>"),
        ("What is lacking: chaos doctor", "What is lacking: <code>chaos doctor</code>"),
        ("this took longest: detect, 5 s", "this took longest: detect, 5\u00a0s"),
        ("Run: chaos run --plan 5 s", "Run: <code>chaos run --plan 5 s</code>"),  # copied as it stands there
        ("the first error: <b>", "the first error: &lt;b&gt;"),
    ],
)
def test_a_command_to_run_next_can_be_copied(text: str, shown: str) -> None:
    assert html_page.next_step(text) == shown


@pytest.mark.parametrize("verdict", [Verdict.INCONCLUSIVE, Verdict.FAIL, Verdict.INVALID])
def test_what_decided_a_verdict_has_a_card(verdict: Verdict) -> None:
    """Also what no card shows otherwise, and what is no bound of the scenario."""
    card = report_runs.spot_evict()
    slow = Expectation("pace.max_slowdown", "≤ 1.5 ×", "1.74 ×, at least 1.60 ×", verdict, "the host may be busy")
    expectations = [*card.expectations, slow]
    judged = replace(card, verdict=verdict, expectations=expectations, reasons=["pace.max_slowdown: slow"])
    first, *others = view.figures(run_report.from_scorecard(judged))
    assert (first.name, first.value, first.detail) == (words.expectation_name(slow.name), slow.observed, slow.reason)
    assert first.decided and not any(figure.decided for figure in others)
    claimed = replace(card, verdict=verdict, reasons=["the job stood still for 9.0 s"])
    first, *_ = view.figures(run_report.from_scorecard(claimed))
    assert (first.name, first.detail) == ("What decided it", "The job stood still for 9.0 s")
    assert not any(figure.decided for figure in view.figures(run_report.from_scorecard(card)))


def test_both_charts_of_steps_mark_the_fault_and_have_a_legend() -> None:
    page = page_of(report_runs.spot_evict())
    text = Page(page).text
    assert "Resumed after step 80" in page and "Steps 81 to 90 were done and rolled back" in page
    assert "0 at each of 300 steps" in page
    assert "Struck at" in text and "Injected" not in text and "Fault struck" in text
    loss, step_time = page.index("Loss per step"), page.index("Time of each step, on a logarithmic scale")
    gpu = page.index("Where the GPU time went</h2>")
    for part in (page[loss:step_time], page[step_time:gpu]):
        assert "fault1 struck in step 91" in part and 'class="injected"' in part
        assert "Fault struck" in part and "Fault-free run" in part


def test_a_guarantee_that_did_not_hold_has_the_sign_of_its_verdict() -> None:
    card = report_runs.spot_evict()
    first, second, *others = card.guarantees
    page = page_of(replace(card, guarantees=[replace(first, state="broken"), replace(second, state="open"), *others]))
    rows = page[page.index('<section id="guarantees">') : page.index('<section id="faults">')]
    signs = re.findall(r'class="badge (\w+)"><svg.*?</svg>(\w+)<', rows)
    assert signs == [("fail", "broken"), ("inconclusive", "open")]


@pytest.mark.parametrize("name", ["result.batches_whole", "result.samples_in_order"])
def test_no_card_says_every_sample_once_where_a_guarantee_of_samples_did_not_hold(name: str) -> None:
    card = report_runs.spot_evict()
    states: dict[State, str] = {"held": "every sample once", "broken": "samples wrong", "open": "samples in doubt"}
    for state, told in states.items():
        guarantees = [replace(each, state=state) if each.name == name else each for each in card.guarantees]
        shown, out = replace(card, guarantees=guarantees), io.StringIO()
        print_report(run_report.from_scorecard(shown), None, Console(file=out, width=200))
        for text in (page_of(shown).replace("&nbsp;", " "), out.getvalue()):
            assert told in text and ("every sample once" in text) == (state == "held")


def test_a_loss_that_passed_without_a_fault_free_run_held() -> None:
    card = report_runs.spot_evict()
    score = {**card.scores, "loss_continuity": {**card.scores["loss_continuity"], "mode": None}}
    held = Expectation("loss_continuity.mode", "exact", "—", Verdict.PASS)
    for verdict, shown in ((Verdict.PASS, "Held"), (Verdict.INCONCLUSIVE, words.DASH)):
        told = replace(card, scores=score, expectations=[replace(held, verdict=verdict)])
        cards = {each.name: each.value for each in view.lasting_figures(run_report.from_scorecard(told))}
        assert cards["Loss continuity"] == shown
